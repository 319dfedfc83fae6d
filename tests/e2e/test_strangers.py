"""Peers that have shown no token yet: they get what it takes to show one, and little more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import Transfer
from postbus.amqp.frames.transactions import Coordinator
from postbus.amqp.sending import SenderLink
from postbus.gateway.attach import STRANGER_LINKS_MAX, TOKEN_REQUEST_BYTES_MAX
from tests.support.access import Caller, Refused, sas
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("strangers") / "data").start()
    yield server
    server.discard()


@pytest.mark.parametrize("size", [TOKEN_REQUEST_BYTES_MAX + 1, 255 * 1024])
def test_a_token_that_is_longer_than_any_is_refused_before_it_is_whole(
    server: Server, size: int
) -> None:
    with Caller(server) as caller:
        link = caller.attach("send", "$cbs")
        assert isinstance(link, SenderLink)
        assert link.peer_message_size_max == TOKEN_REQUEST_BYTES_MAX
        for start in range(0, size, 16 * 1024):
            piece = bytes(min(16 * 1024, size - start))
            first = Transfer(link.handle, 0, b"t", 0, settled=True, more=True)
            frame = first if start == 0 else Transfer(link.handle, more=True)
            caller.socket.sendall(encode_frame(caller.session.channel, frame, piece))
        refused = caller.detached(link)
        assert refused.condition == "amqp:link:message-size-exceeded"
        assert str(TOKEN_REQUEST_BYTES_MAX) in refused.text


def test_a_stranger_has_a_handful_of_links_until_it_shows_a_token(server: Server) -> None:
    with Caller(server) as caller:
        token = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE")
        assert caller.put_token("sb://localhost", "none").status == 401
        for _ in range(STRANGER_LINKS_MAX - 2):
            assert not isinstance(caller.attach("send", Coordinator()), Refused)
        refused = caller.attach("send", Coordinator())
        assert isinstance(refused, Refused)
        assert refused.condition == "amqp:resource-limit-exceeded"
        assert f"may have {STRANGER_LINKS_MAX} links" in refused.text
        assert caller.put_token("sb://localhost", token).status == 202
        assert not isinstance(caller.attach("send", Coordinator()), Refused)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same session", "another session"])
def test_a_connection_has_one_pair_of_links_to_cbs(server: Server, elsewhere: bool) -> None:
    """As in Azure: the Go SDK waits for this refusal to connect anew."""
    with Caller(server) as caller:
        token = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE")
        assert caller.put_token("sb://localhost", token).status == 202
        [sender, receiver] = caller.session.links
        if elsewhere:
            caller.session = caller.core.begin()
        for kind in ("send", "receive"):
            refused = caller.attach(kind, "$cbs")
            assert isinstance(refused, Refused)
            assert refused.condition == "amqp:not-allowed"
            assert "$cbs node has already been opened" in refused.text
        # The pair that is there goes on, and once it is closed another one may come.
        assert caller.put_token("sb://localhost", token).status == 202
        sender.detach()
        receiver.detach()
        caller.write()
        for kind in ("send", "receive"):
            assert not isinstance(caller.attach(kind, "$cbs"), Refused)


def test_two_connections_have_a_pair_each(server: Server) -> None:
    token = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    with Caller(server) as one, Caller(server) as another:
        assert one.put_token("sb://localhost", token).status == 202
        assert another.put_token("sb://localhost", token).status == 202

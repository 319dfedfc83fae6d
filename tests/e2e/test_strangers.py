"""Peers that have shown no token yet: they get what it takes to show one, and little more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postbus.amqp.framing import encode_frame
from postbus.amqp.performatives import Transfer
from postbus.amqp.sending import SenderLink
from postbus.server.attaching import STRANGER_LINKS_MAX, TOKEN_REQUEST_BYTES_MAX
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
            assert not isinstance(caller.attach("send", "$cbs"), Refused)
        refused = caller.attach("send", "$cbs")
        assert isinstance(refused, Refused)
        assert refused.condition == "amqp:resource-limit-exceeded"
        assert f"may have {STRANGER_LINKS_MAX} links" in refused.text
        assert caller.put_token("sb://localhost", token).status == 202
        assert not isinstance(caller.attach("send", "$cbs"), Refused)

"""Session receivers on the wire: attaches that wait, answers to the byte, locks that end links."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from postbus.amqp.codec.types import Described, Int, Symbol, Timestamp, UInt, ULong
from postbus.amqp.events import LinkAttached, LinkDetached, MessageReceived
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.frames.performatives import ROLE_RECEIVER, SND_SETTLED, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_data,
    encode_properties,
    read_annotations,
    scan,
)
from postbus.model.times import NEVER
from tests.support.access import Caller
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.waiting import until_blocking

KEY = Symbol("com.microsoft:session-filter")
CODE = ULong(0x137000000C)
TIMEOUT = Symbol("com.microsoft:timeout")
UNTIL = Symbol("com.microsoft:locked-until-utc")
TICKS_AT_EPOCH = 621_355_968_000_000_000
ROOT = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server().start()


@pytest.fixture
def queue(server: Server) -> str:
    return Administration(server.connection_string).make_queue(requires_session=True)


def attach(
    caller: Caller, address: str, wanted: Any, timeout: Any = None, settled: bool = False
) -> ReceiverLink:
    """Ask for a session, and do not wait for the answer."""
    frame = Attach(
        f"session-{uuid4()}",
        0,
        ROLE_RECEIVER,
        source=Source(address, filter={KEY: wanted}),
        target=Target("t"),
        properties=None if timeout is None else {TIMEOUT: timeout},
    )
    if settled:
        frame.snd_settle_mode = SND_SETTLED
    link = caller.session.attach(ReceiverLink, frame)
    caller.write()
    assert isinstance(link, ReceiverLink)
    return link


def accepted(caller: Caller, link: ReceiverLink) -> ReceiverLink:
    while not link.attached:
        assert caller.until(LinkAttached).link is not None
    return link


def session_of(link: ReceiverLink) -> Any:
    assert link.source is not None and link.source.filter is not None
    return link.source.filter[KEY]


def refusal(caller: Caller, link: ReceiverLink) -> tuple[str, str]:
    """Why the link was ended; the news may have come together with others."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for event in caller.seen:
            if isinstance(event, LinkDetached) and event.link is link:
                assert event.error is not None
                return event.error.condition, event.error.description or ""
        caller.read()
    raise AssertionError("the link goes on")


def send(caller: Caller, queue: str, session: str, body: bytes = b"x") -> None:
    properties = encode_properties(Properties(message_id=str(uuid4()), group_id=session))
    caller.sender(queue).send(b"1", (properties, encode_data(body)), settled=True)
    caller.write()


def receive(caller: Caller, link: ReceiverLink) -> Any:
    while True:
        event = caller.until(MessageReceived)
        if event.link is link:
            return event.delivery


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("named", ["mine", "", None])
def test_the_answer_has_the_form_of_the_question(
    server: Server, queue: str, named: str | None, described: bool
) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine" if named is None else named)
        # byte for byte, for the Python SDK compares it (wire §10.2)
        address = f"amqps://localhost:{server.port}/{queue}"
        link = accepted(
            caller, attach(caller, address, Described(CODE, named) if described else named)
        )
        session = "mine" if named is None else named
        assert session_of(link) == (Described(CODE, session) if described else session)
        assert link.source is not None and link.source.address == address
        assert link.properties is not None
        ticks = link.properties[UNTIL]
        assert type(ticks) is int  # as our decoder shows a long, and nothing else
        left_s = (ticks - TICKS_AT_EPOCH) / 10**7 - time.time()
        assert 0 < left_s <= 60


@pytest.mark.parametrize("timeout", [Int(20_000), UInt(20_000)])
def test_a_waiting_attach_holds_nothing_up(server: Server, queue: str, timeout: Any) -> None:
    with Caller(server, *ROOT) as caller:
        waiting = [attach(caller, queue, None, timeout) for _ in range(3)]
        named = accepted(caller, attach(caller, queue, "named"))
        assert session_of(named) == "named"
        assert not any(link.attached for link in waiting)
        for n in range(3):
            send(caller, queue, f"s{n}")
            accepted(caller, waiting[n])
        # in the order in which they came
        assert [session_of(link) for link in waiting] == ["s0", "s1", "s2"]


@pytest.mark.parametrize("timeout", [Int(300), UInt(300), UInt(0)])
def test_a_wait_ends_with_a_timeout(server: Server, queue: str, timeout: Any) -> None:
    with Caller(server, *ROOT) as caller:
        began = time.monotonic()
        condition, text = refusal(caller, attach(caller, queue, None, timeout))
        assert condition == "com.microsoft:timeout"
        assert "did not complete within the allotted timeout of 00:00:00" in text
        assert "TrackingId:" in text
        assert time.monotonic() - began < 5
        # who comes later gets what comes later
        link = attach(caller, queue, None, UInt(20_000))
        send(caller, queue, "mine")
        assert session_of(accepted(caller, link)) == "mine"


def test_who_does_not_want_to_wait_gets_what_is_there(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine")
        assert session_of(accepted(caller, attach(caller, queue, None, UInt(0)))) == "mine"


def test_a_wait_longer_than_allowed_is_cut_and_one_too_many_is_refused(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--session-wait-max-ms", "1000", "--session-waits-max", "2").start()
    queue = Administration(server.connection_string).make_queue(requires_session=True)
    with Caller(server, *ROOT) as caller:
        waiting = [attach(caller, queue, None, UInt(600_000)) for _ in range(2)]
        condition, text = refusal(caller, attach(caller, queue, None))
        assert condition == "com.microsoft:server-busy" and "2 receivers wait" in text
        for link in waiting:
            assert refusal(caller, link)[0] == "com.microsoft:timeout"


def test_who_stops_waiting_is_forgotten(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        with Caller(server, *ROOT) as gone:
            attach(gone, queue, None, UInt(20_000))
            gone.receiver(f"{queue}/$DeadLetterQueue")  # the attach before it has arrived
        left = attach(caller, queue, None, UInt(20_000))
        left.detach()
        caller.write()
        while caller.until(LinkDetached).link is not left:
            pass
        send(caller, queue, "mine")
        assert session_of(accepted(caller, attach(caller, queue, None))) == "mine"


def test_a_session_goes_to_the_next_one_when_its_link_ends(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine", b"1")
        send(caller, queue, "mine", b"2")
        with Caller(server, *ROOT) as gone:
            link = accepted(gone, attach(gone, queue, "mine"))
            link.grant(2)
            gone.write()
            receive(gone, link)
            waiting = attach(caller, queue, None, UInt(20_000))
        # the connection broke: no count rises, and the first message is the first again
        link = accepted(caller, waiting)
        link.grant(1)
        caller.write()
        delivery = receive(caller, link)
        assert delivery.payload.endswith(encode_data(b"1"))
        assert b"\x00\x53\x70\xc0\x06\x05\x40\x40\x40\x40\x43" in delivery.payload
        link.detach()
        caller.write()
        again = attach(caller, queue, "mine")
        assert session_of(accepted(caller, again)) == "mine"


def test_messages_of_a_session_have_no_lock_of_their_own(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine")
        link = accepted(caller, attach(caller, queue, "mine"))
        link.grant(1)
        caller.write()
        payload = receive(caller, link).payload
        shown = read_annotations(payload, scan(payload))["x-opt-locked-until"]
        # semantics B §1: the last instant there is
        assert shown == NEVER and type(shown) is Timestamp


def test_a_lock_that_runs_out_detaches_the_link(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue(requires_session=True, lock_s=5)
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine")
        link = accepted(caller, attach(caller, queue, "mine"))
        link.grant(1)
        caller.write()
        receive(caller, link)
        caller.socket.settimeout(20)
        condition, text = refusal(caller, link)
        assert condition == "com.microsoft:session-lock-lost" and "TrackingId:" in text
        assert session_of(accepted(caller, attach(caller, queue, None))) == "mine"


def test_receive_and_delete_in_a_session(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine")
        link = accepted(caller, attach(caller, queue, "mine", settled=True))
        link.grant(1)
        caller.write()
        assert receive(caller, link).settled
    counts = Administration(server.connection_string)
    until_blocking("it is gone", lambda: counts.counts(queue).active_message_count == 0)


def test_session_operations_without_the_session_are_refused(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:

        def ask(node: str, operation: str, value: dict[str, Any]) -> tuple[int, str, Any]:
            named = {"operation": f"com.microsoft:{operation}"}
            return caller.call(f"{node}/$management", named, value)

        mine = {"session-id": "mine"}
        for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
            assert ask(queue, operation, mine)[0] == 410, operation
        assert ask(queue, "get-message-sessions", {"skip": Int(0), "top": Int(10)})[0] == 204

        # nor over another connection than that of its holder
        with Caller(server, *ROOT) as holder:
            accepted(holder, attach(holder, queue, "mine"))
            for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
                assert ask(queue, operation, mine)[0] == 410, operation
        # of which the same client may have many
        link = accepted(caller, attach(caller, queue, "mine"))
        assert ask(queue, "set-session-state", {**mine, "session-state": b"x"})[0] == 200
        assert ask(queue, "get-session-state", mine)[2] == {"session-state": b"x"}
        status, _, value = ask(queue, "renew-session-lock", mine)
        assert status == 200 and type(value["expiration"]) is Timestamp
        link.detach()
        caller.write()
        dead = f"{queue}/$DeadLetterQueue"
        status, text, _ = ask(dead, "get-session-state", mine)
        assert status == 403 and "does not require sessions" in text


def test_settling_over_management_needs_the_session(server: Server, queue: str) -> None:
    with Caller(server, *ROOT) as caller:
        send(caller, queue, "mine")
        link = accepted(caller, attach(caller, queue, "mine"))
        link.grant(1)
        caller.write()
        delivery = receive(caller, link)
        link.settle(delivery, Accepted())
        caller.write()
    counts = Administration(server.connection_string)
    until_blocking("it is gone", lambda: counts.counts(queue).active_message_count == 0)

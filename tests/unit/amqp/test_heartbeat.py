"""Idle time-outs in both directions, and the time a peer has to open and to close."""

import pytest

from postbus.amqp.connection import Connection, ConnectionState
from postbus.amqp.events import Closed
from postbus.amqp.frames.framing import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER
from postbus.amqp.frames.performatives import Close, Open
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import T0, BarePeer

LIMITS = Limits(
    idle_timeout_ms=10_000, open_timeout_ms=3_000, close_timeout_ms=500, idle_timeout_min_ms=100
)


def test_a_heartbeat_is_written_at_half_of_what_the_peer_asks() -> None:
    peer = BarePeer(LIMITS, open_frame=Open("bare", idle_time_out=3001))
    assert peer.core.next_deadline() == T0 + 1501
    assert peer.core.tick(T0 + 1500) == []
    assert peer.core.data_to_send() == b""
    assert peer.core.tick(T0 + 1501) == []
    assert peer.core.data_to_send() == EMPTY_FRAME
    assert peer.core.next_deadline() == T0 + 3002


def test_a_heartbeat_is_not_needed_while_other_output_waits() -> None:
    peer = BarePeer(LIMITS, open_frame=Open("bare", idle_time_out=1000))
    for half_seconds in range(1, 10):
        peer.core.tick(T0 + half_seconds * 500)
    assert peer.core.data_to_send() == EMPTY_FRAME


def test_what_is_written_anyway_is_a_sign_of_life() -> None:
    peer = BarePeer(LIMITS, open_frame=Open("bare", idle_time_out=1000))
    peer.now = T0 + 400
    peer.begin()
    assert peer.core.next_deadline() == T0 + 900


@pytest.mark.parametrize("idle_time_out", [None, 0])
def test_a_peer_that_asks_for_none_gets_no_heartbeats(idle_time_out: int | None) -> None:
    peer = BarePeer(LIMITS, open_frame=Open("bare", idle_time_out=idle_time_out))
    assert peer.core.next_deadline() == T0 + 20_000
    peer.core.tick(T0 + 19_999)
    assert peer.core.data_to_send() == b""


def test_a_peer_silent_for_twice_our_timeout_is_closed() -> None:
    peer = BarePeer(LIMITS)
    peer.now = T0 + 5_000
    peer.receive(EMPTY_FRAME)
    assert peer.core.next_deadline() == T0 + 25_000
    assert peer.core.tick(T0 + 24_999) == []
    (event,) = peer.core.tick(T0 + 25_000)
    assert isinstance(event, Closed) and not event.clean
    close = peer.reply(Close)
    assert close.error is not None and close.error.condition == "amqp:resource-limit-exceeded"

    # and its answer is not waited for longer than it should take
    assert peer.core.next_deadline() == T0 + 25_500
    assert peer.core.tick(T0 + 25_499) == [] and not peer.core.closed
    assert peer.core.tick(T0 + 25_500) == [] and peer.core.closed
    assert peer.core.tick(T0 + 99_000) == []


def test_a_close_that_is_never_answered_ends_in_good_order_all_the_same() -> None:
    peer = BarePeer(LIMITS)
    peer.core.close()
    assert peer.core.tick(T0 + 500) == [Closed(None, clean=True)]


@pytest.mark.parametrize("greeting", [b"", b"AMQ", SASL_HEADER])
def test_a_peer_that_does_not_log_in_in_time_is_cut_off(greeting: bytes) -> None:
    core = Connection(LIMITS, container_id="core", server=True, now=T0)
    core.receive_data(greeting, T0 + 1)
    core.data_to_send()
    assert core.next_deadline() == T0 + 3_000
    assert core.tick(T0 + 2_999) == []
    (event,) = core.tick(T0 + 3_000)
    assert isinstance(event, Closed) and not event.clean
    assert core.closed and core.data_to_send() == b""


def test_a_peer_that_does_not_open_in_time_is_told() -> None:
    peer = BarePeer(LIMITS, opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    assert peer.core.state is ConnectionState.OPENING
    (event,) = peer.core.tick(T0 + 3_000)
    assert isinstance(event, Closed) and event.error is not None
    assert event.error.condition == "amqp:connection:forced"
    assert [type(reply) for reply in peer.replies()] == [Open, Close]

"""Opening, channels, closing, and what a peer's violations cost it."""

import pytest

from postbus.amqp.connection import Connection, ConnectionState
from postbus.amqp.events import Closed, Opened, SessionBegun, SessionEnded
from postbus.amqp.frames.framing import (
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_SASL,
    encode_frame,
)
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Composite,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import T0, BarePeer, ConnectionPair

# A flow whose window is a string: a frame that is whole and makes no sense.
NONSENSE = b"\x00\x53\x13\xc0\x05\x02\x40\xa1\x01x"


def frame_of(body: bytes, channel: int = 0, kind: int = 0) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + bytes((2, kind)) + channel.to_bytes(2, "big") + body


def closing_error(peer: BarePeer) -> Error:
    """Take what the core has written, which ends in a close with an error."""
    close = peer.replies()[-1]
    assert isinstance(close, Close) and close.error is not None
    return close.error


def test_a_server_answers_open_with_its_own_terms() -> None:
    peer = BarePeer(Limits(max_frame_size=4096, channel_max=7, idle_timeout_ms=1000), opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    (event,) = peer.send(Open("bare", hostname="bus.example"))
    assert isinstance(event, Opened) and event.open.hostname == "bus.example"
    answer = peer.reply(Open)
    assert answer.container_id == "core"
    assert (answer.max_frame_size, answer.channel_max, answer.idle_time_out) == (4096, 7, 1000)
    assert peer.core.peer is event.open


def test_both_sides_may_have_no_idle_timeout_at_all() -> None:
    peer = BarePeer(Limits(idle_timeout_ms=0))
    assert peer.core.next_deadline() is None


@pytest.mark.parametrize(
    ("peer_open", "condition"),
    [
        (Open("bare", max_frame_size=511), "amqp:invalid-field"),
        (Open("bare", idle_time_out=99), "amqp:not-allowed"),
    ],
)
def test_an_open_that_cannot_be_served_is_answered_by_open_and_close(
    peer_open: Open, condition: str
) -> None:
    peer = BarePeer(opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    (event,) = peer.send(peer_open)
    assert isinstance(event, Closed) and not event.clean
    opened, closed = peer.replies()
    assert isinstance(opened, Open)
    assert isinstance(closed, Close) and closed.error is not None
    assert closed.error.condition == condition


def test_a_frame_before_open_closes_the_connection() -> None:
    peer = BarePeer(opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    peer.send(Begin(None, 0, 1, 1))
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_open_belongs_on_channel_0() -> None:
    peer = BarePeer(opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    peer.send(Open("bare"), channel=1)
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_a_second_open_closes_the_connection() -> None:
    peer = BarePeer()
    peer.send(Open("again"))
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_an_empty_frame_means_nothing() -> None:
    peer = BarePeer(opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    assert peer.receive(EMPTY_FRAME) == []
    peer.send(Open("bare"))
    assert peer.receive(EMPTY_FRAME) == []
    assert peer.core.state is ConnectionState.OPEN


@pytest.mark.parametrize(
    "performative",
    [
        Transfer(0, 0, b"t"),
        Flow(None, 1, 0, 1),
        Disposition(True, 0),
        Attach("a", 0, True),
        End(),
    ],
)
def test_a_frame_on_a_channel_without_a_session_closes_the_connection(
    performative: Composite,
) -> None:
    peer = BarePeer()
    (event,) = peer.send(performative, channel=3)
    assert isinstance(event, Closed) and not event.clean
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_a_channel_above_the_highest_closes_the_connection() -> None:
    peer = BarePeer(Limits(channel_max=3))
    peer.begin(3)
    peer.send(Begin(None, 0, 1, 1), channel=4)
    assert closing_error(peer).condition == "amqp:connection:framing-error"


def test_a_second_begin_on_a_channel_closes_the_connection() -> None:
    peer = BarePeer()
    peer.begin(2)
    peer.send(Begin(None, 0, 1, 1), channel=2)
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_an_answer_to_a_begin_that_never_was_closes_the_connection() -> None:
    peer = BarePeer()
    peer.send(Begin(0, 0, 1, 1), channel=2)
    assert closing_error(peer).condition == "amqp:not-allowed"


def test_a_peer_that_opens_more_sessions_than_it_can_number_is_closed() -> None:
    peer = BarePeer(open_frame=Open("bare", channel_max=0))
    assert peer.begin(7).channel == 0
    peer.send(Begin(None, 0, 1, 1), channel=8)
    assert closing_error(peer).condition == "amqp:resource-limit-exceeded"


def test_a_begin_is_answered_on_the_same_channel_and_names_it() -> None:
    peer = BarePeer()
    peer.send(Begin(None, 0, 1, 1), channel=5)
    ((channel, begin, _),) = peer.sent()
    assert channel == 5
    assert isinstance(begin, Begin) and begin.remote_channel == 5


def test_garbage_inside_a_session_costs_the_session() -> None:
    peer = BarePeer()
    session = peer.begin()
    other = peer.begin(1)
    (event,) = peer.receive(frame_of(NONSENSE))
    assert isinstance(event, SessionEnded) and event.session is session
    end = peer.reply(End)
    assert end.error is not None and end.error.condition == "amqp:decode-error"

    # and what still comes for it is dropped, until it is ended and the channel is free again
    assert peer.receive(frame_of(NONSENSE)) == []
    assert peer.send(Transfer(0, 0, b"t")) == []
    assert peer.send(End()) == []
    assert peer.begin().channel == 0
    assert peer.core.sessions[0] is other


def test_garbage_outside_any_session_costs_the_connection() -> None:
    peer = BarePeer()
    peer.receive(frame_of(NONSENSE, channel=9))
    assert closing_error(peer).condition == "amqp:decode-error"


def test_a_sasl_frame_after_the_handshake_costs_the_connection() -> None:
    peer = BarePeer()
    peer.receive(frame_of(NONSENSE, kind=FRAME_SASL))
    assert closing_error(peer).condition == "amqp:connection:framing-error"


def test_a_stream_that_falls_apart_is_read_no_further() -> None:
    peer = BarePeer(Limits(max_frame_size=1024))
    (event,) = peer.receive(b"\x00\x00\x04\x01\x02\x00\x00\x00" + encode_frame(0, Close()))
    assert isinstance(event, Closed) and not event.clean
    assert closing_error(peer).condition == "amqp:connection:framing-error"
    assert not peer.core.closed
    assert peer.receive(b"x" * 100_000) == []
    assert peer.core.receive_eof(T0) == []
    assert peer.core.closed


def test_the_answer_to_a_close_by_violation_is_awaited_and_all_else_dropped() -> None:
    peer = BarePeer()
    peer.begin()
    peer.send(Open("again"))
    peer.replies()
    assert peer.send(Attach("a", 0, True)) == []
    assert peer.receive(frame_of(NONSENSE)) == []
    assert peer.receive(frame_of(NONSENSE, kind=FRAME_SASL)) == []
    assert peer.replies() == []
    assert not peer.core.closed


def test_a_close_that_follows_the_violation_at_once_is_seen() -> None:
    peer = BarePeer()
    peer.send(Open("again"), Close())
    assert peer.core.closed
    assert peer.send(Begin(None, 0, 1, 1)) == []


def test_a_peer_closes_in_good_order() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.begin()
    sender, _ = pair.client_sends(session)
    server_session = pair.server.sessions[0]
    pair.client.close(Error("amqp:connection:forced", "going home"))
    pair.exchange()
    assert pair.at_server(Closed) == [
        Closed(Error("amqp:connection:forced", "going home"), clean=True)
    ]
    assert pair.at_client(Closed) == [Closed(None, clean=True)]
    assert pair.client.closed and pair.server.closed

    # and what was in it can still be looked at, and does nothing any more
    assert pair.server.sessions == [server_session]
    (link,) = server_session.links
    assert link.closed and sender.closed
    link.detach()
    server_session.end()
    pair.client.close()
    assert pair.client.data_to_send() == pair.server.data_to_send() == b""
    with pytest.raises(ValueError, match="closed"):
        pair.client.begin()
    with pytest.raises(ValueError, match="ended"):
        pair.client_sends(session)


def test_frames_behind_a_close_are_not_read() -> None:
    peer = BarePeer()
    peer.begin()
    events = peer.send(Close(), Begin(None, 0, 1, 1), Open("again"))
    assert events == [Closed(None, clean=True)]
    assert isinstance(peer.reply(Close), Close)


def test_garbage_behind_a_close_changes_nothing() -> None:
    peer = BarePeer()
    events = peer.receive(encode_frame(0, Close()) + b"\xff" * 20)
    assert events == [Closed(None, clean=True)]
    assert peer.core.closed
    assert isinstance(peer.reply(Close), Close)


def test_a_close_is_heard_while_a_session_is_being_ended() -> None:
    peer = BarePeer()
    peer.begin().end()
    (event,) = peer.send(Close())
    assert event == Closed(None, clean=True)


def test_closing_before_the_peers_open_says_open_first() -> None:
    peer = BarePeer(opened=False)
    peer.receive(AMQP_HEADER)
    peer.core.sasl_accept()
    peer.core.close()
    assert [type(reply) for reply in peer.replies()] == [Open, Close]
    assert peer.send(Open("late"), Close()) == [Closed(None, clean=True)]


def test_settlements_of_the_turn_go_out_before_the_close() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.send(Transfer(0, 0, b"t"), payload=b"body")
    peer.replies()
    (delivery,) = link.unsettled.values()
    link.settle(delivery, ACCEPTED)
    peer.core.close()
    assert [type(reply) for reply in peer.replies()] == [Disposition, Close]


def test_a_stream_that_just_ends_is_a_break_and_after_our_own_close_it_is_none() -> None:
    broken = BarePeer()
    assert broken.core.receive_eof(T0) == [Closed(None, clean=False)]
    assert broken.core.receive_eof(T0) == []

    closed = BarePeer()
    closed.core.close()
    assert closed.core.receive_eof(T0) == [Closed(None, clean=True)]


def test_a_client_pipelines_its_sessions_behind_open() -> None:
    pair = ConnectionPair()
    pair.client.open()
    first, second = pair.client.begin(), pair.client.begin()
    assert (first.channel, second.channel) == (0, 1)
    pair.exchange()
    assert [event.session for event in pair.at_client(SessionBegun)] == [first, second]


def test_a_session_that_was_ended_before_it_was_answered_is_ended_all_the_same() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.client.begin()
    session.end()
    pair.exchange()
    assert pair.at_client(SessionBegun) == []
    assert pair.client.sessions == pair.server.sessions == []


def test_pending_bytes_count_what_is_written_and_not_taken() -> None:
    core = Connection(Limits(), container_id="c", server=False, now=T0, mechanisms=())
    core.open()
    before = core.pending_bytes
    assert before > 0
    core.write(b"12345")
    assert core.pending_bytes == before + 5
    core.data_to_send()
    assert core.pending_bytes == 0

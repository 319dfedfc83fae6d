"""What comes on a channel or a handle that is no longer in use, or never was (AMQP 2.5, 2.6).

Clients let go of a link or a session and send more of it all the same: the Python SDK detaches
the links of `$management` after it has ended their session. What is late is ignored, so that the
close that follows is as orderly as its client meant it (R-SETTLE-10).
"""

from collections.abc import Callable

import pytest

from postbus.amqp.events import Closed, LinkAttached
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Source,
    Target,
    Transfer,
)
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import BarePeer

CHANNEL, HANDLE = 5, 3

FRAMES: dict[str, Callable[[], Composite]] = {
    "attach": lambda: Attach("late", HANDLE, ROLE_SENDER, source=Source("x"), target=Target("y")),
    "transfer": lambda: Transfer(HANDLE, 0, b"t"),
    "part of a transfer": lambda: Transfer(HANDLE, 0, b"t", more=True),
    "settled transfer": lambda: Transfer(HANDLE, 0, b"t", settled=True),
    "flow": lambda: Flow(0, 100, 0, 100, handle=HANDLE, delivery_count=0, link_credit=9),
    "drain": lambda: Flow(
        0, 100, 0, 100, handle=HANDLE, delivery_count=0, link_credit=9, drain=True, echo=True
    ),
    "verdict": lambda: Disposition(ROLE_RECEIVER, 0, 7, settled=True, state=Accepted()),
    "settlement": lambda: Disposition(ROLE_SENDER, 0, settled=True),
    "detach": lambda: Detach(HANDLE, closed=True),
    "detach with an error": lambda: Detach(HANDLE, closed=True, error=Error("x:y", "z")),
    "end": End,
}


def never_begun(peer: BarePeer) -> None:
    pass


def ended_by_the_peer(peer: BarePeer) -> None:
    peer.begin(CHANNEL)
    peer.send(End(), channel=CHANNEL)


def ended_by_us(peer: BarePeer) -> None:
    peer.begin(CHANNEL).end()


def ended_by_us_and_answered(peer: BarePeer) -> None:
    ended_by_us(peer)
    peer.send(End(), channel=CHANNEL)


def ended_for_a_fault(peer: BarePeer) -> None:
    peer.begin(CHANNEL)
    peer.send(Detach(99), channel=CHANNEL)


def ended_for_a_fault_and_answered(peer: BarePeer) -> None:
    ended_for_a_fault(peer)
    peer.send(End(), channel=CHANNEL)


def ended_from_both_sides(peer: BarePeer) -> None:
    ended_by_us(peer)
    peer.send(End(Error("x:y", "z")), channel=CHANNEL)


ENDED = [
    ended_by_the_peer,
    ended_by_us_and_answered,
    ended_for_a_fault_and_answered,
    ended_from_both_sides,
]
ENDING = [ended_by_us, ended_for_a_fault]

CHANNEL_TABLE = [
    *((never_begun, frame, "amqp:not-allowed") for frame in FRAMES),
    # An attach asks for something: on a channel without a session it is no late frame.
    *((state, frame, "amqp:not-allowed" if frame == "attach" else None)
      for state in ENDED for frame in FRAMES),
    *((state, frame, None) for state in ENDING for frame in FRAMES),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "frame", "refusal"),
    CHANNEL_TABLE,
    ids=[f"{state.__name__}-{frame}" for state, frame, _ in CHANNEL_TABLE],
)
def test_a_frame_on_a_channel_without_a_session(
    state: Callable[[BarePeer], None], frame: str, refusal: str | None
) -> None:
    peer = BarePeer()
    state(peer)
    peer.replies()
    events = peer.send(FRAMES[frame](), channel=CHANNEL)
    if refusal is None:
        assert peer.replies() == []
        assert not any(isinstance(event, (Closed, LinkAttached)) for event in events)
        assert peer.send(Close()) == [Closed(None, clean=True)]
        assert peer.core.usage.link_count == peer.core.usage.handle_count == 0
    else:
        close = peer.reply(Close)
        assert close.error is not None and close.error.condition == refusal
        assert [event.clean for event in events if isinstance(event, Closed)] == [False]


def test_all_that_comes_late_may_come_again_and_another_session_goes_on() -> None:
    peer = BarePeer()
    peer.begin(1)
    link = peer.attach_sender(channel=1)
    link.accept()
    ended_by_the_peer(peer)
    peer.replies()
    for frame, make in FRAMES.items():
        if frame != "attach":
            peer.send(make(), make(), channel=CHANNEL)
    assert peer.replies() == []
    assert link.attached


def test_a_channel_that_was_ended_can_be_begun_anew() -> None:
    peer = BarePeer()
    ended_by_the_peer(peer)
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)
    peer.replies()
    session = peer.begin(CHANNEL)
    assert session.handles.remote == {}
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)
    end = peer.reply(End)
    assert end.error is not None
    assert end.error.condition == "amqp:session:unattached-handle", "a new session, a new start"


def test_a_channel_above_the_highest_is_never_a_late_one() -> None:
    peer = BarePeer(Limits(channel_max=1))
    peer.send(Begin(None, 0, 1, 1), channel=2)
    close = peer.reply(Close)
    assert close.error is not None and close.error.condition == "amqp:connection:framing-error"


# Handles.


def never_attached(peer: BarePeer) -> None:
    pass


def detached_by_the_peer(peer: BarePeer) -> None:
    peer.attach_sender(handle=HANDLE, channel=CHANNEL).accept()
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)


def receiver_detached_by_the_peer(peer: BarePeer) -> None:
    peer.attach_receiver(handle=HANDLE, channel=CHANNEL).accept()
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)


def detached_before_it_was_accepted(peer: BarePeer) -> None:
    peer.attach_sender(handle=HANDLE, channel=CHANNEL)
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)


def detached_by_us(peer: BarePeer) -> None:
    link = peer.attach_sender(handle=HANDLE, channel=CHANNEL)
    link.accept()
    link.detach(Error("amqp:link:detach-forced", "enough"))


def receiver_detached_by_us(peer: BarePeer) -> None:
    link = peer.attach_receiver(handle=HANDLE, channel=CHANNEL)
    link.accept()
    link.detach()


def refused_by_us(peer: BarePeer) -> None:
    link = peer.attach_sender(handle=HANDLE, channel=CHANNEL)
    link.refuse(Error("amqp:not-found", "no"))


def answered(state: Callable[[BarePeer], None]) -> Callable[[BarePeer], None]:
    def and_answered(peer: BarePeer) -> None:
        state(peer)
        peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)

    and_answered.__name__ = f"{state.__name__}_and_answered"
    return and_answered


BY_US = [detached_by_us, receiver_detached_by_us, refused_by_us]
BY_THE_PEER = [
    detached_by_the_peer,
    receiver_detached_by_the_peer,
    detached_before_it_was_accepted,
]
FOR_A_HANDLE = [frame for frame in FRAMES if frame not in ("attach", "end")]
WITHOUT_A_HANDLE = ("verdict", "settlement")
HANDLE_TABLE = [
    *((never_attached, frame,
       None if frame in WITHOUT_A_HANDLE else "amqp:session:unattached-handle")
      for frame in FOR_A_HANDLE),
    *((state, frame, None)
      for state in (*BY_US, *BY_THE_PEER, *map(answered, BY_US)) for frame in FOR_A_HANDLE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "frame", "refusal"),
    HANDLE_TABLE,
    ids=[f"{state.__name__}-{frame}" for state, frame, _ in HANDLE_TABLE],
)
def test_a_frame_for_a_handle_without_a_link(
    state: Callable[[BarePeer], None], frame: str, refusal: str | None
) -> None:
    peer = BarePeer()
    session = peer.begin(CHANNEL)
    state(peer)
    peer.replies()
    peer.send(FRAMES[frame](), channel=CHANNEL)
    if refusal is None:
        assert [reply for reply in peer.replies() if not isinstance(reply, Flow)] == []
        assert session in peer.core.sessions
        assert peer.core.incoming_unsettled == 0 and peer.core.usage.assembling_bytes == 0
        assert peer.send(End(), Close(), channel=CHANNEL)[-1] == Closed(None, clean=True)
        assert peer.core.usage.handle_count == peer.core.usage.link_count == 0
    else:
        end = peer.reply(End)
        assert end.error is not None and end.error.condition == refusal
        # The session is lost, and not the connection.
        assert peer.send(End(), Close(), channel=CHANNEL)[-1] == Closed(None, clean=True)


@pytest.mark.parametrize("state", [*BY_THE_PEER, *map(answered, BY_US)])
def test_a_handle_is_used_again_whatever_came_late_on_it(
    state: Callable[[BarePeer], None],
) -> None:
    peer = BarePeer()
    peer.begin(CHANNEL)
    state(peer)
    peer.send(Detach(HANDLE, closed=True), channel=CHANNEL)
    link = peer.attach_sender("again", handle=HANDLE, channel=CHANNEL)
    link.accept()
    peer.send(Transfer(HANDLE, 0, b"t"), channel=CHANNEL)
    assert len(link.unsettled) == 1
    assert peer.core.usage.handle_count == 1


def test_a_handle_far_above_the_highest_is_not_taken_for_a_former_one() -> None:
    peer = BarePeer()
    peer.begin(CHANNEL)
    detached_by_the_peer(peer)
    peer.replies()
    peer.send(Flow(0, 1, 0, 1, handle=0xFFFF_FFFF), channel=CHANNEL)
    end = peer.reply(End)
    assert end.error is not None and end.error.condition == "amqp:session:unattached-handle"


@pytest.mark.parametrize("late", [End(), Detach(HANDLE), Close()])
def test_nothing_that_follows_a_close_is_read(late: Composite) -> None:
    peer = BarePeer()
    peer.begin(CHANNEL)
    assert peer.send(Close()) == [Closed(None, clean=True)]
    peer.replies()
    assert peer.send(late, channel=CHANNEL) == []
    assert peer.replies() == []

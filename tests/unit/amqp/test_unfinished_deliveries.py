"""How long a message may take to come, frame by frame."""

from postbus.amqp.events import LinkDetached, MessageReceived
from postbus.amqp.frames.performatives import Detach, Transfer
from postbus.amqp.limits import Limits
from tests.unit.amqp.pair import T0, BarePeer

LIMITS = Limits(unfinished_timeout_ms=1_000, progress_bytes=500)


def opened(links: int = 1) -> BarePeer:
    peer = BarePeer(LIMITS)
    peer.begin()
    for handle in range(links):
        peer.attach_sender(f"in{handle}", handle=handle).accept()
    peer.replies()
    return peer


def part(peer: BarePeer, at: int, size: int, handle: int = 0, *, first: bool = False) -> None:
    """A frame of a message that goes on, after so many milliseconds."""
    peer.now = T0 + at
    transfer = Transfer(handle, handle, b"t", more=True) if first else Transfer(handle, more=True)
    assert peer.send(transfer, payload=b"x" * size) == []


def test_a_message_that_stays_unfinished_costs_its_link() -> None:
    peer = opened()
    part(peer, 0, 10, first=True)
    assert peer.core.next_deadline() == T0 + 1_000
    assert peer.core.tick(T0 + 999) == []
    (event,) = peer.core.tick(T0 + 1_000)
    assert isinstance(event, LinkDetached)
    detach = peer.reply(Detach)
    assert detach.error is not None and detach.error.condition == "com.microsoft:timeout"
    assert peer.core.usage.assembling_bytes == 0 and not peer.core.usage.unfinished


def test_a_large_message_on_a_slow_line_takes_as_long_as_it_takes() -> None:
    peer = opened()
    part(peer, 0, 300, first=True)
    for second in range(1, 20):
        part(peer, second * 900, 500)
        assert peer.core.tick(T0 + second * 900 + 899) == []
        assert peer.core.next_deadline() == T0 + second * 900 + 1_000
    (event,) = peer.send(Transfer(0), payload=b"end")
    assert isinstance(event, MessageReceived)
    assert len(event.delivery.payload) == 300 + 19 * 500 + 3
    assert not peer.core.usage.unfinished


def test_a_message_that_goes_on_by_drops_does_not_count_as_going_on() -> None:
    peer = opened()
    part(peer, 0, 10, first=True)
    for tenth in range(1, 10):
        part(peer, tenth * 100, 10)
    (event,) = peer.core.tick(T0 + 1_000)
    assert isinstance(event, LinkDetached)


def test_one_that_goes_on_does_not_cover_for_another_that_does_not() -> None:
    peer = opened(links=2)
    part(peer, 0, 10, handle=0, first=True)
    part(peer, 100, 10, handle=1, first=True)
    part(peer, 500, 600, handle=0)
    assert peer.core.next_deadline() == T0 + 1_100
    (event,) = peer.core.tick(T0 + 1_100)
    assert isinstance(event, LinkDetached) and event.link.name == "in1"
    assert peer.core.next_deadline() == T0 + 1_500


def test_a_message_that_is_given_up_by_its_sender_is_not_waited_for() -> None:
    peer = opened()
    part(peer, 0, 10, first=True)
    peer.send(Transfer(0, aborted=True))
    assert not peer.core.usage.unfinished
    assert peer.core.tick(T0 + 5_000) == []

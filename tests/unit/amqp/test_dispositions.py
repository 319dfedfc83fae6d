"""Verdicts in both directions, and how few frames they take."""

from collections.abc import Sequence

import pytest

from postbus.amqp.deliveries import DispositionRun, IncomingDelivery, known_in_range
from postbus.amqp.events import (
    Disposed,
    Event,
    MessageReceived,
    SessionEnded,
    SettledBySender,
)
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    RELEASED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    Accepted,
    Composite,
    DeliveryState,
    Disposition,
    Error,
    Flow,
    Modified,
    Received,
    Rejected,
    Transfer,
)
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from tests.unit.amqp.pair import BarePeer, ConnectionPair

TOP = 0xFFFFFFFF


def sent_to(peer: BarePeer, count: int) -> ReceiverLink:
    """Attach a link and let the peer send some messages on it, numbered from 0."""
    link = peer.attach_sender("in", handle=0)
    link.accept()
    peer.send(*(Transfer(0, number, b"t") for number in range(count)))
    peer.replies()
    return link


def sending(peer: BarePeer, handle: int, name: str = "out") -> SenderLink:
    link = peer.attach_receiver(name, handle=handle)
    link.accept()
    peer.send(Flow(0, 10_000, 0, 0, handle=handle, delivery_count=0, link_credit=10_000))
    peer.replies()
    return link


def ranges(replies: list[Composite]) -> list[tuple[int, int | None, DeliveryState | None]]:
    dispositions = [reply for reply in replies if isinstance(reply, Disposition)]
    assert len(dispositions) == len(replies)
    return [(d.first, d.last, d.state) for d in dispositions]


def told(event: Event) -> tuple[object, ...]:
    assert isinstance(event, Disposed)
    return event.link, event.deliveries, event.state, event.settled


def told_all(events: Sequence[Event]) -> list[tuple[object, ...]]:
    return [told(event) for event in events]


def test_consecutive_verdicts_of_one_kind_are_one_frame() -> None:
    peer = BarePeer()
    peer.begin()
    link = sent_to(peer, 6)
    full = Rejected(Error("amqp:resource-limit-exceeded", "full"))
    for delivery_id, state in enumerate([ACCEPTED, Accepted(), full, ACCEPTED, ACCEPTED]):
        link.settle(link.unsettled[delivery_id], state)  # type: ignore[arg-type]
    assert peer.core.pending_bytes > 0
    assert ranges(peer.replies()) == [(0, 1, ACCEPTED), (2, 2, full), (3, 4, ACCEPTED)]
    assert list(link.unsettled) == [5]
    assert peer.core.incoming_unsettled == 1


def test_verdicts_out_of_order_are_told_in_the_order_they_were_given() -> None:
    peer = BarePeer()
    peer.begin()
    link = sent_to(peer, 4)
    for delivery_id in (2, 3, 0, 1):
        link.settle(link.unsettled[delivery_id], ACCEPTED)
    assert ranges(peer.replies()) == [(2, 3, ACCEPTED), (0, 1, ACCEPTED)]


def test_a_verdict_is_given_once() -> None:
    peer = BarePeer()
    peer.begin()
    link = sent_to(peer, 1)
    (delivery,) = link.unsettled.values()
    link.settle(delivery, ACCEPTED)
    link.settle(delivery, RELEASED)
    assert ranges(peer.replies()) == [(0, 0, ACCEPTED)]

    # and a delivery that has the number of an earlier one is another
    peer.send(Transfer(0, 0, b"u"))
    link.settle(delivery, ACCEPTED)
    assert peer.replies() == []
    assert isinstance(link.unsettled[0], IncomingDelivery)


def test_a_run_of_verdicts_does_not_go_over_the_top() -> None:
    run = DispositionRun()
    assert run.extend(TOP - 1, ACCEPTED, True)
    assert run.extend(TOP, ACCEPTED, True)
    assert not run.extend(0, ACCEPTED, True)
    run.count = 0
    assert run.extend(0, ACCEPTED, True)
    assert not run.extend(1, ACCEPTED, False)
    assert not run.extend(1, None, True)
    assert run.extend(1, ACCEPTED, True)


def test_the_peers_verdict_waits_for_our_confirmation() -> None:
    # given a client in receiver settle mode second (wire §5)
    peer = BarePeer()
    peer.begin()
    link = sending(peer, 0)
    delivery = link.send(b"lock-token", b"body", context="message 1")
    peer.replies()

    # when it completes the message
    (event,) = peer.send(Disposition(ROLE_RECEIVER, 0, 0, settled=False, state=ACCEPTED))
    assert told(event) == (link, [delivery], ACCEPTED, False)
    assert delivery.context == "message 1"
    assert link.unsettled == 1

    # then the confirmation is a disposition of the sender, and the delivery is forgotten
    link.settle(delivery, ACCEPTED)
    confirmation = peer.reply(Disposition)
    assert confirmation.role is ROLE_SENDER and confirmation.settled
    assert (confirmation.first, confirmation.last, confirmation.state) == (0, 0, ACCEPTED)
    assert link.unsettled == 0
    link.settle(delivery, ACCEPTED)
    assert peer.replies() == []
    assert peer.send(Disposition(ROLE_RECEIVER, 0, settled=True, state=ACCEPTED)) == []


def test_confirmations_are_gathered_like_verdicts_and_apart_from_them() -> None:
    peer = BarePeer()
    peer.begin()
    incoming = sent_to(peer, 3)
    outgoing = sending(peer, 1)
    deliveries = [outgoing.send(b"t", b"") for _ in range(3)]
    peer.replies()
    for delivery_id, delivery in enumerate(deliveries):
        incoming.settle(incoming.unsettled[delivery_id], ACCEPTED)
        outgoing.settle(delivery, ACCEPTED)
    verdict, confirmation = peer.replies()
    assert isinstance(verdict, Disposition) and verdict.role is ROLE_RECEIVER
    assert isinstance(confirmation, Disposition) and confirmation.role is ROLE_SENDER
    assert (verdict.first, verdict.last) == (confirmation.first, confirmation.last) == (0, 2)


def test_a_range_is_told_to_each_link_it_touches_and_unknown_ids_are_ignored() -> None:
    peer = BarePeer()
    peer.begin()
    first, second = sending(peer, 0, "a"), sending(peer, 1, "b")
    a = [first.send(b"t", b""), first.send(b"t", b"")]
    b = [second.send(b"t", b"")]
    a.append(first.send(b"t", b""))
    state = Modified(delivery_failed=True)
    events = peer.send(Disposition(ROLE_RECEIVER, 1, 900, settled=True, state=state))
    assert told_all(events) == [(first, [a[1], a[2]], state, True), (second, b, state, True)]
    assert (first.unsettled, second.unsettled) == (1, 0)
    assert peer.send(Disposition(ROLE_RECEIVER, 1, 900, settled=True)) == []


def test_a_range_of_two_billion_ids_costs_no_more_than_what_is_known() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer, 0)
    deliveries = [link.send(b"t", b"") for _ in range(3)]
    (event,) = peer.send(Disposition(ROLE_RECEIVER, 0, 0x7FFFFFFF, settled=False, state=ACCEPTED))
    assert told(event) == (link, deliveries, ACCEPTED, False)


@pytest.mark.parametrize("last", [None, 0, 5])
def test_a_verdict_is_told_once_however_often_it_is_given(last: int | None) -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer, 0)
    delivery = link.send(b"t", b"")
    progress = Received(0, 0)
    assert peer.send(Disposition(ROLE_RECEIVER, 0, last, settled=False)) == []
    assert peer.send(Disposition(ROLE_RECEIVER, 0, last, settled=False, state=progress)) == []
    verdict = Disposition(ROLE_RECEIVER, 0, last, settled=False, state=ACCEPTED)
    assert told_all(peer.send(*[verdict] * 100)) == [(link, [delivery], ACCEPTED, False)]
    # a peer that settles after all, without waiting for us, is heard
    verdict.settled = True
    assert told_all(peer.send(*[verdict] * 100)) == [(link, [delivery], ACCEPTED, True)]


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        (TOP - 1, 1, [TOP - 1, TOP, 0, 1]),
        (TOP, TOP, [TOP]),
        (TOP, 0, [TOP, 0]),
        (TOP - 100, 100, [TOP - 1, TOP, 0, 1, 2]),
        (3, 100, []),
        (2, 3, [2]),
    ],
)
def test_ranges_are_found_over_the_top_of_the_serial_numbers(
    first: int, last: int, found: list[int]
) -> None:
    known = dict.fromkeys([TOP - 1, TOP, 0, 1, 2])
    assert known_in_range(known, first, last) == found


def test_a_range_that_ends_before_it_begins_ends_the_session() -> None:
    peer = BarePeer()
    session = peer.begin()
    (event,) = peer.send(Disposition(ROLE_RECEIVER, 5, 4, settled=True))
    assert isinstance(event, SessionEnded) and event.session is session
    assert event.error is not None and event.error.condition == "amqp:invalid-field"


def test_a_verdict_on_a_link_that_is_gone_is_ignored() -> None:
    peer = BarePeer()
    peer.begin()
    gone, stays = sending(peer, 0, "a"), sending(peer, 1, "b")
    lost = gone.send(b"t", b"")
    kept = stays.send(b"t", b"")
    gone.detach()
    peer.replies()
    assert peer.core.sessions[0].outgoing.unsettled == {1: kept}
    events = peer.send(Disposition(ROLE_RECEIVER, 0, 1, settled=True, state=ACCEPTED))
    assert told_all(events) == [(stays, [kept], ACCEPTED, True)]
    gone.settle(lost, ACCEPTED)
    assert peer.replies() == []


def test_a_client_settles_in_two_steps_and_hears_of_the_second() -> None:
    pair = ConnectionPair()
    pair.open()
    sender, receiver = pair.server_sends(pair.begin())
    receiver.grant(10)
    pair.exchange()
    for _ in range(3):
        sender.send(b"t", b"")
    pair.exchange()
    deliveries = [event.delivery for event in pair.at_client(MessageReceived)]
    for delivery in deliveries[:2]:
        receiver.settle(delivery, ACCEPTED, settled=False)
    pair.exchange()
    (disposed,) = pair.at_server(Disposed)
    assert len(disposed.deliveries) == 2 and not disposed.settled
    for sent in disposed.deliveries:
        sender.settle(sent, disposed.state)
    pair.exchange()
    assert pair.at_client(SettledBySender) == [SettledBySender(receiver, deliveries[:2], ACCEPTED)]
    assert list(receiver.unsettled.values()) == deliveries[2:]


def test_a_sender_may_settle_its_own_deliveries() -> None:
    peer = BarePeer()
    peer.begin()
    link = sent_to(peer, 2)
    deliveries = list(link.unsettled.values())
    assert peer.send(Disposition(ROLE_SENDER, 0, None, settled=False, state=RELEASED)) == []
    (event,) = peer.send(Disposition(ROLE_SENDER, 0, None, settled=True, state=RELEASED))
    assert event == SettledBySender(link, deliveries[:1], RELEASED)
    (event,) = peer.send(Disposition(ROLE_SENDER, 0, 5, settled=True))
    assert event == SettledBySender(link, deliveries[1:], None)
    assert peer.core.incoming_unsettled == 0
    assert peer.send(Disposition(ROLE_SENDER, 0, 5, settled=True)) == []
    link.settle(deliveries[0], ACCEPTED)
    peer.send(Transfer(0, 2, b"t"))
    assert peer.send(Disposition(ROLE_SENDER, 0, 1, settled=True)) == []
    assert peer.replies() == []


def test_sent_messages_are_settled_by_their_receiver_at_once() -> None:
    pair = ConnectionPair(server_limits=Limits(unsettled_incoming_max=10))
    pair.open()
    sender, receiver = pair.client_sends(pair.begin())
    receiver.grant(5)
    pair.exchange()
    sent = [sender.send(bytes([number]), b"") for number in range(5)]
    pair.exchange()
    for event in pair.at_server(MessageReceived):
        event.link.settle(event.delivery, ACCEPTED)
    pair.exchange()
    assert told_all(pair.at_client(Disposed)) == [(sender, sent, ACCEPTED, True)]
    assert sender.unsettled == 0

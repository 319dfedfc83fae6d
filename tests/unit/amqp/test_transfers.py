"""Messages in one frame and in many, whole and broken ones."""

import pytest

from postbus.amqp.connection import ConnectionState
from postbus.amqp.events import Event, LinkDetached, MessageReceived
from postbus.amqp.frames.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Open,
    Rejected,
    TransactionalState,
    Transfer,
)
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from tests.unit.amqp.pair import BarePeer, ConnectionPair, one_byte_at_a_time


def opened(limits: Limits | None = None) -> tuple[BarePeer, ReceiverLink]:
    """A peer with a link on which it may send."""
    peer = BarePeer(limits)
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    link.grant(100)
    peer.replies()
    return peer, link


def received(events: list[Event]) -> list[bytes]:
    return [event.delivery.payload for event in events if isinstance(event, MessageReceived)]


def rejection(peer: BarePeer) -> tuple[int, str]:
    """Take what the core has written, which is the rejection of one delivery."""
    disposition = peer.reply(Disposition)
    assert disposition.role is True and disposition.settled
    assert disposition.last == disposition.first
    assert isinstance(disposition.state, Rejected) and disposition.state.error is not None
    return disposition.first, disposition.state.error.condition


def detach_condition(peer: BarePeer) -> str:
    """Take what the core has written, which is a detach with an error."""
    detach = peer.reply(Detach)
    assert detach.error is not None
    return detach.error.condition


def test_a_message_in_one_frame_is_handed_on_with_all_that_came_with_it() -> None:
    peer, link = opened()
    transfer = Transfer(0, 7, b"tag", message_format=0x80013700, state=TransactionalState(b"txn"))
    (event,) = peer.send(transfer, payload=b"body")
    assert isinstance(event, MessageReceived) and event.link is link
    delivery = event.delivery
    assert (delivery.delivery_id, delivery.tag, delivery.payload) == (7, b"tag", b"body")
    assert delivery.message_format == 0x80013700
    assert not delivery.settled
    assert delivery.state == TransactionalState(b"txn")
    assert link.credit == 99 and link.delivery_count == 1
    assert peer.core.incoming_unsettled == 1
    assert peer.core.incoming_unsettled_bytes == delivery.size > len(b"body")


def test_a_settled_message_is_handed_on_and_forgotten() -> None:
    peer, link = opened()
    (event,) = peer.send(Transfer(0, 0, b"t", settled=True), payload=b"fire and forget")
    assert isinstance(event, MessageReceived) and event.delivery.settled
    assert peer.core.incoming_unsettled == 0
    link.settle(event.delivery, None)
    assert peer.replies() == []


def test_a_message_in_many_frames_is_put_together() -> None:
    peer, link = opened()
    assert peer.send(Transfer(0, 3, b"t", 0, more=True), payload=b"one ") == []
    # some clients say again which delivery it is, others do not
    assert peer.send(Transfer(0, 3, b"t", 0, more=True), payload=b"two ") == []
    (event,) = peer.send(Transfer(0), payload=b"three")
    assert isinstance(event, MessageReceived)
    assert event.delivery.payload == b"one two three"
    assert (event.delivery.delivery_id, event.delivery.tag) == (3, b"t")
    assert link.credit == 99 and link.delivery_count == 1
    assert peer.core.usage.assembling_bytes == 0


def test_messages_of_two_links_may_come_in_turns() -> None:
    peer, _ = opened()
    peer.attach_sender("other", handle=5).accept()
    peer.send(Transfer(0, 0, b"a", more=True), payload=b"a1")
    peer.send(Transfer(5, 1, b"b", more=True), payload=b"b1")
    assert received(peer.send(Transfer(0), payload=b"a2")) == [b"a1a2"]
    assert received(peer.send(Transfer(5), payload=b"b2")) == [b"b1b2"]


def test_settled_on_any_frame_of_a_message_settles_all_of_it() -> None:
    peer, _ = opened()
    peer.send(Transfer(0, 0, b"t", more=True))
    peer.send(Transfer(0, settled=True, more=True))
    (event,) = peer.send(Transfer(0), payload=b"x")
    assert isinstance(event, MessageReceived) and event.delivery.settled
    assert peer.core.incoming_unsettled == 0


@pytest.mark.parametrize("first", [True, False])
def test_an_aborted_message_is_dropped(first: bool) -> None:
    peer, link = opened()
    if not first:
        assert peer.send(Transfer(0, 0, b"t", more=True), payload=b"x" * 100) == []
    assert peer.send(Transfer(0, 0, b"t", aborted=True), payload=b"more") == []
    assert peer.core.usage.assembling_bytes == 0
    assert peer.core.incoming_unsettled == 0
    assert received(peer.send(Transfer(0, 1, b"u"), payload=b"next")) == [b"next"]
    assert link.delivery_count == 2
    assert peer.replies() == []


def test_a_message_without_a_body_is_one_too() -> None:
    peer, _ = opened()
    assert received(peer.send(Transfer(0, 0, b"t"))) == [b""]


def test_a_message_too_large_for_its_link_is_rejected_and_the_link_stays() -> None:
    peer, link = opened(Limits(message_size_max=10))
    assert received(peer.send(Transfer(0, 0, b"t"), payload=b"x" * 10)) == [b"x" * 10]
    assert peer.send(Transfer(0, 1, b"t"), payload=b"x" * 11) == []
    assert rejection(peer) == (1, "amqp:link:message-size-exceeded")
    assert link.attached and peer.core.usage.assembling_bytes == 0


def test_the_rest_of_a_message_that_grew_too_large_is_dropped_as_it_comes() -> None:
    peer, link = opened(Limits(message_size_max=10))
    peer.send(Transfer(0, 1, b"t", more=True), payload=b"x" * 6)
    assert peer.core.usage.assembling_bytes > 6
    peer.send(Transfer(0, more=True), payload=b"x" * 6)
    assert rejection(peer) == (1, "amqp:link:message-size-exceeded")
    assert peer.core.usage.assembling_bytes == 0
    assert peer.send(Transfer(0, more=True), payload=b"x" * 60_000) == []
    assert peer.send(Transfer(0), payload=b"x") == []
    assert peer.replies() == []
    assert received(peer.send(Transfer(0, 2, b"u"), payload=b"next")) == [b"next"]
    assert link.attached


def test_a_settled_message_that_is_too_large_costs_the_link() -> None:
    # There is no other way to tell its sender.
    peer, link = opened(Limits(message_size_max=10))
    (event,) = peer.send(Transfer(0, 1, b"t", settled=True), payload=b"x" * 11)
    assert isinstance(event, LinkDetached) and event.link is link
    assert detach_condition(peer) == "amqp:link:message-size-exceeded"


def test_unfinished_messages_are_bounded_over_all_links() -> None:
    peer, _ = opened(Limits(assembling_bytes_max=1000))
    other = peer.attach_sender("other", handle=1)
    other.accept()
    peer.replies()
    peer.send(Transfer(0, 0, b"a", more=True), payload=b"x" * 600)
    peer.send(Transfer(1, 1, b"b", more=True), payload=b"x" * 600)
    assert rejection(peer) == (1, "amqp:resource-limit-exceeded")
    assert received(peer.send(Transfer(0), payload=b"y")) == [b"x" * 600 + b"y"]
    peer.send(Transfer(1), payload=b"x")
    assert received(peer.send(Transfer(1, 2, b"c"), payload=b"next")) == [b"next"]


def test_one_unfinished_message_alone_may_have_all_that_its_link_allows() -> None:
    """However small the bound on many, a large message must be possible."""
    peer, _ = opened(Limits(assembling_bytes_max=1000, message_size_max=5000))
    for number in range(3):
        payload = b"x" * 4_000
        peer.send(Transfer(0, number, b"a", more=True), payload=payload[:2_000])
        assert received(peer.send(Transfer(0), payload=payload[2_000:])) == [payload]
    peer.send(Transfer(0, 3, b"a", more=True), payload=b"x" * 4_000)
    peer.send(Transfer(0), payload=b"x" * 1_001)
    assert rejection(peer) == (3, "amqp:link:message-size-exceeded")


def test_an_unfinished_message_goes_with_its_link() -> None:
    peer, link = opened()
    peer.send(Transfer(0, 0, b"a", more=True), payload=b"x" * 600)
    assert peer.core.usage.assembling_bytes > 0
    link.detach()
    assert peer.core.usage.assembling_bytes == 0


@pytest.mark.parametrize(
    "transfer",
    [
        Transfer(0, None, b"t"),
        Transfer(0, 1, None),
        Transfer(0, 1, b"t" * 33),
        Transfer(0, None, b"t", more=True),
    ],
    ids=["no id", "no tag", "long tag", "no id, more"],
)
def test_a_message_that_cannot_be_named_costs_the_link(transfer: Transfer) -> None:
    peer, link = opened()
    peer.send(Transfer(0, 0, b"t"))
    (event,) = peer.send(transfer)
    assert isinstance(event, LinkDetached) and event.link is link and event.closed
    assert detach_condition(peer) == "amqp:invalid-field"
    assert peer.core.state is ConnectionState.OPEN
    assert peer.core.incoming_unsettled == 0


def test_a_number_used_twice_at_once_stands_for_the_later_delivery() -> None:
    # Threads of the Python SDK do that on a management link.
    peer, link = opened()
    (first,) = peer.send(Transfer(0, 0, b"a"))
    (second,) = peer.send(Transfer(0, 0, b"b"))
    assert isinstance(first, MessageReceived) and isinstance(second, MessageReceived)
    assert peer.core.incoming_unsettled == 1
    assert isinstance(link, ReceiverLink)
    link.settle(first.delivery, Accepted())
    assert peer.core.incoming_unsettled == 1
    link.settle(second.delivery, Accepted())
    assert peer.core.incoming_unsettled == 0


def test_a_message_that_begins_inside_another_costs_the_link() -> None:
    peer, link = opened()
    peer.send(Transfer(0, 0, b"a", more=True))
    (event,) = peer.send(Transfer(0, 1, b"b"))
    assert isinstance(event, LinkDetached) and event.link is link
    assert detach_condition(peer) == "amqp:invalid-field"
    assert peer.core.usage.assembling_bytes == 0


def test_a_resumed_delivery_is_refused_by_name() -> None:
    peer, _ = opened()
    peer.send(Transfer(0, 0, b"a", resume=True))
    assert detach_condition(peer) == "amqp:not-implemented"


def test_a_message_is_cut_to_the_peers_frame_size() -> None:
    pair = ConnectionPair(client_limits=Limits(max_frame_size=512))
    pair.open()
    sender, receiver = pair.server_sends(pair.begin())
    receiver.grant(10)
    pair.exchange()
    body = bytes(range(256)) * 10
    before = len(pair.server_sent)
    sender.send(b"0123456789abcdef" * 2, (body[:100], body[100:]), message_format=5)
    pair.exchange()
    (event,) = pair.at_client(MessageReceived)
    assert event.delivery.payload == body
    assert (event.delivery.message_format, event.delivery.tag) == (5, b"0123456789abcdef" * 2)
    assert len(pair.server_sent) - before > len(body) + 7 * 20


def test_frames_are_no_larger_than_ours_even_if_the_peer_would_take_them() -> None:
    # The Node SDK sets no limit at all.
    peer = BarePeer(Limits(max_frame_size=1024), open_frame=Open("bare"))
    assert peer.core.outgoing_frame_max == 1024


def test_the_first_frame_says_what_follows_and_the_others_do_not() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin()
    link = peer.attach_receiver(handle=1)
    link.accept()
    session = peer.core.sessions[0]
    link.credit = 10
    session.outgoing.window = 100
    link.send(b"tag", b"x" * 900)
    transfers = [reply for reply in peer.replies() if isinstance(reply, Transfer)]
    assert [(t.delivery_id, t.delivery_tag, t.message_format) for t in transfers] == [
        (0, b"tag", 0),
        (None, None, None),
        (None, None, None),
    ]
    assert [t.more for t in transfers] == [True, True, False]


def test_a_large_message_may_be_settled_as_it_is_sent() -> None:
    pair = ConnectionPair(client_limits=Limits(max_frame_size=512))
    pair.open()
    sender, receiver = pair.server_sends(pair.begin())
    receiver.grant(1)
    pair.exchange()
    sender.send(b"t", b"x" * 1000, settled=True)
    pair.exchange()
    (event,) = pair.at_client(MessageReceived)
    assert event.delivery.settled and len(event.delivery.payload) == 1000
    assert sender.unsettled == 0 and receiver.unsettled == {}


def test_a_message_may_carry_a_state_and_a_context() -> None:
    pair = ConnectionPair()
    pair.open()
    sender, receiver = pair.client_sends(pair.begin())
    receiver.grant(1)
    pair.exchange()
    delivery = sender.send(b"t", b"body", context="mine", state=TransactionalState(b"txn"))
    assert (delivery.context, delivery.tag, delivery.link) == ("mine", b"t", sender)
    pair.exchange()
    (event,) = pair.at_server(MessageReceived)
    assert event.delivery.state == TransactionalState(b"txn")


def test_messages_survive_a_wire_that_carries_one_byte_at_a_time() -> None:
    limits = Limits(max_frame_size=512)
    pair = ConnectionPair(limits, limits, chunker=one_byte_at_a_time)
    pair.open()
    sender, receiver = pair.client_sends(pair.begin())
    receiver.grant(3)
    pair.exchange()
    bodies = [b"", b"small", b"large" * 300]
    for body in bodies:
        sender.send(b"t", body)
    pair.exchange()
    assert received(pair.server_events) == bodies


def test_credit_is_not_enforced() -> None:
    peer, link = opened()
    link.grant(0)
    assert received(peer.send(Transfer(0, 0, b"t"), payload=b"anyway")) == [b"anyway"]
    assert link.credit == -1


def test_attach_frames_do_not_count_as_transfers() -> None:
    peer, _ = opened()
    peer.send(Attach("again", 3, False))
    assert peer.replies() == []

"""Attaching, refusing and detaching, at once and late."""

import pytest

from postbus.amqp.events import CreditChanged, Event, LinkAttached, LinkDetached, MessageReceived
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    RCV_SECOND,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    Coordinator,
    Detach,
    Disposition,
    Error,
    Flow,
    Rejected,
    Source,
    Target,
    Transfer,
)
from postbus.amqp.limits import Limits
from postbus.amqp.link import LinkState
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from tests.unit.amqp.pair import BarePeer, ConnectionPair

NOT_FOUND = Error("amqp:not-found", "The messaging entity could not be found.")


def received(events: list[Event]) -> list[bytes]:
    return [event.delivery.payload for event in events if isinstance(event, MessageReceived)]


def test_the_answer_to_an_attach_echoes_its_terms() -> None:
    peer = BarePeer()
    peer.begin()
    asked = Attach(
        "in",
        9,
        ROLE_SENDER,
        rcv_settle_mode=RCV_SECOND,
        source=Source("sender-link"),
        target=Target("amqps://host/orders"),
        initial_delivery_count=7,
    )
    (event,) = peer.send(asked)
    assert isinstance(event, LinkAttached) and event.attach == asked
    link = event.link
    assert isinstance(link, ReceiverLink) and link.role == "receiver"
    assert (link.name, link.target, link.rcv_settle_mode) == ("in", asked.target, RCV_SECOND)

    assert link.accept(properties={"x": 1}, max_message_size=4096) == []
    answer = peer.reply(Attach)
    assert (answer.name, answer.handle, answer.role) == ("in", 9, ROLE_RECEIVER)
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (2, RCV_SECOND)
    assert (answer.source, answer.target) == (asked.source, asked.target)
    assert answer.initial_delivery_count is None
    assert (answer.max_message_size, answer.properties) == (4096, {"x": 1})

    # and the credit that follows counts from where the peer starts
    link.grant(100)
    flow = peer.reply(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (9, 7, 100)


def test_a_sending_link_says_where_it_starts_counting() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_receiver()
    assert isinstance(link, SenderLink) and link.role == "sender"
    link.accept(source=Source("orders", filter={}), initial_delivery_count=3)
    answer = peer.reply(Attach)
    assert answer.role is ROLE_SENDER
    assert answer.initial_delivery_count == 3
    assert answer.source == Source("orders", filter={})
    assert answer.max_message_size is None


def test_a_missing_source_or_target_comes_back_empty_but_there() -> None:
    peer = BarePeer()
    peer.begin()
    (event,) = peer.send(Attach("in", 0, ROLE_SENDER))
    assert isinstance(event, LinkAttached)
    event.link.accept()
    answer = peer.reply(Attach)
    assert answer.source == Source() and answer.target == Target()
    assert answer.max_message_size == Limits().message_size_max


def test_a_coordinator_is_echoed_as_one() -> None:
    peer = BarePeer()
    peer.begin()
    (event,) = peer.send(Attach("txn", 0, ROLE_SENDER, target=Coordinator()))
    assert isinstance(event, LinkAttached)
    event.link.accept()
    assert peer.reply(Attach).target == Coordinator()


@pytest.mark.parametrize(("limit", "known"), [(None, None), (0, None), (4096, 4096)])
def test_the_largest_message_the_peer_takes_is_known(limit: int | None, known: int | None) -> None:
    peer = BarePeer()
    peer.begin()
    (event,) = peer.send(Attach("out", 0, ROLE_RECEIVER, max_message_size=limit))
    assert isinstance(event, LinkAttached)
    assert event.link.peer_message_size_max == known


def test_a_refusal_is_an_attach_without_ends_and_a_detach() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_receiver("out", handle=5)
    link.refuse(NOT_FOUND)
    attach, detach = peer.replies()
    assert isinstance(attach, Attach)
    assert (attach.name, attach.handle, attach.role) == ("out", 5, ROLE_SENDER)
    assert (attach.source, attach.target, attach.initial_delivery_count) == (None, None, 0)
    assert detach == Detach(5, closed=True, error=NOT_FOUND)
    assert link.closed and not link.attached

    # and the peer's frames in flight, and its answer, are nobody's business any more
    assert peer.send(Flow(0, 10, 0, 0, handle=5, link_credit=10)) == []
    assert peer.send(Transfer(5, 0, b"t")) == []
    assert peer.send(Detach(5, closed=True)) == []
    assert peer.replies() == []
    assert peer.core.usage.handle_count == 0


def test_a_peer_that_never_answers_a_refusal_may_attach_there_again() -> None:
    # The Python SDK does not answer the detach of a refusal.
    peer = BarePeer()
    peer.begin()
    peer.attach_receiver(handle=1).refuse(NOT_FOUND)
    peer.replies()
    peer.attach_receiver(handle=1).accept()
    assert peer.reply(Attach).source == Source("orders")
    assert peer.core.usage.handle_count == 1


def test_a_client_learns_of_a_refusal_by_the_detach_alone() -> None:
    pair = ConnectionPair(accept_links=False)
    pair.open()
    session = pair.begin()
    links = [
        session.attach(ReceiverLink, Attach("r", 0, ROLE_RECEIVER, source=Source("x"))),
        session.attach(SenderLink, Attach("s", 0, ROLE_SENDER, target=Target("x"))),
    ]
    pair.exchange()
    for event in pair.at_server(LinkAttached):
        event.link.refuse(NOT_FOUND)
    pair.exchange()
    assert pair.client_events[-2:] == [LinkDetached(link, NOT_FOUND, True) for link in links]
    assert pair.at_client(LinkAttached) == []
    assert session.links == []
    assert pair.server.usage.handle_count == pair.client.usage.handle_count == 0


def test_other_links_of_a_session_work_while_one_waits_for_its_answer() -> None:
    peer = BarePeer()
    peer.begin()
    waiting = peer.attach_receiver("waiting", handle=0)
    ready = peer.attach_sender("ready", handle=1)
    ready.accept()
    assert peer.reply(Attach).name == "ready"
    assert received(peer.send(Transfer(1, 0, b"t"), payload=b"works")) == [b"works"]

    # and credit given in the meantime counts once it is answered
    assert peer.send(Flow(None, 10, 0, 0, handle=0, delivery_count=0, link_credit=4)) == []
    assert waiting.sendable == 0
    assert waiting.accept(initial_delivery_count=20) == [CreditChanged(waiting)]
    assert peer.reply(Attach).name == "waiting"
    assert waiting.sendable == 4


def test_messages_that_come_before_the_answer_wait_for_it() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    assert peer.send(Transfer(0, 0, b"a"), payload=b"first") == []
    assert peer.send(Transfer(0, 1, b"b", settled=True), payload=b"settled") == []
    assert peer.send(Transfer(0, 2, b"c", more=True), payload=b"in ") == []
    assert peer.core.usage.assembling_bytes > 0
    events = link.accept()
    assert received(events) == [b"first", b"settled"]
    assert received(peer.send(Transfer(0), payload=b"two")) == [b"in two"]
    assert peer.core.usage.assembling_bytes == 0


def test_an_early_message_larger_than_the_link_takes_is_rejected_when_that_is_known() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    peer.send(Transfer(0, 0, b"a"), payload=b"x" * 11)
    peer.send(Transfer(0, 1, b"a"), payload=b"x" * 10)
    assert received(link.accept(max_message_size=10)) == [b"x" * 10]
    attach, disposition = peer.replies()
    assert isinstance(attach, Attach)
    assert isinstance(disposition, Disposition) and disposition.first == 0
    assert isinstance(disposition.state, Rejected) and disposition.state.error is not None
    assert disposition.state.error.condition == "amqp:link:message-size-exceeded"
    assert peer.core.incoming_unsettled == 1


def test_a_link_that_floods_before_it_is_answered_is_refused() -> None:
    peer = BarePeer(Limits(early_deliveries_max=2))
    peer.begin()
    link = peer.attach_sender()
    events = peer.send(*(Transfer(0, number, b"t") for number in range(4)), payload=b"x" * 9)
    (event,) = events
    assert isinstance(event, LinkDetached) and event.link is link
    assert event.error is not None
    assert event.error.condition == "amqp:link:transfer-limit-exceeded"
    attach, detach = peer.replies()
    assert isinstance(attach, Attach) and attach.target is None
    assert isinstance(detach, Detach) and detach.error == event.error
    assert link.accept() == []
    assert peer.core.incoming_unsettled == peer.core.usage.assembling_bytes == 0


def test_early_messages_beyond_the_bytes_kept_for_them_are_rejected() -> None:
    peer = BarePeer(Limits(assembling_bytes_max=200))
    peer.begin()
    link = peer.attach_sender()
    peer.send(*(Transfer(0, number, b"t") for number in range(3)), payload=b"x" * 60)
    disposition = peer.reply(Disposition)
    assert (disposition.first, disposition.last) == (2, 2)
    assert isinstance(disposition.state, Rejected) and disposition.state.error is not None
    assert disposition.state.error.condition == "amqp:resource-limit-exceeded"
    assert len(received(link.accept())) == 2


@pytest.mark.parametrize("closed", [True, False])
def test_a_peer_may_lose_patience_before_its_link_is_answered(closed: bool) -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    peer.send(Transfer(0, 0, b"t"))
    assert peer.send(Detach(0, closed=closed)) == [LinkDetached(link, None, closed)]
    attach, detach = peer.replies()
    assert isinstance(attach, Attach) and attach.source is None and attach.target is None
    assert detach == Detach(0, closed=closed)
    assert link.accept() == []
    link.refuse(NOT_FOUND)
    assert peer.replies() == []
    assert peer.core.usage.pending_links == 0


def test_a_link_of_ours_is_gone_when_the_peer_has_answered_its_detach() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()
    forced = Error("amqp:link:detach-forced", "idle")
    link.detach(forced)
    assert peer.reply(Detach) == Detach(0, closed=True, error=forced)
    assert link.closed and not link.attached

    # frames in flight are dropped
    assert peer.send(Transfer(0, 0, b"t"), Flow(None, 1, 0, 1, handle=0, echo=True)) == []
    assert peer.replies() == []
    assert peer.send(Detach(0, closed=True)) == [LinkDetached(link, None, closed=True)]
    assert link.state is LinkState.DETACHED
    assert peer.replies() == []


def test_a_handle_we_freed_may_be_ours_again_before_the_peer_has_answered() -> None:
    peer = BarePeer()
    session = peer.begin()
    first = peer.attach_sender("a", handle=0)
    first.accept()
    first.detach()
    second = session.attach(SenderLink, Attach("b", 0, ROLE_SENDER))
    assert second.handle == 0
    peer.send(Detach(0, closed=True))
    assert session.links == [second]


def test_detaching_an_unanswered_link_refuses_it() -> None:
    peer = BarePeer()
    peer.begin()
    peer.attach_sender("in", handle=0).detach(NOT_FOUND)
    attach, detach = peer.replies()
    assert isinstance(attach, Attach) and attach.target is None
    assert detach == Detach(0, closed=True, error=NOT_FOUND)
    peer.attach_sender("in", handle=1).detach()
    _, detach = peer.replies()
    assert isinstance(detach, Detach) and detach.error is not None
    assert detach.error.condition == "amqp:link:detach-forced"


def test_both_ends_detach_at_once() -> None:
    pair = ConnectionPair()
    pair.open()
    sender, receiver = pair.client_sends(pair.begin())
    sender.detach()
    receiver.detach()
    pair.exchange()
    assert len(pair.at_client(LinkDetached)) == len(pair.at_server(LinkDetached)) == 1
    assert pair.client.usage.link_count == pair.server.usage.link_count == 0


def test_a_client_may_detach_before_its_attach_is_answered() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.begin()
    link = session.attach(SenderLink, Attach("s", 0, ROLE_SENDER, target=Target("x")))
    link.detach()
    pair.exchange()
    assert pair.client_events[-1] == LinkDetached(link, None, closed=True)
    assert pair.at_client(LinkAttached) == []
    assert pair.client.usage.handle_count == 0


def test_a_session_may_end_before_a_link_of_it_is_answered() -> None:
    pair = ConnectionPair(accept_links=False)
    pair.open()
    session = pair.begin()
    link = session.attach(SenderLink, Attach("s", 0, ROLE_SENDER, target=Target("x")))
    link.detach()
    session.end()
    pair.exchange()
    assert link.state is LinkState.DETACHED
    assert pair.client.usage.link_count == 0


def test_settlements_of_the_turn_go_out_before_the_detach() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.send(Transfer(0, 0, b"t"))
    (delivery,) = link.unsettled.values()
    link.settle(delivery, ACCEPTED)
    link.detach()
    assert [type(reply) for reply in peer.replies()] == [Attach, Disposition, Detach]


def test_what_is_settled_after_the_peer_has_detached_is_not_told() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.send(Transfer(0, 0, b"t"))
    (delivery,) = link.unsettled.values()
    peer.send(Detach(0))
    peer.replies()
    link.settle(delivery, ACCEPTED)
    assert peer.replies() == []
    assert peer.core.incoming_unsettled == 0


def test_a_transfer_against_the_direction_of_a_link_costs_the_link() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_receiver(handle=1)
    link.accept()
    peer.replies()
    (event,) = peer.send(Transfer(1, 0, b"t"))
    assert isinstance(event, LinkDetached) and event.link is link
    detach = peer.reply(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:not-allowed"
    # what else is in flight is dropped
    assert peer.send(Transfer(1, 1, b"t")) == []


def test_the_owner_may_hang_something_on_links_and_sessions() -> None:
    peer = BarePeer()
    session = peer.begin()
    link = peer.attach_receiver()
    session.owner = link.owner = "gateway"
    assert link.session.owner == "gateway"


def test_settle_modes_of_a_receive_and_delete_link_are_kept() -> None:
    pair = ConnectionPair()
    pair.open()
    sender, receiver = pair.server_sends(pair.begin(), snd_settle_mode=SND_SETTLED)
    assert sender.snd_settle_mode == receiver.snd_settle_mode == SND_SETTLED

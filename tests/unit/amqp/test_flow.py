"""Credit, drain, echo, and the window of a session."""

import pytest

from postbus.amqp.events import CreditChanged, Disposed, Drained, MessageReceived
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    Flow,
    Source,
    Transfer,
)
from postbus.amqp.limits import Limits
from postbus.amqp.sending import SenderLink
from tests.unit.amqp.pair import BarePeer, ConnectionPair

TOP = 0xFFFFFFFF


def sending(
    peer: BarePeer,
    handle: int = 0,
    count: int = 0,
    channel: int = 0,
) -> SenderLink:
    """Attach and accept a link on which the core sends."""
    link = peer.attach_receiver(f"out-{handle}", handle=handle, channel=channel)
    link.accept(initial_delivery_count=count)
    peer.replies()
    return link


def grant(link: int, credit: int | None, count: int | None = 0, window: int = 1000) -> Flow:
    return Flow(0, window, 0, 0, handle=link, delivery_count=count, link_credit=credit)


def sizes(replies: list[tuple[int, Composite, bytes]]) -> list[int]:
    return [len(payload) for _, reply, payload in replies if isinstance(reply, Transfer)]


def test_credit_is_what_the_peer_grants_less_what_is_on_its_way() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    assert peer.send(grant(0, 5)) == [CreditChanged(link)]
    assert link.credit == link.sendable == 5
    link.send(b"a", b"1")
    link.send(b"b", b"2")
    assert link.credit == 3

    # a grant that has seen only one of the two counts the other
    peer.send(grant(0, 10, count=1))
    assert link.credit == 9
    # a smaller one takes unused credit back
    peer.send(grant(0, 1, count=2))
    assert link.credit == 1
    peer.send(grant(0, 0, count=2))
    assert link.credit == link.sendable == 0
    with pytest.raises(ValueError, match="may not send"):
        link.send(b"c", b"3")


def test_credit_counts_over_the_top_of_the_serial_numbers() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer, count=TOP)
    peer.send(grant(0, 3, count=TOP))
    link.send(b"a", b"1")
    link.send(b"b", b"2")
    assert link.delivery_count == 1
    peer.send(grant(0, 3, count=TOP))
    assert link.credit == 1
    peer.send(grant(0, 3, count=0))
    assert link.credit == 2


def test_a_peer_that_has_seen_more_than_was_sent_gets_no_more_than_it_asks_for() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    peer.send(grant(0, 3, count=100))
    assert link.credit == 3


def test_a_flow_without_credit_leaves_it_as_it_is() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    peer.send(grant(0, 3, count=None))
    peer.send(grant(0, None))
    assert link.credit == 3


def test_drained_credit_is_given_back_in_one_flow() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    drain = grant(0, 10)
    drain.drain = drain.echo = True
    assert peer.send(drain) == [CreditChanged(link)]
    assert link.drain
    # an echo would show credit that is still there
    assert peer.replies() == []
    link.send(b"a", b"last")
    link.drained()
    transfer, flow = peer.replies()
    assert isinstance(transfer, Transfer)
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain, flow.echo) == (10, 0, True, False)
    assert link.credit == 0 and not link.drain
    link.drained()
    assert peer.replies() == []


def test_draining_a_link_without_credit_is_answered_too() -> None:
    # The Python SDK drains like this when it closes a receiver.
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    peer.send(Flow(0, 10, 0, 0, handle=0, delivery_count=0, link_credit=0, drain=True))
    link.drained()
    flow = peer.reply(Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (0, 0, True)


def test_a_drain_the_peer_takes_back_needs_no_answer() -> None:
    peer = BarePeer()
    peer.begin()
    link = sending(peer)
    peer.send(Flow(0, 10, 0, 0, handle=0, delivery_count=0, link_credit=5, drain=True))
    peer.send(grant(0, 5))
    link.drained()
    assert peer.replies() == []
    assert link.credit == 5


def test_an_echo_is_answered_for_a_link_and_for_the_session() -> None:
    peer = BarePeer()
    peer.begin()
    sending(peer, handle=0)
    receiving = peer.attach_sender("in", handle=1)
    receiving.accept()
    receiving.grant(8)
    peer.replies()

    peer.send(Flow(0, 10, 0, 0, handle=0, delivery_count=0, link_credit=4, echo=True))
    flow = peer.reply(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (0, 0, 4)
    peer.send(Flow(0, 10, 0, 0, handle=1, delivery_count=0, echo=True))
    flow = peer.reply(Flow)
    assert (flow.handle, flow.delivery_count, flow.link_credit) == (1, 0, 8)
    peer.send(Flow(0, 10, 0, 0, echo=True))
    assert peer.reply(Flow).handle is None


def test_a_thousand_echoes_in_a_turn_are_one_answer() -> None:
    peer = BarePeer()
    peer.begin()
    sending(peer)
    echo = Flow(0, 10, 0, 0, handle=0, delivery_count=0, link_credit=4, echo=True)
    peer.send(*[echo] * 1000)
    assert peer.core.pending_bytes == 0
    assert peer.reply(Flow).link_credit == 4


def test_an_echo_for_an_unanswered_link_is_answered_by_the_session_alone() -> None:
    peer = BarePeer()
    peer.begin()
    peer.attach_receiver(handle=0)
    peer.attach_sender(handle=1)
    peer.send(Flow(0, 10, 0, 0, handle=0, link_credit=4, echo=True))
    assert peer.reply(Flow).handle is None
    peer.send(Flow(0, 10, 0, 0, handle=1, link_credit=4, echo=True))
    assert peer.reply(Flow).handle is None


def test_a_sender_may_send_flows_and_they_do_not_change_what_it_was_granted() -> None:
    # The Python SDK sends one right after its attach.
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    link.grant(100)
    peer.replies()
    flow = Flow(0, 10, 0, 0, handle=0, delivery_count=0, link_credit=10_000)
    assert peer.send(flow) == []
    assert link.credit == 100
    peer.send(Transfer(0, 0, b"t"))
    flow.delivery_count = 0
    peer.send(flow)
    assert link.credit == 99 and link.delivery_count == 1


def test_a_sender_that_skips_ahead_uses_its_credit_up() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    link.grant(5)
    peer.send(Flow(0, 10, 0, 0, handle=0, delivery_count=3))
    assert (link.delivery_count, link.credit) == (3, 2)
    peer.send(Flow(0, 10, 0, 0, handle=0, delivery_count=1000))
    assert (link.delivery_count, link.credit) == (1000, 0)


def test_grants_of_a_turn_are_one_flow_and_the_same_grant_is_none() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.grant(7)
    link.request_drain()
    assert link.credit == 0
    link.accept()
    link.grant(10)
    link.grant(20)
    _, flow = peer.replies()
    assert isinstance(flow, Flow) and flow.link_credit == 20
    link.grant(20)
    assert peer.replies() == []


def test_credit_below_zero_is_taken_and_told_as_none() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()
    peer.send(Transfer(0, 0, b"a"), Transfer(0, 1, b"b"))
    assert link.credit == -2
    peer.send(Flow(0, 10, 0, 0, handle=0, echo=True))
    flow = peer.reply(Flow)
    assert (flow.delivery_count, flow.link_credit) == (2, 0)


def test_a_client_drains_a_link_and_learns_when_it_is_dry() -> None:
    pair = ConnectionPair()
    pair.open()
    sender, receiver = pair.server_sends(pair.begin())
    receiver.grant(10)
    pair.exchange()
    sender.send(b"1", b"only one")
    receiver.request_drain()
    pair.exchange()
    assert sender.drain
    sender.drained()
    pair.exchange()
    assert receiver.credit == sender.credit == 0
    assert receiver.delivery_count == sender.delivery_count == 10
    events = [type(event) for event in pair.client_events[-2:]]
    assert events == [MessageReceived, Drained]

    # and goes on as usual
    receiver.grant(1)
    pair.exchange()
    assert sender.sendable == 1 and not sender.drain
    sender.send(b"2", b"another")
    pair.exchange()
    assert receiver.credit == 0 and len(pair.at_client(Drained)) == 1


def test_a_message_larger_than_the_window_goes_on_when_it_opens() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin(window=2)
    link = sending(peer)
    peer.send(grant(0, 10, window=2))
    assert link.sendable == 2
    delivery = link.send(b"a", b"x" * 416 * 4)
    assert delivery.delivery_id == 0
    assert link.sendable == 0
    assert peer.core.pending_bytes > 416 * 2
    assert sizes(peer.sent()) == [416, 416]
    assert peer.core.pending_bytes == 416 * 2

    assert peer.send(Flow(2, 1, 0, 0)) == []
    assert sizes(peer.sent()) == [416]
    assert link.sendable == 0
    assert peer.send(Flow(3, 5, 0, 0)) == [CreditChanged(link)]
    assert sizes(peer.sent()) == [416]
    assert peer.core.pending_bytes == 0
    assert link.sendable == 4


def test_deliveries_are_numbered_in_the_order_they_reach_the_wire() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin(window=1)
    first = sending(peer, handle=0)
    second = sending(peer, handle=1)
    peer.send(grant(0, 10, window=1), grant(1, 10, window=1))
    stuck = first.send(b"a", b"x" * 1000)
    waiting = second.send(b"b", (b"1", b"2"))
    assert (stuck.delivery_id, waiting.delivery_id) == (0, -1)
    second.settle(waiting, ACCEPTED)

    # a link that goes away takes what it had not sent with it, and leaves no gap
    second.detach()
    kept = first.send(b"c", b"3")
    peer.send(Flow(1, 10, 0, 0))
    assert kept.delivery_id == 1
    transfers = [reply for reply in peer.replies() if isinstance(reply, Transfer)]
    assert [transfer.delivery_id for transfer in transfers] == [0, None, None, 1]
    assert peer.core.pending_bytes == 0


def test_everything_unsent_goes_with_the_session() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    session = peer.begin(window=0)
    link = sending(peer)
    peer.send(grant(0, 10, window=0))
    link.send(b"a", b"x" * 1000)
    assert peer.core.pending_bytes == 1000
    session.end()
    peer.replies()
    assert peer.core.pending_bytes == 0


def test_what_a_blocked_link_has_to_say_waits_for_what_it_has_to_send() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin(window=1)
    link = sending(peer)
    other = sending(peer, handle=1)
    peer.send(grant(1, 5, window=1))
    peer.send(Flow(0, 1, 0, 0, handle=0, delivery_count=0, link_credit=5, drain=True))
    link.send(b"a", b"x" * 600)
    link.drained()
    assert [type(reply) for reply in peer.replies()] == [Transfer]
    peer.send(Flow(1, 1, 0, 0, handle=1, delivery_count=0, link_credit=5, echo=True))
    assert [type(reply) for reply in peer.replies()] == [Transfer, Flow, Flow]
    assert (link.credit, other.credit) == (0, 5)


def test_a_drained_link_says_so_as_soon_as_its_last_frame_has_taken_the_last_of_the_window() -> (
    None
):
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin(window=1)
    link = sending(peer)
    peer.send(Flow(0, 1, 0, 0, handle=0, delivery_count=0, link_credit=5, drain=True))
    link.send(b"a", b"x" * 600)
    link.drained()
    peer.replies()
    peer.send(Flow(1, 1, 0, 0))
    assert [type(reply) for reply in peer.replies()] == [Transfer, Flow]


def test_every_link_with_credit_hears_of_a_window_that_opens() -> None:
    peer = BarePeer()
    peer.begin(window=0)
    first = sending(peer, handle=0)
    second = sending(peer, handle=1)
    sending(peer, handle=2)
    peer.send(grant(0, 1, window=0), grant(1, 1, window=0))
    assert first.sendable == second.sendable == 0
    assert peer.send(grant(0, 1, window=5)) == [CreditChanged(first), CreditChanged(second)]
    assert first.sendable == 1
    assert peer.send(Flow(0, 6, 0, 0)) == []


def test_a_peer_that_opens_and_shuts_its_window_all_the_time_is_heard_once_a_turn() -> None:
    peer = BarePeer()
    peer.begin()
    first = sending(peer, handle=0)
    second = sending(peer, handle=1)
    peer.send(grant(0, 1), grant(1, 1))
    shut_and_open = [Flow(0, 0, 0, 0), Flow(0, 5, 0, 0), grant(0, 2)]
    for _ in range(2):
        events = peer.send(*shut_and_open * 100)
        assert events == [CreditChanged(first), CreditChanged(second)]
    assert first.credit == 2


def test_a_window_is_counted_over_the_top_of_the_serial_numbers() -> None:
    peer = BarePeer()
    session = peer.begin()
    session.outgoing.next_transfer_id = session.outgoing.next_delivery_id = TOP
    link = sending(peer)
    peer.send(grant(0, 10))
    deliveries = [link.send(b"t", b"") for _ in range(3)]
    assert [delivery.delivery_id for delivery in deliveries] == [TOP, 0, 1]
    assert session.outgoing.next_transfer_id == 2
    peer.send(Flow(TOP, 5, 0, 0))
    assert session.outgoing.window == 2
    # a peer that has seen more than was sent has nothing on its way
    peer.send(Flow(7, 5, 0, 0))
    assert session.outgoing.window == 5


def test_no_more_than_the_node_sdk_can_hold_is_unsettled_in_a_session() -> None:
    peer = BarePeer(Limits(unsettled_outgoing_max=3))
    peer.begin()
    first = sending(peer, handle=0)
    second = sending(peer, handle=1)
    peer.send(grant(0, 10), grant(1, 10))
    for number in range(2):
        first.send(bytes([number]), b"")
    second.send(b"3", b"")
    assert first.sendable == second.sendable == 0
    assert (first.unsettled, second.unsettled) == (2, 1)

    # settling one makes room for all links of the session, and they hear of it
    events = peer.send(Disposition(ROLE_RECEIVER, 0, settled=True, state=ACCEPTED))
    assert [type(event) for event in events] == [Disposed, CreditChanged, CreditChanged]
    assert first.sendable == second.sendable == 1
    assert first.unsettled == 1


def test_settled_messages_take_no_room_among_the_unsettled() -> None:
    peer = BarePeer(Limits(unsettled_outgoing_max=1))
    peer.begin()
    peer.send(Attach("r", 0, ROLE_RECEIVER, snd_settle_mode=SND_SETTLED, source=Source("orders")))
    (link,) = peer.core.sessions[0].senders()
    link.accept()
    peer.send(grant(0, 10))
    for _ in range(3):
        link.send(b"t", b"", settled=True)
    assert link.sendable == 7
    assert link.unsettled == 0 and link.sent_count == 3


def test_a_session_level_flow_without_echo_says_nothing_to_the_owner() -> None:
    peer = BarePeer()
    peer.begin()
    sending(peer)
    assert peer.send(Flow(0, 10, 0, 0)) == []
    assert peer.replies() == []


def test_a_flow_that_was_due_is_dropped_with_its_link() -> None:
    peer = BarePeer(Limits(max_frame_size=512))
    peer.begin(window=0)
    link = sending(peer)
    peer.send(grant(0, 5, window=0))
    link.send(b"a", b"body")
    peer.send(Flow(0, 0, 0, 0, handle=0, delivery_count=0, link_credit=5, echo=True))
    link.detach()
    assert [type(reply) for reply in peer.replies()] == [Detach]
    peer.send(Flow(0, 10, 0, 0))
    assert peer.replies() == []


def test_a_begin_that_shuts_the_window_holds_everything_back() -> None:
    peer = BarePeer()
    peer.send(Begin(None, 0, 0, 0))
    link = sending(peer)
    peer.send(Flow(None, 0, 0, 0, handle=0, delivery_count=0, link_credit=3))
    assert link.credit == 3 and link.sendable == 0


def test_closing_drops_what_waits_for_the_window() -> None:
    peer = BarePeer()
    peer.begin(window=0)
    link = sending(peer)
    peer.send(grant(0, 3, window=0))
    link.send(b"t", b"never")
    peer.core.close()
    assert [type(reply) for reply in peer.replies()] == [Close]
    assert peer.core.pending_bytes == 0


def test_an_attach_of_ours_counts_from_its_own_start() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.begin()
    attach = Attach("s", 0, ROLE_SENDER, initial_delivery_count=TOP)
    sender = session.attach(SenderLink, attach)
    pair.exchange()
    (receiver,) = pair.server.sessions[0].links
    assert receiver.delivery_count == sender.delivery_count == TOP

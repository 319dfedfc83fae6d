"""Beginning and ending, handles, and the bounds of a session."""

import pytest

from postbus.amqp.events import (
    Closed,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SessionBegun,
    SessionEnded,
)
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    ROLE_SENDER,
    Attach,
    Begin,
    Close,
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
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.session import SessionState
from tests.unit.amqp.pair import BarePeer, ConnectionPair


def ending_error(peer: BarePeer) -> Error:
    """Take what the core has written, which ends in an end with an error."""
    end = peer.replies()[-1]
    assert isinstance(end, End) and end.error is not None
    return end.error


def test_a_peer_ends_a_session_and_its_channel_is_free_again() -> None:
    peer = BarePeer()
    session = peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()
    error = Error("amqp:internal-error", "sorry")
    assert peer.send(End(error)) == [SessionEnded(session, error)]
    assert peer.reply(End).error is None
    assert session.state is SessionState.ENDED
    assert session.links == [link] and link.closed
    assert peer.core.sessions == []
    assert peer.begin() is not session


def test_our_end_is_complete_when_the_peer_has_answered_it() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.begin()
    _, receiver = pair.client_sends(session)
    server_session = receiver.session
    server_session.end(Error("amqp:resource-limit-exceeded", "enough"))
    assert pair.at_server(SessionEnded) == []
    pair.exchange()
    assert pair.at_server(SessionEnded) == [SessionEnded(server_session, None)]
    (ended,) = pair.at_client(SessionEnded)
    assert ended.session is session and ended.error is not None
    server_session.end()
    assert pair.server.data_to_send() == b""


def test_sessions_end_on_both_sides_at_once() -> None:
    pair = ConnectionPair()
    pair.open()
    session = pair.begin()
    pair.server.sessions[0].end()
    session.end()
    pair.exchange()
    assert len(pair.at_server(SessionEnded)) == len(pair.at_client(SessionEnded)) == 1
    assert pair.server.sessions == pair.client.sessions == []


def test_the_window_and_the_number_of_handles_are_told_in_begin() -> None:
    peer = BarePeer(Limits(incoming_window=123, handle_max=45))
    peer.send(Begin(None, 0, 1, 1))
    begin = peer.reply(Begin)
    assert (begin.incoming_window, begin.handle_max) == (123, 45)


def test_an_attach_on_a_handle_in_use_ends_the_session() -> None:
    peer = BarePeer()
    session = peer.begin()
    peer.attach_sender(handle=4)
    (event,) = peer.send(Attach("other", 4, ROLE_SENDER))
    assert isinstance(event, SessionEnded) and event.session is session
    assert ending_error(peer).condition == "amqp:session:handle-in-use"
    assert peer.core.usage.pending_links == 0


@pytest.mark.parametrize(
    "performative", [Transfer(3, 0, b"t"), Flow(None, 1, 0, 1, handle=3), Detach(3)]
)
def test_a_frame_for_a_handle_nobody_attached_ends_the_session(
    performative: Transfer | Flow | Detach,
) -> None:
    peer = BarePeer()
    peer.begin()
    peer.send(performative)
    assert ending_error(peer).condition == "amqp:session:unattached-handle"


def test_settlements_of_the_turn_go_out_before_the_end() -> None:
    peer = BarePeer()
    session = peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.send(Transfer(0, 0, b"t"))
    peer.replies()
    (delivery,) = link.unsettled.values()
    link.settle(delivery, ACCEPTED)
    (event,) = peer.send(Detach(77))
    assert isinstance(event, SessionEnded) and event.session is session
    assert [type(reply) for reply in peer.replies()] == [Disposition, End]


def test_a_handle_above_the_highest_closes_the_connection() -> None:
    peer = BarePeer(Limits(handle_max=3))
    peer.begin()
    peer.attach_sender(handle=3)
    (event,) = peer.send(Attach("other", 4, ROLE_SENDER))
    assert isinstance(event, Closed)
    close = peer.replies()[-1]
    assert isinstance(close, Close) and close.error is not None
    assert close.error.condition == "amqp:connection:framing-error"


def test_a_peer_with_few_handles_of_its_own_gets_no_more_links_than_these() -> None:
    peer = BarePeer()
    peer.send(Begin(None, 0, 10, 10, handle_max=1))
    peer.replies()
    assert peer.attach_sender("a", handle=7).handle == 0
    assert peer.attach_sender("b", handle=0).handle == 1
    peer.send(Attach("c", 9, ROLE_SENDER))
    assert ending_error(peer).condition == "amqp:resource-limit-exceeded"


def test_a_handle_is_free_again_after_its_link_was_detached() -> None:
    peer = BarePeer()
    peer.begin()
    first = peer.attach_sender(handle=2)
    first.accept()
    peer.send(Detach(2, closed=True))
    second = peer.attach_sender(handle=2)
    assert second is not first and second.handle == 2


def test_links_beyond_what_a_connection_may_have_are_refused_one_by_one() -> None:
    peer = BarePeer(Limits(links_max=2))
    peer.begin()
    peer.attach_sender("a", handle=0).accept()
    peer.attach_sender("b", handle=1).accept()
    peer.replies()
    assert peer.send(Attach("c", 2, ROLE_SENDER, source=Source("x"), target=Target("y"))) == []
    attach, detach = peer.replies()
    assert isinstance(attach, Attach) and attach.source is None and attach.target is None
    assert isinstance(detach, Detach) and detach.error is not None
    assert detach.error.condition == "amqp:resource-limit-exceeded"

    # and there is room again when one of them is gone
    peer.send(Detach(0, closed=True), Detach(2, closed=True))
    assert peer.attach_sender("d", handle=2).name == "d"
    assert peer.core.usage.link_count == 2


def test_a_peer_that_attaches_on_and_on_and_never_detaches_loses_the_session() -> None:
    peer = BarePeer(Limits(links_max=2))
    peer.begin()
    attaches = [Attach(str(handle), handle, ROLE_SENDER) for handle in range(5)]
    peer.send(*attaches)
    assert ending_error(peer).condition == "amqp:resource-limit-exceeded"
    assert peer.core.usage.handle_count == peer.core.usage.link_count == 0


def test_links_that_wait_for_an_answer_are_bounded_over_all_sessions() -> None:
    peer = BarePeer(Limits(pending_links_max=2))
    peer.begin(0)
    peer.begin(1)
    first = peer.attach_sender("a", channel=0)
    peer.attach_sender("b", channel=1)
    events = peer.send(Attach("c", 1, ROLE_SENDER), channel=1)
    assert events == []
    assert peer.core.usage.pending_links == 2
    first.accept()
    (event,) = peer.send(Attach("d", 2, ROLE_SENDER), channel=1)
    assert isinstance(event, LinkAttached)


def test_what_links_keep_of_their_attach_frames_is_bounded() -> None:
    peer = BarePeer(Limits(attach_bytes_max=2000))
    peer.begin()
    large = {"padding": "x" * 800}
    assert len(peer.send(Attach("a", 0, ROLE_SENDER, properties=large))) == 1
    assert len(peer.send(Attach("b", 1, ROLE_SENDER, properties=large))) == 1
    assert peer.send(Attach("c", 2, ROLE_SENDER, properties=large)) == []
    assert 1600 < peer.core.usage.attach_bytes < 2000
    peer.send(Detach(0), Detach(1), Detach(2))
    assert peer.core.usage.attach_bytes == 0


def test_the_same_link_name_may_be_used_in_several_sessions_and_both_ways() -> None:
    pair = ConnectionPair()
    pair.open()
    first, second = pair.begin(), pair.begin()
    links = [
        *pair.client_sends(first, "coordinator"),
        *pair.client_sends(second, "coordinator"),
        *pair.server_sends(first, "coordinator"),
    ]
    assert len(set(links)) == 6
    assert all(link.attached and link.name == "coordinator" for link in links)


def test_sessions_do_not_mind_each_others_end() -> None:
    pair = ConnectionPair()
    pair.open()
    first, second = pair.begin(), pair.begin()
    pair.client_sends(first)
    sender, receiver = pair.client_sends(second)
    receiver.grant(1)
    first.end()
    pair.exchange()
    sender.send(b"1", b"still here")
    pair.exchange()
    (event,) = pair.at_server(MessageReceived)
    assert event.delivery.payload == b"still here"


def test_the_peers_window_is_renewed_when_half_of_it_is_used() -> None:
    peer = BarePeer(Limits(incoming_window=10))
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()
    for number in range(4):
        peer.send(Transfer(0, number, b"t"))
    assert peer.replies() == []
    peer.send(Transfer(0, 4, b"t"), Transfer(0, 5, b"t"))
    flow = peer.reply(Flow)
    assert (flow.handle, flow.next_incoming_id, flow.incoming_window) == (None, 6, 10)

    # and any flow renews it
    peer.send(*(Transfer(0, number, b"t") for number in range(6, 10)))
    link.grant(7)
    assert peer.reply(Flow).next_incoming_id == 10
    peer.send(Transfer(0, 10, b"t"))
    assert peer.replies() == []


def test_a_window_is_not_enforced_but_the_number_of_unsettled_deliveries_is() -> None:
    # given a peer that counts the transfers of a session in its own way (wire §1.3)
    peer = BarePeer(Limits(incoming_window=2, unsettled_incoming_max=3))
    session = peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()

    # when it sends far more than anybody allowed it to
    peer.send(*(Transfer(0, number, b"t") for number in range(6)))
    assert peer.core.incoming_unsettled == 6
    assert peer.core.incoming_unsettled_bytes > 0
    (event,) = peer.send(Transfer(0, 6, b"t"))

    # then the session goes, at twice the number at which the owner should have stopped reading
    assert isinstance(event, SessionEnded) and event.session is session
    assert ending_error(peer).condition == "amqp:session:window-violation"
    assert peer.core.incoming_unsettled == peer.core.incoming_unsettled_bytes == 0


def test_links_of_an_ended_session_do_nothing_any_more() -> None:
    peer = BarePeer()
    session = peer.begin()
    sending = peer.attach_receiver()
    sending.accept()
    receiving = peer.attach_sender()
    pending = peer.attach_sender("late", handle=2)
    receiving.accept()
    peer.send(Transfer(0, 0, b"t"), Flow(0, 100, 0, 0, handle=1, delivery_count=0, link_credit=5))
    (delivery,) = receiving.unsettled.values()
    session.end()
    peer.replies()

    receiving.settle(delivery, None)
    receiving.grant(10)
    receiving.request_drain()
    receiving.detach()
    sending.drained()
    assert pending.accept() == []
    pending.refuse(Error("amqp:not-found", "late"))
    assert sending.sendable == 0
    with pytest.raises(ValueError, match="may not send"):
        sending.send(b"t", b"late")
    assert peer.replies() == []
    usage = peer.core.usage
    assert (usage.link_count, usage.pending_links, usage.handle_count) == (0, 0, 0)


def test_a_session_begun_event_comes_before_its_links() -> None:
    peer = BarePeer()
    events = peer.send(Begin(None, 0, 1, 1), Attach("a", 0, ROLE_SENDER))
    assert [type(event) for event in events] == [SessionBegun, LinkAttached]
    assert isinstance(events[1], LinkAttached) and isinstance(events[1].link, ReceiverLink)


def test_a_detach_is_answered_by_the_session_and_reported_once() -> None:
    peer = BarePeer()
    peer.begin()
    link = peer.attach_sender()
    link.accept()
    peer.replies()
    assert peer.send(Detach(0, closed=False)) == [LinkDetached(link, None, closed=False)]
    assert peer.reply(Detach) == Detach(0, closed=False)

"""Messages on their way to another entity: once each, in order, whatever dies in between."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postbus.broker import forwarding
from postbus.broker.destination import Destination
from postbus.broker.forwarding import ForwardResult
from postbus.broker.message import OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, subqueue_of
from postbus.errors import EntityNotFound, QuotaExceeded
from postbus.runtime.dispatch import serve
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.turn import Turn
from postbus.store.memory.store import MemoryStore
from tests.support.topics import Place, Sorter, outbox

HOPS = "MaxTransferHopCountExceeded"


def pair(policy: Policy | None = None, checkpoint_every: int = 0) -> tuple[Place, Place]:
    """A queue that forwards, and the one that it forwards to."""
    store = MemoryStore()
    end = Place(store, 2, policy, checkpoint_every=checkpoint_every)
    return Place(
        store, 1, Policy(forward_to=Destination((2,))), checkpoint_every=checkpoint_every
    ), end


def test_a_forwarded_message_keeps_what_it_was_and_is_gone_at_its_source() -> None:
    source, end = pair()
    [number] = source.publish("a", ttl=500)
    assert source.names() == [] and outbox(source) == ["a"]
    end.now += 50
    source.ship_to(end)
    [arrived] = end.rows()
    assert (arrived.message_id, arrived.enqueue_number, arrived.ttl) == ("a", number, 500)
    assert arrived.enqueued_at == end.now and end.body(arrived) == b"a:body"
    assert outbox(source) == [] and source.queue.ledger.size_bytes == 0


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_headers_that_its_destination_does_not_take_are_refused_there(
    checkpoint_every: int,
) -> None:
    source, end = pair(Policy(header_size_max=99), checkpoint_every)
    large = Message(b"a:body", "a", header_size=100)
    source.turn(lambda: source.engine.send([large], source.now))
    source.crash()
    source.ship_to(end)
    assert end.rows() == []
    [dead] = source.rows(kind=DEAD_LETTER)
    assert dead.reason == "MessageSizeExceeded"


STEPS = ["collected", "taken in", "arrived", "shipped", "told"]


@pytest.mark.parametrize("checkpoint_every", [0, 1])
@pytest.mark.parametrize("dead", ["source", "end", "both"])
@pytest.mark.parametrize("step", STEPS)
def test_it_arrives_once_whoever_dies_after_whichever_step(
    step: str, dead: str, checkpoint_every: int
) -> None:
    source, end = pair(checkpoint_every=checkpoint_every)
    source.publish("a", "b", "c")

    def die(now: str) -> bool:
        if now != step:
            return False
        for place, name in ((source, "source"), (end, "end")):
            if dead in (name, "both"):
                place.crash()
        return True

    shipment = source.collect()
    assert shipment is not None
    if not die("collected"):
        receipt = end.accept(source, MAIN, shipment)
        if not die("taken in"):
            end.commit()
            if not die("arrived"):
                numbers = [message.number for message, _ in shipment.messages[: receipt.arrived]]
                for message in source.rows(lane=OUTBOX):
                    if message.number == numbers[0]:  # told of the first, and no further
                        source.settle(MAIN, shipment, ForwardResult(1, None))
                if not die("shipped"):
                    source.settle(MAIN, shipment, receipt)
                    die("told")
    end.commit()
    source.publish("d")
    source.ship_to(end)
    assert end.names() == ["a", "b", "c", "d"]
    assert outbox(source) == []
    end.crash()
    source.crash()
    source.ship_to(end)
    assert end.names() == ["a", "b", "c", "d"]


def test_what_is_sent_again_changes_nothing_and_counts_as_arrived() -> None:
    source, end = pair()
    source.publish("a", "b")
    shipment = source.collect()
    assert shipment is not None
    for _ in range(3):
        assert end.accept(source, MAIN, shipment) == ForwardResult(2, None)
        end.commit(checkpoint=True)
        end.crash()
    assert end.names() == ["a", "b"]


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Policy(sends=False), "EntityDisabled"),
        (Policy(size_bytes_max=13), "QuotaExceeded"),
        (Policy(message_size_max=5), "MessageSizeExceeded"),
    ],
    ids=["disabled", "full", "too large"],
)
def test_one_that_is_refused_is_a_dead_letter_of_its_source(policy: Policy, reason: str) -> None:
    source, end = pair(policy)
    source.publish("a", "b", "c")
    source.ship_to(end)
    refused = [m for m in source.rows(kind=DEAD_LETTER) if m.reason == reason]
    assert len(refused) + len(end.rows()) == 3 and refused
    assert outbox(source) == []
    end.update(Policy())
    source.publish("d")
    source.ship_to(end)
    assert end.names()[-1] == "d", "those behind it go on"


def test_one_whose_destination_is_gone_is_a_dead_letter_of_its_source() -> None:
    source, _ = pair()
    source.publish("a")
    shipment = source.collect()
    assert shipment is not None
    source.settle(MAIN, shipment, ForwardResult(0, EntityNotFound("end")))
    [dead] = source.rows(kind=DEAD_LETTER)
    assert dead.reason == "EntityNotFound"
    source.crash()
    assert source.names(kind=DEAD_LETTER) == ["a"] and source.collect() is None


def test_after_four_hops_a_message_is_a_dead_letter_where_it_is_and_goes_no_further() -> None:
    """semantics B §8"""
    store = MemoryStore()
    places = [
        Place(
            store,
            n,
            Policy(forward_to=Destination((n + 1,)), forward_dead_letters_to=Destination((9,))),
        )
        for n in range(1, 7)
    ]
    places[0].publish("a")
    for source, end in pairwise(places):
        source.ship_to(end)
    [dead] = places[4].rows(kind=DEAD_LETTER)
    assert dead.reason == HOPS and dead.trail is not None and dead.trail.hops == 4
    assert places[5].names() == [] and outbox(places[4], kind=DEAD_LETTER) == []
    places[4].crash()
    assert places[4].divert() <= 1
    assert places[4].names(kind=DEAD_LETTER) == ["a"], "dead-letter forwarding leaves it there"


def test_dead_letters_go_on_with_their_reason_and_say_where_they_come_from() -> None:
    store = MemoryStore()
    source = Place(store, 1, Policy(forward_dead_letters_to=Destination((2,))))
    end = Place(store, 2)
    source.publish("a", "b")
    for _ in range(2):
        message = source.receive()
        assert message is not None
        source.dead_letter(message, "broken")
    assert source.names(kind=DEAD_LETTER) == []
    source.crash()
    source.ship_to(end, DEAD_LETTER)
    assert end.names() == ["a", "b"]
    assert {(m.reason, m.description, m.source) for m in end.rows()} == {
        ("broken", "because", "place1")
    }


@pytest.mark.interpreted_only
@pytest.mark.parametrize("checkpoint_every", [0, 1, 4])
@pytest.mark.parametrize("crash_after", range(5))
def test_what_is_there_when_forwarding_begins_sets_out_in_order(
    crash_after: int, checkpoint_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "DIVERTED_AT_ONCE", 2)
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 2)
    source, end = pair(checkpoint_every=checkpoint_every)
    source.update(Policy())
    source.publish(*"abcdefg")
    source.update(Policy(forward_to=Destination((2,))))
    for _ in range(crash_after):
        source.paged(lambda pages: forwarding.divert(source.queue, MAIN, source.now, pages))
    source.crash()
    source.divert()
    source.publish("h")
    assert source.names() == [] and outbox(source) == list("abcdefgh")
    source.ship_to(end)
    assert end.names() == list("abcdefgh")


@pytest.mark.interpreted_only
def test_an_outbox_whose_first_page_is_all_shipped_is_not_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has arrived stays in the index until the next checkpoint."""
    monkeypatch.setattr(forwarding, "SHIPPED_AT_ONCE", 2)
    source, end = pair()
    source.publish(*"abcdefg")
    source.commit(checkpoint=True)
    source.crash()
    assert source.ship_to(end) == 4
    assert end.names() == list("abcdefg") and outbox(source) == []
    assert not source.engine.shared.outboxes


@pytest.mark.interpreted_only
def test_dead_letters_that_are_refused_are_tried_once_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding, "DIVERTED_AT_ONCE", 1)
    source, end = Place(store := MemoryStore(), 1), Place(store, 2, Policy(sends=False))
    source.publish("a", "b")
    for _ in range(2):
        message = source.receive()
        assert message is not None
        source.dead_letter(message, "broken")
    source.update(Policy(forward_dead_letters_to=Destination((2,))))
    slices = 0
    while (subqueue := forwarding.diverts(source.queue)) is not None and slices < 20:
        slices += 1
        source.paged(lambda pages: forwarding.divert(source.queue, DEAD_LETTER, source.now, pages))
        source.ship_to(end, DEAD_LETTER)
    assert subqueue is None and slices == 2
    assert {m.reason for m in source.rows(kind=DEAD_LETTER)} == {"broken"}


def test_a_scheduled_message_sets_out_when_it_is_due() -> None:
    source, end = pair()
    source.publish("a", scheduled_at=source.now + 100)
    source.ship_to(end)
    assert end.names() == []
    source.wait(100)
    source.ship_to(end)
    assert end.names() == ["a"]
    end.crash()
    [arrived] = end.rows()
    assert arrived.trail is not None
    assert (arrived.trail.scheduled, arrived.trail.hops) == (True, 1)


def test_subscriptions_that_forward_to_one_queue_have_an_outbox_each() -> None:
    store = MemoryStore()
    topic, end = Place(store, 1, matcher=Sorter()), Place(store, 2)
    for owner in (1, 2):
        topic.subscribe(owner, Policy(forward_to=Destination((2,))))
    topic.publish("a", "b")
    for owner in (2, 1):
        topic.ship_to(end, subqueue_of(owner))
    assert end.names() == ["a", "b", "a", "b"]
    assert topic.queue.ledger.size_bytes == 0
    end.crash()
    assert len(end.queue.ledger.marks) == 2


def test_a_subscription_that_forwards_to_its_own_topic_comes_to_an_end() -> None:
    topic = Place(fragment=1, matcher=Sorter())
    topic.subscribe(1, Policy(forward_to=Destination((1,))))
    topic.subscribe(2)
    topic.publish("a")
    for _ in range(10):
        topic.ship_to(topic, subqueue_of(1))
        topic.spread()
    assert topic.names(2) == ["a"] * 5, "from the client, and after each of four hops"
    [dead] = topic.rows(1, DEAD_LETTER)
    assert dead.reason == HOPS


def test_a_forwarded_message_is_spread_by_the_topic_that_it_arrives_at() -> None:
    store = MemoryStore()
    source = Place(store, 1, Policy(forward_to=Destination((2,))))
    topic = Place(store, 2, matcher=Sorter())
    topic.subscribe(1)
    source.publish("a", "b")
    source.ship_to(topic)
    topic.crash()
    topic.spread()
    assert topic.names(1) == ["a", "b"]
    assert [m.enqueue_number for m in topic.rows(1)] == [1, 2], "the first it was ever given"


def test_a_full_topic_refuses_what_is_forwarded_to_it() -> None:
    store = MemoryStore()
    source = Place(store, 1, Policy(forward_to=Destination((2,))))
    topic = Place(store, 2, Policy(size_bytes_max=5), Sorter())
    source.publish("a")
    shipment = source.collect()
    assert shipment is not None
    receipt = topic.accept(source, MAIN, shipment)
    assert receipt.arrived == 0 and isinstance(receipt.refusal, QuotaExceeded)
    assert topic.queue.ledger.marks == {}


def test_a_line_at_a_queue_that_forwards_gets_nothing() -> None:
    """Or the message that it holds would keep the divert going round."""
    place = Place()
    place.publish("a")
    fragment = LoadedFragment(place.fragment, 0, 0, "place", place.policy)
    fragment.engine = place.engine
    place.update(Policy(forward_to=Destination((2,))))
    place.engine.shared.ready_subqueues[MAIN] = None

    class Eager:
        deletes, holder, draining = False, 1, False

        def capacity(self) -> int:
            raise AssertionError("nobody is to be asked")

    eager = Eager()
    line = fragment.receivers_of(MAIN)
    line.join(eager)  # type: ignore[arg-type]
    line.wants(eager)  # type: ignore[arg-type]
    serve(fragment, Turn(1, 0, place.now))
    assert not place.queue.locks


def test_what_has_expired_when_forwarding_begins_does_not_come_alive() -> None:
    source, end = pair()
    source.update(Policy())
    source.publish("a", ttl=1_000)
    source.publish("b")
    source.now += 3_600_000
    source.update(Policy(forward_to=Destination((2,))))
    source.divert()
    source.ship_to(end)
    assert end.names() == ["b"]
    assert source.names() == [] and outbox(source) == []


def test_what_a_deleted_subscription_was_to_forward_stays_here_and_is_removed() -> None:
    place = Place(matcher=Sorter())
    place.subscribe(1, Policy(forward_to=Destination((2,))))
    place.publish("a")
    place.unsubscribe(1)
    assert place.collect(subqueue_of(1)) is None
    assert place.engine.shared.outboxes == {}
    while place.purge_slice():
        pass
    assert place.queue.ledger.size_bytes == 0


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_a_dead_letter_that_was_refused_is_sent_again_after_an_update_and_not_after_a_load(
    checkpoint_every: int,
) -> None:
    store = MemoryStore()
    policy = Policy(forward_dead_letters_to=Destination((2,)))
    end = Place(store, 2, Policy(sends=False))
    source = Place(store, 1, Policy(), checkpoint_every=checkpoint_every)
    source.publish("a", "b")
    for _ in "ab":
        taken = source.receive()
        assert taken is not None and taken.token is not None
        token = taken.token
        source.turn(lambda token=token: source.queue.dead_letter(token, source.now))
    source.policy = policy
    source.crash()
    assert source.divert() > 0 and outbox(source, kind=DEAD_LETTER) == ["a", "b"]
    source.ship_to(end, DEAD_LETTER)
    assert source.names(kind=DEAD_LETTER) == ["a", "b"], "refused"
    source.crash()
    source.divert()
    assert outbox(source, kind=DEAD_LETTER) == []
    source.update(policy)
    source.divert()
    assert outbox(source, kind=DEAD_LETTER) == ["a", "b"]


def test_messages_stay_where_an_update_ends_forwarding_while_a_page_is_read() -> None:
    place = Place(MemoryStore(), 1, Policy(forward_to=Destination((2,))))
    place.update(Policy())
    place.publish("a")
    place.update(Policy(forward_to=Destination((2,))))
    subqueue = forwarding.diverts(place.queue)
    assert subqueue == MAIN
    place.update(Policy())
    place.paged(lambda pages: forwarding.divert(place.queue, subqueue, place.now, pages))
    assert place.names() == ["a"] and outbox(place) == []

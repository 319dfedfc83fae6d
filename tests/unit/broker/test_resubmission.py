"""Dead letters sent again by their numbers: one commit, one place, one outcome each (R-DLQ-08)."""

from __future__ import annotations

import pytest

from postbus.broker import browse, records
from postbus.broker.destination import Destination
from postbus.broker.message import DEFERRED, OUTBOX, SCHEDULED, Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.resubmission import (
    Back,
    Outcome,
    Posted,
    Published,
    Repair,
    ResubmitTarget,
    Result,
    discard,
    resubmit,
)
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.errors import InvalidArgument
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from tests.support.engine import Engine
from tests.support.sessions import SessionEngine
from tests.support.topics import Place, Sorter

HERE, THERE = 1, 2
MOVED = [Result(Outcome.MOVED)]


def same(dead: Message, raw: bytes) -> Message:
    return Message(raw, dead.message_id, dead.session_id, dead.ttl, dead.enqueued_at)


def move_to_dead_letters(
    place: Engine, *names: str, owner: int = 0, session_id: str | None = None
) -> list[int]:
    """Send these and dead-letter them; returns the numbers they have then."""
    if owner == 0:
        place.send_messages(*(Message(f"{n}:body".encode(), n, session_id) for n in names))
    queue = place.engine.queues[owner]
    subqueue = subqueue_of(owner, MAIN)
    numbers = []
    for _ in names:
        taken = place.turn(lambda: queue.take(subqueue, 1, place.now))
        assert taken is not None and taken[0].token is not None
        token, message = taken[0].token, taken[0]
        place.turn(lambda token=token: queue.dead_letter(token, place.now, "broken", "because"))
        numbers.append(message.number)
    return numbers


def send_again(
    place: Engine,
    *numbers: int,
    target: ResubmitTarget | None = None,
    owner: int = 0,
    revise: object = same,
) -> list[Result]:
    queue = place.engine.queues[owner]
    subqueue = subqueue_of(owner, DEAD_LETTER)
    repairs = [Repair(number, revise) for number in numbers]  # type: ignore[arg-type]
    where = target or Back(queue, place.engine.own)
    results: list[Result] = place.paged(
        lambda pages: resubmit(queue, subqueue, repairs, where, place.now, pages)
    )
    return results


def kinds(place: Engine) -> list[list[RecordKind]]:
    """The records of each commit."""
    return [
        [records.decode(record).kind for _, record in batch.records(stored.data)]
        for stored in place.store.read(place.fragment, 0, 1 << 30)
    ]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_dead_letter_is_back_in_its_queue_by_one_commit(indexed: bool) -> None:
    engine = Engine()
    [number] = move_to_dead_letters(engine, "a")
    if indexed:
        engine.commit(checkpoint=True)
        engine.crash()
    engine.now += 1_000
    assert send_again(engine, number) == MOVED
    assert kinds(engine)[-1] == [RecordKind.RESUBMITTED, RecordKind.PUT_BACK]
    for _ in range(2):
        [message] = engine.peek()
        assert (message.message_id, message.delivery_count) == ("a", 0)
        assert message.number > number and message.enqueue_number == message.number
        assert message.enqueued_at == engine.now
        assert (message.reason, message.description) == (None, None)
        assert engine.peek(subqueue=DEAD_LETTER) == []
        assert engine.queue.ledger.size_bytes == len(b"a:body")
        engine.crash()
    assert engine.receive_and_delete() == b"a:body"


def test_asking_again_for_a_number_that_is_gone_changes_nothing() -> None:
    engine = Engine()
    [number] = move_to_dead_letters(engine, "a")
    assert send_again(engine, number, number, 77) == [
        Result(Outcome.MOVED),
        Result(Outcome.NOT_FOUND),
        Result(Outcome.NOT_FOUND),
    ]
    written = len(kinds(engine))
    assert send_again(engine, number) == [Result(Outcome.NOT_FOUND)]
    assert len(kinds(engine)) == written


def test_a_locked_dead_letter_stays_with_who_holds_it() -> None:
    engine = Engine()
    first, second = move_to_dead_letters(engine, "a", "b")
    locked = engine.receive(DEAD_LETTER)
    assert locked is not None and locked.number == first
    assert send_again(engine, first, second) == [Result(Outcome.LOCKED), Result(Outcome.MOVED)]
    engine.complete(locked)
    assert engine.peek(subqueue=DEAD_LETTER) == []


def test_a_deferred_dead_letter_is_found_and_a_locked_one_of_them_is_locked() -> None:
    engine = Engine()
    first, second = move_to_dead_letters(engine, "a", "b")
    for _ in (first, second):
        message = engine.receive(DEAD_LETTER)
        assert message is not None
        engine.defer(message)
    held = engine.paged(
        lambda pages: browse.receive_deferred(
            engine.queue, DEAD_LETTER, [second], False, 1, engine.now, pages
        )
    )
    assert len(held) == 1
    assert send_again(engine, first, second) == [Result(Outcome.MOVED), Result(Outcome.LOCKED)]
    assert engine.queue.ledger.count(DEAD_LETTER, DEFERRED) == 1
    engine.crash()
    assert send_again(engine, second) == MOVED
    assert [message.message_id for message in engine.peek()] == ["a", "b"]


def test_an_edited_one_comes_in_with_its_new_body_and_counts_with_that() -> None:
    engine = Engine()
    [number] = move_to_dead_letters(engine, "a")

    def longer(dead: Message, raw: bytes) -> Message:
        assert (dead.reason, raw) == ("broken", b"a:body")
        return Message(b"a longer body", "b", "s", 500)

    assert send_again(engine, number, revise=longer) == MOVED
    for _ in range(2):
        [message] = engine.peek()
        assert (message.message_id, message.session_id, message.ttl) == ("b", "s", 500)
        assert engine.queue.ledger.size_bytes == len(b"a longer body")
        engine.crash()
    assert engine.receive_and_delete() == b"a longer body"


def test_one_that_cannot_be_made_or_taken_is_refused_and_stays() -> None:
    engine = Engine(Policy(message_size_max=20))
    first, second, third = move_to_dead_letters(engine, "a", "b", "c")

    def revise(dead: Message, raw: bytes) -> Message:
        if dead.number == first:
            raise InvalidArgument("no such thing")
        return Message(raw * 10 if dead.number == second else raw, dead.message_id)

    refused, too_large, moved = send_again(engine, first, second, third, revise=revise)
    assert refused == Result(Outcome.REFUSED, "no such thing")
    assert too_large.outcome is Outcome.REFUSED and "exceeds the limit" in too_large.detail
    assert moved.outcome is Outcome.MOVED
    assert [m.message_id for m in engine.peek(subqueue=DEAD_LETTER)] == ["a", "b"]


def test_a_queue_that_its_dead_letters_fill_can_be_repaired_but_not_made_larger() -> None:
    engine = Engine(Policy(size_bytes_max=12))
    first, second = move_to_dead_letters(engine, "a", "b")

    def larger(dead: Message, raw: bytes) -> Message:
        return Message(raw + b"!" * 64, dead.message_id)

    [refused] = send_again(engine, first, revise=larger)
    assert refused.outcome is Outcome.REFUSED and "maximum entity size" in refused.detail
    assert send_again(engine, first, second) == MOVED * 2


def test_a_queue_that_takes_no_sends_takes_none_of_its_dead_letters() -> None:
    engine = Engine()
    [number] = move_to_dead_letters(engine, "a")
    engine.turn(lambda: engine.queue.update(Policy(sends=False), engine.now))
    [refused] = send_again(engine, number)
    assert refused.outcome is Outcome.REFUSED and "disabled for Send" in refused.detail


def test_time_to_live_begins_anew_and_is_limited_by_the_queue() -> None:
    engine = Engine(Policy(dead_letter_on_expiry=True))
    engine.send_messages(Message(b"x", "a", ttl=1_000))
    engine.wait(1_000)
    [dead] = engine.peek(subqueue=DEAD_LETTER)
    assert dead.reason == "TTLExpiredException"
    assert send_again(engine, dead.number) == MOVED
    [message] = engine.peek()
    assert not message.expired(engine.now) and message.expires_at == engine.now + 1_000
    engine.wait(1_000)
    [dead] = engine.peek(subqueue=DEAD_LETTER)
    engine.turn(lambda: engine.queue.update(Policy(default_ttl_ms=300), engine.now))
    assert send_again(engine, dead.number) == MOVED
    [message] = engine.peek()
    assert message.ttl == 300


def test_it_is_no_duplicate_of_itself_and_begins_no_new_window() -> None:
    """The window counts from when an id was first seen (semantics B §6)."""
    engine = Engine(Policy(duplicate_window_ms=60_000))
    [number] = move_to_dead_letters(engine, "a")
    engine.now += 50_000
    assert send_again(engine, number) == MOVED
    assert [message.message_id for message in engine.peek()] == ["a"]
    for _ in range(2):
        engine.send_messages(Message(b"again", "a"))
        assert len(engine.peek()) == 1, "the first one is still in the window"
        engine.crash()
    engine.now += 10_000
    engine.send_messages(Message(b"later", "a"))
    assert len(engine.peek()) == 2


def test_a_session_queue_gets_it_back_into_its_session_and_none_without() -> None:
    engine = SessionEngine()
    [number] = engine.put("s", b"a")
    session = engine.accept("s")
    message = engine.take(session)
    assert message is not None
    engine.dead_letter(message, "broken")
    [refused] = send_again(engine, number, revise=lambda dead, raw: Message(raw, "a"))
    assert refused.outcome is Outcome.REFUSED and "SessionId was not set" in refused.detail
    assert send_again(engine, number) == MOVED
    assert engine.take_all(session) == ["a"], "who holds the session gets it"
    engine.crash()
    assert engine.take_all(engine.accept("s")) == ["a"]


def test_one_for_later_waits_until_it_is_due() -> None:
    engine = Engine()
    [number] = move_to_dead_letters(engine, "a")
    due = engine.now + 5_000
    results = send_again(
        engine, number, revise=lambda dead, raw: Message(raw, "a", scheduled_at=due)
    )
    assert results == MOVED
    assert [message.lane for message in engine.peek()] == [SCHEDULED]
    engine.crash()
    engine.wait(5_000)
    assert engine.receive_and_delete() == b"a:body"


@pytest.mark.parametrize("later_ms", [0, 5_000])
def test_a_queue_that_forwards_sends_it_on_and_it_arrives_where_it_was_seen(later_ms: int) -> None:
    store = MemoryStore()
    there = Place(store, THERE, Policy(duplicate_window_ms=60_000))
    there.publish("a")
    here = Place(store, HERE)
    [number] = move_to_dead_letters(here, "a")
    here.update(Policy(forward_to=Destination((THERE,))))
    due = here.now + later_ms
    results = send_again(here, number, revise=lambda dead, raw: Message(raw, "a", scheduled_at=due))
    assert results == MOVED
    here.wait(later_ms)
    assert here.names(lane=OUTBOX) == ["a"]
    here.crash()
    shipment = here.collect()
    assert shipment is not None
    there.turn(lambda: there.accept(here, MAIN, shipment))
    assert there.names() == ["a", "a"], "it is sent again, and no duplicate"


# -- topics ------------------------------------------------------------------------------------


def topic_with_dead_letter() -> tuple[Place, int]:
    place = Place(policy=Policy(duplicate_window_ms=60_000), matcher=Sorter())
    place.subscribe(1)
    place.subscribe(2)
    place.publish("a")
    [number] = move_to_dead_letters(place, "a", owner=1)
    return place, number


def test_a_dead_letter_of_a_subscription_goes_back_to_that_one_alone() -> None:
    place, number = topic_with_dead_letter()
    assert send_again(place, number, owner=1) == MOVED
    for _ in range(2):
        assert (place.names(1), place.names(2)) == (["a"], ["a"])
        assert place.names(1, DEAD_LETTER) == []
        [message] = place.rows(1)
        assert place.body(message) == b"a:body"
        place.crash()


def test_a_subscription_has_nothing_for_later() -> None:
    place, number = topic_with_dead_letter()
    due = place.now + 5_000
    [refused] = send_again(
        place, number, owner=1, revise=lambda dead, raw: Message(raw, "a", scheduled_at=due)
    )
    assert refused.outcome is Outcome.REFUSED and "cannot be scheduled" in refused.detail


def test_sent_to_its_topic_all_subscriptions_get_it_though_its_id_was_seen() -> None:
    place, number = topic_with_dead_letter()
    assert send_again(place, number, owner=1, target=Published(place.engine)) == MOVED
    for _ in range(2):
        assert (place.names(1), place.names(2)) == (["a"], ["a", "a"])
        place.publish("a")
        assert place.names(2) == ["a", "a"], "a third one is a duplicate"
        place.crash()


# -- to other entities -------------------------------------------------------------------------


def posted(place: Place, policy: Policy | None = None) -> Posted:
    return Posted(place.engine, THERE, "Queue", "there", policy or Policy())


@pytest.mark.parametrize("owner", [0, 1])
def test_to_another_entity_it_goes_through_the_outbox_and_arrives_once(owner: int) -> None:
    store = MemoryStore()
    here = Place(store, HERE, matcher=Sorter() if owner else None)
    there = Place(store, THERE, Policy(duplicate_window_ms=60_000))
    there.publish("a")
    if owner:
        here.subscribe(1)
        here.publish("a")
    [number] = move_to_dead_letters(here, "a", owner=owner)
    assert send_again(here, number, owner=owner, target=posted(here)) == MOVED
    assert kinds(here)[-1] == [RecordKind.RESUBMITTED, RecordKind.POSTED]
    here.crash()
    assert here.names(owner, DEAD_LETTER) == []
    assert here.names(0, TRANSFER_DEAD_LETTER, OUTBOX) == ["a"]
    for _ in range(2):  # the second time after a crash that has forgotten the first
        shipment = here.collect(TRANSFER_DEAD_LETTER)
        assert shipment is not None and shipment.destination == THERE
        there.turn(lambda shipment=shipment: there.accept(here, TRANSFER_DEAD_LETTER, shipment))
        here.crash()
        there.crash()
    assert there.names() == ["a", "a"], "one was there before"
    message = there.rows()[-1]
    assert (message.reason, message.delivery_count) == (None, 0)
    assert message.trail is not None and message.trail.hops == 0


def test_what_the_target_does_not_take_stays_a_dead_letter() -> None:
    here = Place(fragment=HERE)
    first, second = move_to_dead_letters(here, "a", "b")
    asks = posted(here, Policy(requires_session=True))
    [refused] = send_again(here, first, target=asks)
    assert refused.outcome is Outcome.REFUSED and "SessionId was not set" in refused.detail
    small = posted(here, Policy(message_size_max=3))
    [refused] = send_again(here, second, target=small)
    assert "on the entity 'there'" in refused.detail
    assert here.names(kind=DEAD_LETTER) == ["a", "b"]


# -- bounds ------------------------------------------------------------------------------------


@pytest.mark.interpreted_only
def test_no_more_bodies_are_in_memory_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postbus.broker.resubmission.RECEIVE_BYTES_MAX", 13)
    engine = Engine()
    numbers = move_to_dead_letters(engine, "a", "b", "c")
    engine.commit(checkpoint=True)
    engine.crash()
    assert send_again(engine, *numbers) == MOVED * 2, "the rest is for another call"
    assert send_again(engine, *numbers[2:]) == MOVED


@pytest.mark.interpreted_only
def test_one_that_is_larger_than_that_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postbus.broker.resubmission.RECEIVE_BYTES_MAX", 3)
    engine = Engine()
    numbers = move_to_dead_letters(engine, "a", "b")
    assert send_again(engine, 99, *numbers) == [Result(Outcome.NOT_FOUND), *MOVED]
    assert send_again(engine, *numbers[1:]) == MOVED


# -- thrown away -------------------------------------------------------------------------------


def test_dead_letters_are_thrown_away_by_their_numbers() -> None:
    engine = Engine()
    first, second, third = move_to_dead_letters(engine, "a", "b", "c")
    locked = engine.receive(DEAD_LETTER)
    assert locked is not None and locked.number == first
    results = engine.paged(
        lambda pages: discard(engine.queue, DEAD_LETTER, [first, second, second], pages)
    )
    assert results == [
        Result(Outcome.LOCKED),
        Result(Outcome.REMOVED),
        Result(Outcome.NOT_FOUND),
    ]
    assert kinds(engine)[-1] == [RecordKind.DELETED]
    engine.crash()
    assert [m.number for m in engine.peek(subqueue=DEAD_LETTER)] == [first, third]

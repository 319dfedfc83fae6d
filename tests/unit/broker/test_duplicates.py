"""Duplicates are accepted and dropped: sends, batches, schedules, topics, and what is forwarded."""

from __future__ import annotations

import pytest

from postbus.broker import records
from postbus.broker.destination import Destination
from postbus.broker.duplicates import recall
from postbus.broker.index_pages import Need, Pages, SeenPage
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.errors import EntityDisabled, MessageSizeExceeded, QuotaExceeded
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from tests.support.engine import Engine
from tests.support.topics import Place, Sorter

MINUTE = 60_000
FINDS = Policy(duplicate_window_ms=MINUTE)


def written(engine: Engine) -> list[Record]:
    return [
        records.decode(record)
        for stored in engine.store.read(engine.fragment, 0, 1 << 30)
        for _, record in batch.records(stored.data)
    ]


def there(engine: Engine) -> list[bytes]:
    return [message.message_id.encode() for message in engine.peek()]


def message(message_id: str, body: bytes = b"x", scheduled_at: int = 0) -> Message:
    return Message(body, message_id, scheduled_at=scheduled_at)


def test_a_message_with_a_known_id_is_accepted_and_dropped() -> None:
    """R-SETTLE-11; semantics B §6."""
    engine = Engine(FINDS)
    [first] = engine.send_messages(message("a", b"first"))
    [second] = engine.send_messages(message("a", b"second"))
    [third] = engine.send_messages(message("b"))
    assert first < second < third
    assert there(engine) == [b"a", b"b"]
    assert engine.queue.ledger.size_bytes == len(b"first") + len(b"x")
    dropped = written(engine)[1]
    assert (dropped.kind, dropped.message.message_id) == (RecordKind.DUPLICATE, "a")
    assert (dropped.message.number, dropped.body_at) == (second, -1)
    assert dropped.message.enqueued_at == engine.now


def test_without_detection_ids_are_not_looked_at() -> None:
    engine = Engine()
    engine.send_messages(message("a"))
    engine.send_messages(message("a"))
    assert there(engine) == [b"a", b"a"]


def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    engine = Engine(FINDS)
    engine.send_messages(message(""), message(""))
    engine.commit(checkpoint=True)
    engine.send_messages(message(""))
    assert len(there(engine)) == 3


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_the_window_counts_from_the_first_sight(checkpoint: bool, crash: bool) -> None:
    """semantics B §6: it does not slide, and completing does not clear it."""
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    received = engine.receive()
    assert received is not None
    engine.complete(received)
    engine.commit(checkpoint)
    if crash:
        engine.crash()
    engine.now += MINUTE - 1
    engine.send_messages(message("a"))
    assert there(engine) == []
    engine.now += 1
    engine.send_messages(message("a"))
    assert there(engine) == [b"a"]
    engine.now += MINUTE - 1
    engine.send_messages(message("a"))
    assert there(engine) == [b"a"]


@pytest.mark.parametrize("crash", [False, True])
def test_a_message_that_is_put_back_was_seen_when_it_came(crash: bool) -> None:
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    taken = engine.turn(lambda: engine.queue.take_and_delete(MAIN, engine.now))
    assert taken is not None
    engine.now += MINUTE - 1
    engine.turn(lambda: engine.queue.put_back(*taken))
    assert [each.kind for each in written(engine)] == [
        RecordKind.ENQUEUED,
        RecordKind.RECEIVED,
        RecordKind.PUT_BACK,
    ]
    if crash:
        engine.crash()
    engine.now += 1
    engine.send_messages(message("a"))
    assert there(engine) == [b"a", b"a"]


def test_in_a_batch_only_the_duplicates_are_dropped() -> None:
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    numbers = engine.send_messages(*(message(each) for each in "abcbd"))
    assert numbers == sorted(numbers) and len(set(numbers)) == 5
    assert there(engine) == [b"a", b"b", b"c", b"d"]


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    """The one that is too large decides, whether it is a duplicate or not; nothing is noted."""
    engine = Engine(FINDS._replace(message_size_max=10))
    engine.send_messages(message("a"))
    for refused in (message("n", b"x" * 11), message("a", b"x" * 11)):
        with pytest.raises(MessageSizeExceeded):
            engine.send_messages(message("b"), message("a"), refused)
    assert there(engine) == [b"a"]
    engine.send_messages(message("b"))
    assert there(engine) == [b"a", b"b"]


def test_a_full_entity_takes_duplicates_for_they_take_no_room() -> None:
    engine = Engine(FINDS._replace(size_bytes_max=10))
    engine.send_messages(message("a", b"x" * 8))
    engine.send_messages(message("a", b"x" * 8), message("b", b"x" * 2))
    with pytest.raises(QuotaExceeded):
        engine.send_messages(message("a", b"x" * 8), message("c"))
    assert there(engine) == [b"a", b"b"]


def test_a_disabled_entity_refuses_duplicates_too() -> None:
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    engine.turn(lambda: engine.queue.update(FINDS._replace(sends=False), engine.now))
    with pytest.raises(EntityDisabled):
        engine.send_messages(message("a"))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_scheduled_messages_take_part_in_both_directions(checkpoint: bool) -> None:
    """semantics B §4, §6: the second one has a number of its own and is dropped."""
    engine = Engine(FINDS)
    later = engine.now + 10_000
    [first] = engine.send_messages(message("a", scheduled_at=later))
    engine.commit(checkpoint)
    engine.crash()
    [second] = engine.send_messages(message("a", scheduled_at=later))
    assert first != second
    engine.send_messages(message("a"), message("b"))
    engine.send_messages(message("b", scheduled_at=later))
    engine.wait(10_000)
    assert there(engine) == [b"b", b"a"]
    # first seen when it was scheduled, not when it came due
    engine.now += MINUTE - 10_000
    engine.send_messages(message("a"))
    assert there(engine) == [b"b", b"a", b"a"]


def test_only_ids_that_may_be_known_are_read() -> None:
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    engine.commit(checkpoint=True)
    assert engine.engine.foresee([message("new")], engine.now) is None
    need = engine.engine.send([message("a"), message("new")], engine.now)
    assert isinstance(need, Need)
    [page] = need.pages
    assert isinstance(page, SeenPage)
    assert (page.parts, len(page.digests)) == ((1,), 1)
    assert need == engine.engine.foresee([message("a"), message("new")], engine.now)
    assert there(engine) == [b"a"]


def test_after_a_start_the_filter_is_read_again() -> None:
    engine = Engine(FINDS)
    engine.send_messages(*(message(f"{n}") for n in range(100)))
    engine.commit(checkpoint=True)
    engine.crash()
    assert engine.engine.foresee([message("new")], engine.now) is not None
    history = engine.queue.ledger.history
    assert history is not None
    while history.next_unread() is not None:
        engine.paged(lambda pages: recall(history, pages))
    assert engine.engine.foresee([message("new")], engine.now) is None
    assert engine.engine.foresee([message("7")], engine.now) is not None
    assert recall(history, Pages()) is None


def test_a_topic_drops_duplicates_before_they_become_copies() -> None:
    topic = Place(MemoryStore(), 1, FINDS, Sorter())
    topic.subscribe(1)
    topic.subscribe(2)
    topic.publish("a", "b", "a")
    topic.commit(checkpoint=True)
    topic.crash()
    topic.publish("b", "c")
    assert topic.names(1) == topic.names(2) == ["a", "b", "c"]


@pytest.mark.parametrize("to_topic", [False, True])
def test_what_is_forwarded_is_dropped_where_its_id_is_known(to_topic: bool) -> None:
    """It counts as arrived, also after a crash: the mark has passed it."""
    store = MemoryStore()
    source = Place(store, 1, Policy(forward_to=Destination((2,))))
    target = Place(store, 2, FINDS, Sorter() if to_topic else None)
    owner = 1 if to_topic else 0
    if to_topic:
        target.subscribe(1)
    target.publish("a")
    target.commit(checkpoint=True)
    target.crash()
    source.send_messages(message("a"), message("b"), message("b"), message("c"), message("a"))
    shipment = source.collect()
    assert shipment is not None
    receipt = target.accept(source, MAIN, shipment)
    assert (receipt.arrived, receipt.refusal) == (5, None)
    target.commit()
    target.crash()
    # the answer got lost: nothing of it happens again
    assert target.accept(source, MAIN, shipment).arrived == 5
    assert target.queue.ledger.pending == []
    source.settle(MAIN, shipment, receipt)
    assert source.collect() is None
    target.spread()
    assert target.names(owner) == ["a", "b", "c"]
    target.publish("c")
    assert target.names(owner) == ["a", "b", "c"]


def test_a_disabled_destination_takes_no_duplicates_either() -> None:
    store = MemoryStore()
    source, target = Place(store, 1, Policy(forward_to=Destination((2,)))), Place(store, 2, FINDS)
    target.publish("a")
    target.update(FINDS._replace(sends=False))
    source.send_messages(message("a"))
    shipment = source.collect()
    assert shipment is not None
    assert isinstance(target.accept(source, MAIN, shipment).refusal, EntityDisabled)


def test_a_transaction_drops_its_duplicates_when_it_is_committed() -> None:
    """Nothing is noted before, and what it was told of a schedule stays so."""
    engine = Engine(FINDS)
    engine.send_messages(message("a"))
    engine.commit(checkpoint=True)
    transaction = Transaction()
    engine.turn(lambda: transaction.send(engine.engine, [message("a"), message("b")]))
    later = engine.now + 10_000
    [number] = engine.turn(
        lambda: transaction.schedule(engine.engine, [message("a", scheduled_at=later)])
    )
    engine.send_messages(message("b"))
    engine.paged(lambda pages: transaction.commit(engine.engine, engine.now, pages))
    assert there(engine) == [b"a", b"b"]
    dropped = [each.message for each in written(engine) if each.kind is RecordKind.DUPLICATE]
    assert [each.message_id for each in dropped] == ["a", "b", "a"]
    assert dropped[-1].number == number
    engine.crash()
    [after] = engine.send_messages(message("c"))
    assert after > max(each.number for each in dropped)


def nearly_full_topic() -> Place:
    """Room for two messages of 1,000 bytes, but not for the copies of two."""
    topic = Place(MemoryStore(), 1, FINDS._replace(size_bytes_max=10_500), Sorter())
    for owner in range(1, 6):
        topic.subscribe(owner)
    topic.send_messages(message("a", b"x" * 1_000))
    assert topic.queue.ledger.size_bytes == 5_000
    return topic


@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_refuses_nothing_of_a_batch_that_it_has_begun_to_store(crash: bool) -> None:
    """What the copies of the first take does not count against the others (R-SETTLE-11)."""
    topic = nearly_full_topic()
    batch_of_three = [message(each, b"x" * 1_000) for each in "bac"]
    topic.send_messages(*batch_of_three)
    if crash:
        topic.crash()
    assert topic.names(1) == topic.names(5) == ["a", "b", "c"]
    topic.update(topic.policy._replace(size_bytes_max=1 << 30))
    topic.send_messages(*(message(each, b"x" * 1_000) for each in "bc"))
    assert topic.names(1) == topic.names(5) == ["a", "b", "c"]


def test_a_full_topic_refuses_a_batch_with_a_duplicate_whole() -> None:
    topic = nearly_full_topic()
    topic.send_messages(message("b", b"x" * 1_000))
    with pytest.raises(QuotaExceeded):
        topic.send_messages(*(message(each, b"x" * 300) for each in "cad"))
    topic.update(topic.policy._replace(size_bytes_max=1 << 30))
    topic.crash()
    assert topic.names(1) == ["a", "b"]
    topic.send_messages(*(message(each) for each in "cad"))
    assert topic.names(1) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("full", [False, True])
def test_a_transaction_near_the_quota_of_a_topic_is_whole_after_a_crash(full: bool) -> None:
    """All that it sends and settles, or nothing of it (semantics B §7)."""
    topic = nearly_full_topic()
    taken = topic.turn(lambda: topic.at(1).take(topic.at(1).main, 1, topic.now))
    assert taken is not None
    [token] = topic.at(1).locks
    transaction = Transaction()
    settlement = Settlement(topic.at(1).main, token, Verdict.COMPLETE)
    sends = [message(each, b"x" * 1_000) for each in "bac"]
    topic.turn(lambda: transaction.send(topic.engine, sends))
    topic.turn(lambda: transaction.settle(topic.engine, [settlement], topic.now))
    if full:
        topic.send_messages(message("z", b"x" * 1_000))
        with pytest.raises(QuotaExceeded):
            topic.paged(lambda pages: transaction.commit(topic.engine, topic.now, pages))
        topic.turn(lambda: transaction.roll_back(topic.engine))
    else:
        topic.paged(lambda pages: transaction.commit(topic.engine, topic.now, pages))
    topic.crash()
    assert topic.names(1) == (["a", "z"] if full else ["b", "c"])
    assert topic.names(2) == (["a", "z"] if full else ["a", "b", "c"])


@pytest.mark.parametrize("crash", [False, True])
def test_ids_that_arrive_while_old_ones_are_being_dropped_stay_known(crash: bool) -> None:
    """Dropping takes many slices, and what comes between them must not go with the last."""
    store = MemoryStore()
    source, target = Place(store, 1, Policy(forward_to=Destination((2,)))), Place(store, 2, FINDS)
    target.publish(*(f"old {n}" for n in range(40)))
    target.commit(checkpoint=True)
    source.now = target.now = target.now + MINUTE
    history = target.queue.ledger.history
    assert history is not None
    below = history.expire(target.now)
    target.crash()  # as when a commit fails, or an engine at rest is loaded
    source.send_messages(message("a"))
    source.ship_to(target)
    if crash:
        target.crash()
    target.commit(checkpoint=True)
    assert store.index.drop_seen(2, below, 100)
    target.publish("a")
    assert target.names().count("a") == 1


def test_an_id_that_a_checkpoint_brought_into_another_part_is_looked_for_there() -> None:
    """The parts were chosen before it was seen, and read when the checkpoint was durable."""
    engine = Engine(FINDS)
    engine.send_messages(message("old"))
    engine.now += MINUTE // 8
    engine.send_messages(message("older"))
    engine.commit(checkpoint=True)  # and what comes after it is in another segment
    engine.crash()
    chosen = engine.engine.send([message("a")], engine.now)
    assert isinstance(chosen, Need)
    engine.send_messages(message("a"))
    engine.commit(checkpoint=True)
    pages = Pages()
    engine.load(chosen, pages)
    engine.paged(lambda pages: engine.engine.send([message("a")], engine.now, pages), pages)
    assert there(engine).count(b"a") == 1

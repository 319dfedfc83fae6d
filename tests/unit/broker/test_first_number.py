"""R-PIPE-02: whatever number a message has in its fragment, its records say the one it came in
under, so that a reader of the feed finds its body."""

from __future__ import annotations

from postbus.broker import records
from postbus.broker.destination import Destination
from postbus.broker.message import OUTBOX
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import BRINGS_BODY
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import DEAD_LETTER
from postbus.store import batch
from tests.support.engine import Engine
from tests.support.topics import Place, Sorter


def journal(engine: Engine) -> list[Record]:
    found = []
    for stored in engine.store.read(engine.fragment, 0, 1 << 20):
        found += [records.decode(data) for _, data in batch.records(stored.data)]
    return found


def check(engine: Engine) -> None:
    """Every record leads to the one that brought its message, whose id is its own."""
    brought: dict[int, str] = {}
    renumbered = 0
    for record in journal(engine):
        message = record.message
        if record.kind in BRINGS_BODY:
            assert message.first_number == message.number
            brought[message.number] = message.message_id
        assert brought[message.first_number] == message.message_id
        renumbered += message.first_number != message.number
    assert renumbered, "every message has kept its number: this has shown nothing"


def test_of_a_message_that_was_scheduled_also_after_a_restart() -> None:
    engine = Engine()
    engine.send(b"later", b"too", scheduled_at=engine.now + 5_000)
    engine.send(b"now")
    size = engine.queue.ledger.size_bytes
    engine.wait(5_000)
    engine.commit(checkpoint=True)
    engine.crash()
    assert engine.queue.ledger.size_bytes == size, "it is charged as before"
    while (message := engine.receive()) is not None:
        if message.raw == b"too":
            engine.dead_letter(message)
        else:
            engine.complete(message)
    check(engine)
    assert engine.queue.ledger.count(DEAD_LETTER, 0) == 1


def test_of_the_copies_of_a_topic_published_at_once_and_later() -> None:
    topic = Place(matcher=Sorter())
    topic.subscribe(1)
    topic.subscribe(2)
    topic.publish("a", "b")
    topic.publish("later", scheduled_at=topic.now + 5_000)
    topic.wait(5_000)
    topic.spread()
    assert topic.names(1) == topic.names(2) == ["a", "b", "later"]
    check(topic)


def test_of_what_sets_out_for_another_entity_after_it_was_there() -> None:
    source = Place()
    source.publish("a", "b")
    message = source.receive()
    assert message is not None
    source.dead_letter(message, "unpaid")
    source.update(Policy(forward_to=Destination((9,)), forward_dead_letters_to=Destination((9,))))
    source.divert()
    check(source)


def test_of_what_got_a_number_twice() -> None:
    """It was scheduled, became active, and set out as a dead letter: three numbers."""
    source = Place()
    source.publish("later", scheduled_at=source.now + 5_000)
    source.wait(5_000)
    message = source.receive()
    assert message is not None
    source.dead_letter(message, "unpaid")
    source.update(Policy(forward_dead_letters_to=Destination((9,))))
    source.divert()
    check(source)
    assert len({record.message.number for record in journal(source)}) == 3


def test_of_what_arrived_from_elsewhere_and_sets_out_again() -> None:
    """Its number in the outbox it came from is another fragment's, and none of its own."""
    source = Place(policy=Policy(forward_to=Destination((8,))))
    source.publish("a", "b")
    between = Place(source.store, 8)
    between.publish("its own")
    source.ship_to(between)
    between.update(Policy(forward_to=Destination((9,))))
    between.divert()
    check(between)
    between.crash()
    assert [message.first_number for message in between.rows(lane=OUTBOX)] == [1, 2, 3]

"""Pings: admitted as messages are, answered by a commit, and kept nowhere (R-PAIR-07)."""

from __future__ import annotations

import pytest

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.broker.send_via import send_through
from postbus.broker.transaction import Transaction
from postbus.errors import EntityDisabled, MessageSizeExceeded, QuotaExceeded, ServiceBusError
from tests.support.engine import Engine
from tests.support.topics import Place, Sorter
from tests.unit.broker.test_duplicates import FINDS, written


def ping(body: bytes = b"ping", message_id: str = "p", scheduled_at: int = 0) -> Message:
    made = Message(body, message_id, scheduled_at=scheduled_at)
    made.is_ping = True
    return made


def test_r_pair_07_a_ping_leaves_a_record_and_nothing_else() -> None:
    """R-PAIR-07."""
    engine = Engine()
    [number] = engine.send_messages(ping())
    [record] = written(engine)
    assert (record.kind, record.message.number) == (RecordKind.PINGED, number)
    ledger = engine.queue.ledger
    assert (ledger.size_bytes, dict(ledger.counts), engine.peek()) == (0, {}, [])
    engine.crash()
    assert engine.peek() == [] and engine.send(b"x") > [number]


@pytest.mark.parametrize(
    ("policy", "refusal"),
    [
        (Policy(sends=False), EntityDisabled),
        (Policy(size_bytes_max=12), QuotaExceeded),
        (Policy(message_size_max=3), MessageSizeExceeded),
    ],
)
def test_r_pair_07_a_ping_is_refused_where_a_message_would_be(
    policy: Policy, refusal: type[ServiceBusError]
) -> None:
    """R-PAIR-07."""
    engine = Engine(Policy())
    engine.send(b"ten bytes.")
    engine.queue.policy = policy
    with pytest.raises(refusal):
        engine.send_messages(ping())
    assert len(written(engine)) == 1


def test_a_ping_needs_no_session() -> None:
    engine = Engine(Policy(requires_session=True))
    assert len(engine.send_messages(ping())) == 1


def test_pings_in_a_batch_are_left_out_of_it() -> None:
    engine = Engine()
    numbers = engine.send_messages(Message(b"a", "a"), ping(), Message(b"b", "b"), ping())
    assert [each.message_id for each in engine.peek()] == ["a", "b"]
    assert [each.number for each in engine.peek()] == [numbers[0], numbers[2]]
    assert len(set(numbers)) == 4
    engine.queue.policy = Policy(message_size_max=3)
    with pytest.raises(MessageSizeExceeded):
        engine.send_messages(Message(b"c", "c"), ping(b"long"))
    assert len(engine.peek()) == 2


def test_r_pair_07_the_id_of_a_ping_is_not_noted_and_not_looked_for() -> None:
    """R-PAIR-07."""
    engine = Engine(FINDS)
    engine.send_messages(ping(message_id="same"))
    engine.send_messages(ping(message_id="same"), Message(b"x", "same"))
    engine.crash()
    engine.send_messages(ping(message_id="same"))
    assert [each.message_id for each in engine.peek()] == ["same"]
    assert [record.kind.name for record in written(engine)].count("PINGED") == 3


def test_a_scheduled_ping_is_answered_at_once() -> None:
    engine = Engine()
    engine.send_messages(ping(scheduled_at=engine.now + 1_000))
    assert [record.kind for record in written(engine)] == [RecordKind.PINGED]


def test_r_pair_07_a_ping_to_a_topic_reaches_no_subscription() -> None:
    """R-PAIR-07."""
    place = Place(matcher=Sorter())
    place.subscribe(1)
    place.turn(lambda: place.engine.send([ping()], place.now))
    assert place.rows(1) == [] and place.queue.ledger.size_bytes == 0


def test_a_ping_in_a_transaction_or_sent_through_an_entity_goes_nowhere() -> None:
    engine = Engine()
    transaction = Transaction()
    transaction.send(engine.engine, [ping(), Message(b"x", "kept")])
    transaction.post(engine.engine, 99, [ping()])
    engine.paged(lambda pages: transaction.commit(engine.engine, engine.now, pages))
    engine.turn(lambda: send_through(engine.engine, 99, [ping()], engine.now))
    assert [each.message_id for each in engine.peek()] == ["kept"]
    assert [record.kind.name for record in written(engine)].count("PINGED") == 3
    assert not engine.engine.shared.outboxes

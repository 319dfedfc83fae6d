"""Transactions beside sessions and duplicate detection: each keeps its rules
(R-PART-17, R-PART-18)."""

from __future__ import annotations

import pytest

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN, TRANSFER_DEAD_LETTER
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.errors import InvalidOperation, SessionLockLost
from postbus.store.memory.store import MemoryStore
from tests.support.engine import Engine
from tests.support.sessions import LOCK_MS, SessionEngine
from tests.support.topics import Place

FINDS = Policy(duplicate_window_ms=60_000)


def commit(engine: Engine, transaction: Transaction) -> None:
    engine.paged(lambda pages: transaction.commit(engine.engine, engine.now, pages))


def settlement(message: Message | None) -> Settlement:
    assert message is not None and message.token is not None
    return Settlement(MAIN, message.token, Verdict.COMPLETE)


def test_messages_of_several_sessions_are_settled_in_one_transaction() -> None:
    """On a classic entity (R-PART-17)."""
    engine = SessionEngine()
    engine.put("s", b"1")
    engine.put("t", b"2")
    one, other = engine.accept("s", 1), engine.accept("t", 2)
    transaction = Transaction()
    settlements = [settlement(engine.take(one)), settlement(engine.take(other))]
    transaction.settle(engine.engine, settlements, engine.now)
    transaction.send(engine.engine, [Message(b"3", "id-3", "s")])
    for each in settlements:
        with pytest.raises(InvalidOperation):
            engine.queue.complete(each.token, engine.now)
    commit(engine, transaction)
    assert engine.peeked(None) == ["3"]
    assert engine.take_all(one) == ["3"]


def test_what_is_sent_to_an_entity_with_sessions_needs_a_session_id() -> None:
    engine = SessionEngine()
    transaction = Transaction()
    with pytest.raises(InvalidOperation, match="SessionId was not set"):
        transaction.send(engine.engine, [Message(b"1", "id-1")])
    # Unless it only passes through.
    transaction.post(engine.engine, 2, [Message(b"2", "id-2")])
    commit(engine, transaction)
    assert engine.queue.ledger.count(TRANSFER_DEAD_LETTER, 3) == 1


@pytest.mark.parametrize("how", ["left", "ran out"])
def test_a_session_that_is_lost_takes_the_transaction_with_it(how: str) -> None:
    engine = SessionEngine()
    engine.put("s", b"1")
    session = engine.accept("s")
    transaction = Transaction()
    transaction.settle(engine.engine, [settlement(engine.take(session))], engine.now)
    transaction.send(engine.engine, [Message(b"2", "id-2", "s")])
    if how == "left":
        engine.leave(session)
    else:
        engine.wait(LOCK_MS)
    with pytest.raises(SessionLockLost):
        commit(engine, transaction)
    transaction.roll_back(engine.engine)
    assert engine.take_all(engine.accept("s", 2)) == ["1"]
    assert not engine.engine.shared.enlisted


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_a_duplicate_is_dropped_at_the_commit_and_the_rest_goes_on(checkpoint_every: int) -> None:
    engine = Engine(FINDS, checkpoint_every=checkpoint_every)
    engine.send(b"a")
    engine.crash()
    locked = engine.receive()
    transaction = Transaction()
    transaction.settle(engine.engine, [settlement(locked)], engine.now)
    transaction.send(engine.engine, [Message(b"again", "id-a"), Message(b"b", "id-b")])
    transaction.send(engine.engine, [Message(b"b too", "id-b")])
    commit(engine, transaction)
    assert [each.message_id for each in engine.peek()] == ["id-b"]


def test_what_is_rolled_back_was_never_seen() -> None:
    engine = Engine(FINDS)
    transaction = Transaction()
    transaction.send(engine.engine, [Message(b"a", "id-a")])
    transaction.roll_back(engine.engine)
    engine.send(b"a")
    assert len(engine.peek()) == 1


def test_what_passes_through_an_entity_is_seen_where_it_goes_and_not_there() -> None:
    store = MemoryStore()
    via, end = Place(store, 1, FINDS), Place(store, 2, FINDS)
    for _ in range(2):
        transaction = Transaction()
        transaction.post(via.engine, 2, [Message(b"a", "a")])
        commit(via, transaction)
    via.crash()
    via.publish("a")
    assert via.names() == ["a"]
    via.ship_to(end, TRANSFER_DEAD_LETTER)
    assert end.names() == ["a"]

"""Sessions that are given up late: after their lock, or after the engine that gave them."""

from __future__ import annotations

from postbus.broker import session_operations
from postbus.broker.subqueue_numbers import MAIN
from tests.support.sessions import LOCK_MS, SessionEngine


def test_a_session_given_up_in_time_counts_nothing() -> None:
    engine = SessionEngine()
    engine.put("a", b"m")
    held = engine.accept("a")
    engine.take(held)
    engine.now += LOCK_MS - 1
    engine.leave(held)
    message = engine.take(engine.accept("a"))
    assert message is not None and message.delivery_count == 0


def test_a_session_given_up_after_its_lock_counts_what_was_not_settled() -> None:
    engine = SessionEngine()
    engine.put("a", b"m")
    held = engine.accept("a")
    engine.take(held)
    engine.now += LOCK_MS  # and tick has not been called since
    session_operations.leave(engine.queue, held, engine.now)
    message = engine.take(engine.accept("a"))
    assert message is not None and message.delivery_count == 1


def test_a_session_of_an_engine_that_is_gone_is_nobody_elses() -> None:
    engine = SessionEngine()
    engine.put("a", b"m")
    old = engine.accept("a")
    engine.crash()
    engine.leave(old)  # it was on its way when the engine was thrown away
    held = engine.accept("a", holder=2)
    engine.leave(old)
    assert not held.lost
    assert engine.drain(held) == ["m"]
    assert engine.queue.ledger.count(MAIN) == 0

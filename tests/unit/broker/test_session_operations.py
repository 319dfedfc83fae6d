"""Sessions: who may receive what, in which order, and what becomes of it (semantics B §1)."""

from __future__ import annotations

import pytest

from postbus.broker import session_operations
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    SessionCannotBeLocked,
    SessionLockLost,
)
from postbus.model.times import NEVER
from tests.support.engine import Engine
from tests.support.sessions import LOCK_MS, SessionEngine


def test_a_message_without_a_session_is_refused() -> None:
    engine = SessionEngine()
    with pytest.raises(InvalidOperation, match="The SessionId was not set on a message"):
        engine.send(b"m")
    assert engine.queue.ledger.count(MAIN) == 0


def test_the_empty_string_is_a_session() -> None:
    engine = SessionEngine()
    engine.put("", b"m")
    session = engine.accept_next()
    assert session is not None and session.id == ""
    assert engine.drain(session) == ["m"]


def test_a_session_has_its_own_messages_in_order() -> None:
    engine = SessionEngine()
    engine.put("a", b"a1", b"a2")
    engine.put("b", b"b1")
    engine.put("a", b"a3")
    session = engine.accept("a")
    assert engine.take_all(session) == ["a1", "a2", "a3"]
    engine.put("b", b"b2")
    engine.put("a", b"a4")
    assert engine.take_all(session) == ["a4"]


def test_a_session_that_was_never_seen_is_accepted_by_name_and_gets_what_comes_later() -> None:
    engine = SessionEngine()
    session = engine.accept("new")
    assert engine.take(session) is None
    engine.put("new", b"m")
    assert engine.drain(session) == ["m"]


def test_a_session_that_is_held_cannot_be_locked() -> None:
    engine = SessionEngine()
    engine.accept("a")
    with pytest.raises(SessionCannotBeLocked, match="The requested session 'a' cannot be accepted"):
        engine.accept("a", holder=2)


def test_a_session_whose_lock_ran_out_can_be_taken_before_anybody_noticed() -> None:
    engine = SessionEngine()
    engine.put("a", b"m")
    first = engine.accept("a", holder=1)
    assert engine.take(first) is not None
    engine.now += LOCK_MS
    second = engine.accept("a", holder=2)
    assert first.lost and not second.lost
    message = engine.take(second)
    assert message is not None and message.delivery_count == 1


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="longer than 128"):
        SessionEngine().accept("x" * 129)


def test_a_plain_entity_has_no_sessions() -> None:
    engine = Engine()
    with pytest.raises(InvalidOperation, match="doesn't require sessions"):
        session_operations.accept(engine.queue, "a", 1, engine.now)


def test_a_disabled_entity_accepts_no_session() -> None:
    engine = SessionEngine(Policy(receives=False))
    with pytest.raises(EntityDisabled):
        engine.accept("a")
    with pytest.raises(EntityDisabled):
        engine.accept_next()


# -- the next one ----------------------------------------------------------------------------


def test_the_next_session_is_the_one_that_has_waited_for_longest() -> None:
    engine = SessionEngine()
    for name in ("c", "a", "b"):
        engine.put(name, b"m")
    taken = [engine.accept_next(), engine.accept_next(), engine.accept_next()]
    assert [session.id for session in taken if session is not None] == ["c", "a", "b"]
    assert engine.accept_next() is None


def test_a_session_without_messages_is_not_offered() -> None:
    engine = SessionEngine()
    session = engine.accept("a")
    engine.set_state("a", b"state")
    engine.leave(session)
    assert engine.accept_next() is None


def test_a_session_with_nothing_but_deferred_and_scheduled_messages_is_not_offered() -> None:
    engine = SessionEngine()
    engine.put("a", b"m")
    engine.put("b", b"later", scheduled_at=engine.now + 1_000)
    session = engine.accept("a")
    message = engine.take(session)
    assert message is not None
    engine.defer(message)
    engine.leave(session)
    assert engine.accept_next() is None
    engine.wait(1_000)
    found = engine.accept_next()
    assert found is not None and engine.drain(found) == ["later"]


def test_a_session_with_nothing_but_expired_messages_is_not_offered() -> None:
    engine = SessionEngine(Policy(dead_letter_on_expiry=True))
    engine.put("a", *[b"m%d" % n for n in range(200)], ttl=1_000)
    engine.put("b", b"dies", ttl=1_000)
    engine.put("b", b"lives")
    engine.now += 1_000
    session = engine.accept_next()
    assert session is not None and session.id == "b"
    assert engine.drain(session) == ["lives"]
    assert engine.accept_next() is None
    assert engine.queue.ledger.count(DEAD_LETTER) == 201


@pytest.mark.parametrize("in_index", [False, True])
def test_sessions_that_were_there_before_a_restart_are_offered(in_index: bool) -> None:
    engine = SessionEngine()
    for name in ("b", "a"):
        engine.put(name, b"m-" + name.encode())
    engine.commit(checkpoint=in_index)
    engine.crash()
    assert not engine.queue.sessions.free.complete  # type: ignore[union-attr]
    names = []
    while (session := engine.accept_next()) is not None:
        names.append(session.id)
        assert engine.drain(session) == [f"m-{session.id}"]
    assert names == ["a", "b"]
    assert engine.queue.sessions.free.complete  # type: ignore[union-attr]


def test_a_session_that_only_the_index_still_knows_is_not_offered() -> None:
    engine = SessionEngine()
    for number in range(200):
        engine.put(f"s{number:03}", b"m")
    engine.commit(checkpoint=True)
    for number in range(199):
        session = engine.accept(f"s{number:03}")
        assert engine.drain(session) == ["m"]
        engine.leave(session)
    engine.crash()
    session_left = engine.accept_next()
    assert session_left is not None and session_left.id == "s199"
    assert engine.accept_next() is None


def test_whoever_waits_is_told_that_a_session_is_free() -> None:
    engine = SessionEngine()
    ready_subqueues = engine.engine.shared.ready_subqueues
    engine.put("a", b"m")
    assert MAIN in ready_subqueues
    session = engine.accept("a")
    ready_subqueues.clear()
    engine.put("a", b"n")
    assert MAIN not in ready_subqueues
    assert (MAIN, "a") in engine.engine.shared.ready_sessions
    engine.leave(session)
    assert MAIN in ready_subqueues
    assert not engine.engine.shared.ready_sessions


# -- settling --------------------------------------------------------------------------------


def test_an_abandoned_message_is_the_next_one_again() -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2", b"3")
    session = engine.accept("a")
    first, second = engine.take(session), engine.take(session)
    assert first is not None and second is not None
    engine.abandon(first)
    again = engine.take(session)
    assert again is first and again.delivery_count == 1
    assert engine.take_all(session) == ["3"]


def test_a_message_that_fails_too_often_is_a_plain_dead_letter() -> None:
    engine = SessionEngine(Policy(max_delivery_count=2))
    engine.put("a", b"1", b"2")
    session = engine.accept("a")
    for _ in range(2):
        message = engine.take(session)
        assert message is not None
        engine.abandon(message)
    assert engine.drain(session) == ["2"]
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None and dead.session_id == "a" and dead.reason == "MaxDeliveryCountExceeded"
    engine.complete(dead)


def test_a_message_of_a_session_has_no_lock_of_its_own() -> None:
    engine = SessionEngine()
    engine.put("a", b"1")
    session = engine.accept("a")
    message = engine.take(session)
    assert message is not None and message.token is not None
    assert message.locked_until == NEVER
    with pytest.raises(InvalidOperation, match="no lock of its own"):
        engine.queue.renew(message.token, engine.now)
    engine.now += LOCK_MS - 1
    assert engine.renew("a") == engine.now + LOCK_MS
    engine.wait(LOCK_MS - 1)
    engine.complete(message)


def test_messages_that_are_received_and_deleted_are_gone() -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2")
    session = engine.accept("a")
    assert engine.take_and_delete(session) == b"1"
    engine.leave(session)
    engine.crash()
    assert engine.drain(engine.accept("a")) == ["2"]


def test_a_message_that_was_removed_for_somebody_who_is_gone_comes_back_in_its_place() -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2")
    session = engine.accept("a")
    engine._fetch_in(session)
    engine._fetch_in(session)
    taken = engine.turn(lambda: engine.queue.take_and_delete_in_session(session, engine.now))
    assert taken is not None
    engine.leave(session)
    engine.turn(lambda: engine.queue.put_back(*taken))
    found = engine.accept_next()
    assert found is not None and engine.drain(found) == ["1", "2"]


# -- the end of a lock -----------------------------------------------------------------------


def test_leaving_makes_everything_available_at_once_and_counts_nothing() -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2", b"3")
    session = engine.accept("a")
    first, second = engine.take(session), engine.take(session)
    assert first is not None and second is not None
    old = first.token
    assert old is not None
    engine.complete(second)
    engine.leave(session)
    engine.leave(session)  # harmless
    assert not engine.engine.shared.lost_sessions
    again = engine.accept_next()
    assert again is not None and again.id == "a"
    message = engine.take(again)
    assert message is not None and message.message_id == "id-1" and message.delivery_count == 0
    with pytest.raises(SessionLockLost):
        engine.queue.complete(old, engine.now)
    assert engine.take_all(again) == ["3"]


def test_a_lock_that_runs_out_counts_for_what_was_delivered() -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2")
    session = engine.accept("a", holder=7)
    message = engine.take(session)
    assert message is not None and message.token is not None
    token = message.token
    assert engine.engine.next_deadline() == engine.now + LOCK_MS
    engine.now += LOCK_MS
    engine.turn(lambda: engine.engine.tick(engine.now))
    assert engine.engine.shared.lost_sessions == [(MAIN, "a", 7)]
    assert session.lost and engine.take(session) is None
    for settle in (engine.queue.complete, engine.queue.abandon, engine.queue.release):
        with pytest.raises(SessionLockLost):
            settle(token, engine.now)
    with pytest.raises(SessionLockLost):
        engine.renew("a")
    again = engine.accept("a")
    first, second = engine.take(again), engine.take(again)
    assert first is not None and second is not None
    assert (first.delivery_count, second.delivery_count) == (1, 0)


def test_locks_run_out_in_the_order_in_which_they_were_renewed() -> None:
    engine = SessionEngine()
    for name in ("a", "b", "c"):
        engine.accept(name)
        engine.now += 1_000
    engine.renew("a")
    engine.now += LOCK_MS - 1_000
    engine.turn(lambda: engine.engine.tick(engine.now))
    assert [name for _, name, _ in engine.engine.shared.lost_sessions] == ["b", "c"]


def test_only_its_holder_renews_a_lock_if_it_is_named() -> None:
    engine = SessionEngine()
    engine.accept("a", holder=1)
    with pytest.raises(SessionLockLost):
        engine.renew("a", holder=2)
    engine.renew("a", holder=1)
    with pytest.raises(SessionLockLost):
        engine.renew("b")


def test_an_update_of_the_entity_ends_all_locks_and_counts_nothing() -> None:
    engine = SessionEngine()
    engine.put("a", b"1")
    session = engine.accept("a", holder=3)
    assert engine.take(session) is not None
    policy = engine.policy._replace(max_delivery_count=3)
    engine.turn(lambda: engine.queue.update(policy, engine.now))
    assert engine.engine.shared.lost_sessions == [(MAIN, "a", 3)]
    again = engine.accept_next()
    assert again is not None
    message = engine.take(again)
    assert message is not None and message.delivery_count == 0


def test_what_was_received_before_a_restart_can_never_be_settled() -> None:
    engine = SessionEngine()
    engine.put("a", b"1")
    message = engine.take(engine.accept("a"))
    assert message is not None and message.token is not None
    engine.crash()
    with pytest.raises(SessionLockLost):
        engine.queue.complete(message.token, engine.now)
    again = engine.take(engine.accept("a"))
    assert again is not None and again.delivery_count == 0


def test_a_lost_lock_in_the_dead_letter_queue_is_that_of_a_message() -> None:
    engine = SessionEngine()
    engine.put("a", b"1")
    message = engine.take(engine.accept("a"))
    assert message is not None
    engine.dead_letter(message)
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None and dead.token is not None
    token = dead.token
    engine.wait(LOCK_MS)
    with pytest.raises(MessageLockLost):
        engine.queue.complete(token, engine.now)


# -- deferred, expired -----------------------------------------------------------------------


def test_a_deferred_message_is_for_the_holder_of_its_session() -> None:
    engine = SessionEngine()
    [number] = engine.put("a", b"1")
    session = engine.accept("a")
    message = engine.take(session)
    assert message is not None
    engine.defer(message)
    for nobody in (None, "b"):
        with pytest.raises(SessionLockLost):
            engine.deferred(nobody, number)
    engine.accept("b")
    with pytest.raises(MessageNotFound):
        engine.deferred("b", number)
    [found] = engine.deferred("a", number)
    assert found.token is not None and found.token in session.locks
    with pytest.raises(MessageNotFound):
        engine.deferred("a", number)
    engine.complete(found)
    assert engine.queue.ledger.counts == {}


@pytest.mark.parametrize("expires", [True, False])
def test_a_deferred_message_is_deferred_again_when_its_session_ends(expires: bool) -> None:
    engine = SessionEngine()
    [number] = engine.put("a", b"1")
    session = engine.accept("a")
    message = engine.take(session)
    assert message is not None
    engine.defer(message)
    engine.deferred("a", number)
    if expires:
        engine.wait(LOCK_MS)
    else:
        engine.leave(session)
    assert not engine.queue.deferred_locks
    engine.accept("a")
    [again] = engine.deferred("a", number)
    assert again.delivery_count == (2 if expires else 1)


def test_expired_messages_are_swept_wherever_they_are() -> None:
    engine = SessionEngine()
    engine.put("free", b"1", ttl=1_000)
    engine.put("held", b"2", b"3", b"4", ttl=1_000)
    session = engine.accept("held")
    locked = engine.take(session)
    assert engine.engine.next_deadline() == engine.now + 1_000
    engine.wait(1_000)
    assert locked is not None
    assert engine.queue.ledger.count(MAIN) == 1
    assert engine.take(session) is None
    engine.complete(locked)  # a locked one can be settled past its time
    assert engine.queue.ledger.counts == {}


def test_a_message_that_comes_while_its_session_is_held_is_swept_in_its_time() -> None:
    engine = SessionEngine()
    engine.accept("a")
    engine.engine.next_deadline()
    engine.put("a", b"short", ttl=50)
    assert engine.engine.next_deadline() == engine.now + 50
    engine.now += 50
    engine.engine.tick(engine.now)
    assert engine.engine.expired(engine.now) == [engine.queue]


def test_an_expired_message_that_was_locked_goes_when_its_session_is_left() -> None:
    engine = SessionEngine(Policy(dead_letter_on_expiry=True))
    engine.put("a", b"1", ttl=1_000)
    session = engine.accept("a")
    assert engine.take(session) is not None
    engine.now += 1_000
    engine.leave(session)
    assert engine.queue.ledger.count(DEAD_LETTER) == 1
    assert engine.accept_next() is None


# -- peek and delete -------------------------------------------------------------------------


@pytest.mark.parametrize("in_index", [False, True])
def test_peek_shows_one_session_or_all(in_index: bool) -> None:
    engine = SessionEngine()
    engine.put("a", b"a1")
    engine.put("b", b"b1")
    engine.put("a", b"a2", scheduled_at=engine.now + 1_000)
    engine.put("a", b"a3")
    session = engine.accept("a")
    message = engine.take(session)
    assert message is not None
    engine.defer(message)
    engine.commit(checkpoint=in_index)
    assert engine.peeked("a") == ["a1", "a2", "a3"]
    assert engine.peeked("a", count=1, start=2) == ["a2"]
    assert engine.peeked(None) == ["a1", "b1", "a2", "a3"]
    assert engine.peeked("c") == []


@pytest.mark.parametrize("in_index", [False, True])
def test_a_batch_delete_leaves_other_sessions_and_locked_messages_alone(in_index: bool) -> None:
    engine = SessionEngine()
    engine.put("a", b"1", b"2", b"3", b"4")
    engine.put("b", b"5")
    engine.commit(checkpoint=in_index)
    session = engine.accept("a")
    assert engine.take(session) is not None
    assert engine.delete_in("a", count=2) == 2
    assert engine.take_all(session) == ["4"]
    assert engine.delete_in("a") == 0
    assert engine.delete_in("b", before=engine.now - 1) == 0
    assert engine.delete_in(None) == 1
    assert engine.accept_next() is None

"""One queue's rules, to the millisecond, on a memory store and a clock that the test moves."""

from __future__ import annotations

import pytest

from postbus.broker.message import SCHEDULED, Message, NewProperties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import (
    EntityDisabled,
    InvalidArgument,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    QuotaExceeded,
)
from tests.support.engine import Engine

LOCK_MS = 30_000
LARGE = NewProperties(b"x" * 11, 11)


def test_messages_come_out_in_the_order_they_went_in() -> None:
    engine = Engine()
    engine.send(b"1", b"2")
    engine.send(b"3")
    received = [engine.receive() for _ in range(3)]
    assert [message.raw for message in received if message] == [b"1", b"2", b"3"]
    assert [message.number for message in received if message] == [1, 2, 3]
    assert engine.receive() is None


def test_a_message_whose_lock_ran_out_is_delivered_again() -> None:
    """R-SETTLE-06, R-SETTLE-07, R-PRE-03"""
    engine = Engine()
    engine.send(b"order 1")
    first = engine.receive()
    assert first is not None and first.token is not None
    token = first.token

    engine.wait(LOCK_MS - 1)
    assert engine.receive() is None
    engine.wait(1)

    again = engine.receive()
    assert again is not None
    assert again.delivery_count == 1
    assert again.token != token
    with pytest.raises(MessageLockLost):
        engine.queue.complete(token, engine.now)


def test_settling_at_the_very_end_of_the_lock_is_too_late_even_before_the_tick() -> None:
    """R-SETTLE-10: never a silent success."""
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    engine.now += LOCK_MS
    with pytest.raises(MessageLockLost):
        engine.queue.complete(message.token, engine.now)


def test_a_renewed_lock_lasts_from_the_renewal_on() -> None:
    engine = Engine()
    engine.send(b"1", b"2")
    first, second = engine.receive(), engine.receive()
    assert first is not None and second is not None and first.token is not None
    engine.wait(20_000)
    assert engine.queue.renew(first.token, engine.now) == engine.now + LOCK_MS
    engine.wait(10_000)
    assert second.token is None
    engine.complete(first)


def test_an_abandoned_message_comes_back_in_its_place_with_its_count_raised() -> None:
    """R-SETTLE-07"""
    engine = Engine()
    engine.send(b"1", b"2", b"3")
    first, second = engine.receive(), engine.receive()
    assert first is not None and second is not None
    engine.abandon(second)
    engine.abandon(first)
    order = [engine.receive() for _ in range(3)]
    assert [m.raw for m in order if m] == [b"1", b"2", b"3"]
    assert [m.delivery_count for m in order if m] == [1, 1, 0]


def test_a_released_message_keeps_its_count() -> None:
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    engine.queue.release(message.token, engine.now)
    again = engine.receive()
    assert again is not None and again.delivery_count == 0


@pytest.mark.parametrize("max_delivery_count", [1, 3, 10])
def test_the_last_allowed_failure_moves_the_message_to_the_dead_letter_queue(
    max_delivery_count: int,
) -> None:
    """R-SETTLE-08, R-DLQ-07, R-DLQ-09: the founding loop."""
    engine = Engine(Policy(max_delivery_count=max_delivery_count))
    engine.send(b"poison")
    counts = []
    while (message := engine.receive()) is not None:
        counts.append(message.delivery_count)
        engine.abandon(message)
    assert counts == list(range(max_delivery_count))
    assert engine.peek() == []
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None
    assert dead.reason == "MaxDeliveryCountExceeded"
    assert dead.delivery_count == max_delivery_count


def test_the_dead_letter_queue_keeps_its_messages_whatever_happens() -> None:
    """R-DLQ-02, R-DLQ-03: no expiry, no count, no way further down."""
    engine = Engine(Policy(max_delivery_count=2))
    engine.send(b"1", ttl=1_000)
    message = engine.receive()
    assert message is not None
    engine.dead_letter(message, "broken")
    for _ in range(5):
        engine.wait(LOCK_MS)
        dead = engine.receive(DEAD_LETTER)
        assert dead is not None and dead.token is not None
        assert dead.delivery_count == 0
        assert (dead.reason, dead.description) == ("broken", "because")
        with pytest.raises(InvalidOperation):
            engine.queue.dead_letter(dead.token, engine.now)
        engine.abandon(dead)
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None
    engine.complete(dead)
    assert engine.receive(DEAD_LETTER) is None


@pytest.mark.parametrize("reason", [None, "why"])
@pytest.mark.parametrize("description", [None, "how"])
def test_what_was_said_of_a_dead_letter_survives_a_crash(
    reason: str | None, description: str | None
) -> None:
    """R-DLQ-04"""
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    token = message.token
    engine.turn(lambda: engine.queue.dead_letter(token, engine.now, reason, description))
    engine.commit(checkpoint=True)
    engine.crash()
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None
    assert (dead.reason, dead.description) == (reason, description)


def test_a_deferred_message_is_had_only_by_its_number() -> None:
    """R-SETTLE-09; counts and lanes as in semantics B §5."""
    engine = Engine()
    [number] = engine.send(b"1")
    message = engine.receive()
    assert message is not None
    engine.defer(message)
    assert engine.receive() is None
    [deferred] = engine.receive_deferred(number)
    assert deferred.delivery_count == 1
    engine.abandon(deferred)
    [deferred] = engine.receive_deferred(number)
    assert deferred.delivery_count == 2
    engine.wait(LOCK_MS)
    [deferred] = engine.receive_deferred(number)
    assert deferred.delivery_count == 3
    engine.complete(deferred)
    assert engine.peek() == []


def test_time_to_live_ends_a_message_by_dropping_it_or_by_dead_lettering_it() -> None:
    """R-DLQ-06: only where that is switched on."""
    for dead_letters in (False, True):
        engine = Engine(Policy(dead_letter_on_expiry=dead_letters))
        engine.send(b"short", ttl=1_000)
        engine.send(b"long", ttl=100_000)
        engine.wait(999)
        assert len(engine.peek()) == 2
        engine.wait(1)
        assert [m.raw for m in engine.peek()] == [b"long"]
        dead = engine.receive(DEAD_LETTER)
        if dead_letters:
            assert dead is not None and dead.reason == "TTLExpiredException"
        else:
            assert dead is None


def test_nothing_expires_while_nobody_receives() -> None:
    """R-DLQ-06"""
    engine = Engine(Policy(dead_letter_on_expiry=True))
    engine.send(b"1", ttl=1_000)
    engine.wait(60_000, receivers=0)
    assert len(engine.peek()) == 1
    assert engine.receive() is None, "an expired message is never delivered"
    assert engine.receive(DEAD_LETTER) is not None


def test_the_entity_caps_the_time_to_live() -> None:
    engine = Engine(Policy(default_ttl_ms=5_000))
    engine.send(b"own", ttl=1_000)
    engine.send(b"none")
    engine.send(b"more", ttl=60_000)
    assert [m.ttl for m in engine.peek()] == [1_000, 5_000, 5_000]


def test_a_lock_outlives_the_time_to_live_but_giving_back_does_not() -> None:
    """semantics B §3"""
    engine = Engine(Policy(dead_letter_on_expiry=True))
    engine.send(b"1", b"2", ttl=1_000)
    first, second = engine.receive(), engine.receive()
    assert first is not None and second is not None
    engine.wait(10_000)
    engine.complete(first)
    engine.abandon(second)
    assert engine.receive() is None
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None and dead.reason == "TTLExpiredException"


def test_a_scheduled_message_is_enqueued_when_due_under_a_new_number() -> None:
    engine = Engine()
    [number] = engine.send(b"later", scheduled_at=engine.now + 5_000)
    engine.send(b"now")
    assert [m.lane for m in engine.peek()] == [2, 0]
    engine.wait(4_999)
    assert engine.queue.ledger.count(MAIN, SCHEDULED) == 1
    engine.wait(1)
    assert engine.queue.ledger.count(MAIN, SCHEDULED) == 0
    order = [engine.receive(), engine.receive()]
    assert [m.raw for m in order if m] == [b"now", b"later"]
    later = order[1]
    assert later is not None
    assert later.number > number
    assert later.enqueued_at == engine.now


@pytest.mark.parametrize("checkpoint", [False, True])
def test_that_a_message_was_scheduled_is_known_ever_after(checkpoint: bool) -> None:
    """semantics B §4: through restarts, deferral, redelivery and into the dead-letter queue."""
    engine = Engine()
    engine.send(b"later", scheduled_at=engine.now + 5_000)
    engine.send(b"past", scheduled_at=engine.now - 5_000)
    later_size, past_size = len(b"later"), len(b"past")

    def was_scheduled() -> dict[int, bool]:
        engine.commit(checkpoint)
        engine.crash()
        found = [*engine.peek(), *engine.peek(subqueue=DEAD_LETTER)]
        assert engine.queue.ledger.size_bytes == sum(m.weight for m in found)
        return {m.length: m.trail is not None and m.trail.scheduled for m in found}

    assert was_scheduled() == {later_size: False, past_size: False}
    engine.wait(5_000)
    assert was_scheduled() == {later_size: True, past_size: False}
    first, later = engine.receive(), engine.receive()
    assert first is not None and later is not None
    engine.abandon(first)
    engine.defer(later)
    assert was_scheduled() == {later_size: True, past_size: False}
    [later] = engine.receive_deferred(later.number)
    engine.dead_letter(later)
    assert was_scheduled() == {later_size: True, past_size: False}


def test_the_time_to_live_of_a_scheduled_message_starts_when_it_is_due() -> None:
    engine = Engine()
    engine.send(b"later", scheduled_at=engine.now + 5_000, ttl=2_000)
    engine.wait(6_999)
    engine.wait(1)
    assert len(engine.peek()) == 1
    engine.wait(2_000)
    assert engine.peek() == []


def test_cancelling_takes_all_the_named_messages_or_none() -> None:
    engine = Engine()
    first, second = engine.send(b"1", b"2", scheduled_at=engine.now + 5_000)
    with pytest.raises(Exception, match="Missing sequence numbers: 99"):
        engine.cancel(first, 99)
    assert engine.queue.ledger.count(MAIN, SCHEDULED) == 2
    engine.cancel(first, second)
    engine.cancel()
    assert engine.peek() == []


def test_a_batch_is_stored_whole_or_not_at_all() -> None:
    engine = Engine(Policy(message_size_max=4))
    with pytest.raises(MessageSizeExceeded):
        engine.send(b"1", b"toolong", b"3")
    assert engine.peek() == []
    assert engine.queue.ledger.size_bytes == 0


def test_a_full_queue_refuses_until_there_is_room_and_dead_letters_count() -> None:
    engine = Engine(Policy(size_bytes_max=10))
    engine.send(b"12345")
    engine.send(b"12345")
    with pytest.raises(QuotaExceeded, match="maximum entity size"):
        engine.send(b"1")
    message = engine.receive()
    assert message is not None
    engine.dead_letter(message)
    with pytest.raises(QuotaExceeded):
        engine.send(b"1")
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None
    engine.complete(dead)
    engine.send(b"12345")


def test_ids_are_bounded() -> None:
    engine = Engine()
    engine.queue.send([Message(b"1", "m" * 128, "s" * 128)], engine.now)
    for message in (Message(b"1", "m" * 129), Message(b"1", "", "s" * 129)):
        with pytest.raises(InvalidArgument):
            engine.queue.send([message], engine.now)


def test_headers_that_grow_by_property_changes_send_the_message_to_the_dead_letter_queue() -> None:
    """R-DLQ-05"""
    engine = Engine(Policy(header_size_max=10))
    engine.send(b"1")
    message = engine.receive()
    assert message is not None
    engine.abandon(message, LARGE)
    dead = engine.receive(DEAD_LETTER)
    assert dead is not None and dead.reason == "HeaderSizeExceeded"


def test_a_disabled_queue_refuses_by_direction() -> None:
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    engine.queue.policy = Policy(sends=False)
    with pytest.raises(EntityDisabled, match="Send"):
        engine.send(b"2")
    engine.queue.policy = Policy(receives=False)
    with pytest.raises(EntityDisabled, match="Receive"):
        engine.queue.complete(message.token, engine.now)
    engine.queue.policy = Policy()
    engine.complete(message)


def test_a_change_of_the_entity_loses_locks_without_counting_a_failure() -> None:
    """R-SETTLE-10"""
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    token = message.token
    engine.queue.update(Policy(lock_ms=60_000), engine.now)
    with pytest.raises(MessageLockLost):
        engine.queue.complete(token, engine.now)
    again = engine.receive()
    assert again is not None
    assert again.delivery_count == 0
    assert again.locked_until == engine.now + 60_000


def test_a_connection_that_breaks_loses_its_locks_and_counts_a_failure() -> None:
    """R-SETTLE-10"""
    engine = Engine()
    engine.send(b"1")
    message = engine.receive()
    assert message is not None and message.token is not None
    token = message.token
    engine.turn(lambda: engine.queue.lose(token, engine.now))
    engine.turn(lambda: engine.queue.lose(token, engine.now))
    again = engine.receive()
    assert again is not None and again.delivery_count == 1


def test_batch_delete_takes_the_oldest_ready_messages_and_leaves_locked_ones() -> None:
    engine = Engine()
    engine.send(b"1", b"2", b"3")
    engine.wait(1_000)
    cut = engine.now
    engine.wait(1_000)
    engine.send(b"4")
    locked = engine.receive()
    assert locked is not None
    assert engine.delete_batch(10, before=cut) == 2
    assert engine.delete_batch(10, before=cut) == 0
    assert [m.number for m in engine.peek()] == [1, 4]
    engine.complete(locked)


def test_receive_and_delete_removes_at_once() -> None:
    """R-SETTLE-05"""
    engine = Engine()
    engine.send(b"1", b"2")
    assert engine.receive_and_delete() == b"1"
    engine.crash()
    assert engine.receive_and_delete() == b"2"
    assert engine.receive_and_delete() is None


def test_a_message_removed_for_somebody_who_is_gone_is_put_back_in_its_place() -> None:
    for checkpoint in (False, True):
        engine = Engine()
        engine.send(b"1", b"2")
        engine.commit(checkpoint=checkpoint)
        taken = engine.turn(lambda engine=engine: engine.queue.take_and_delete(MAIN, engine.now))
        assert taken is not None
        engine.commit(checkpoint=checkpoint)
        engine.turn(lambda engine=engine, taken=taken: engine.queue.put_back(*taken))
        assert engine.queue.ledger.count(MAIN) == 2
        engine.crash()
        assert [engine.receive_and_delete() for _ in range(3)] == [b"1", b"2", None]
        engine.crash()
        assert engine.peek() == []


def test_headers_that_grew_send_a_message_to_the_dead_letter_queue_once() -> None:
    """A dead letter goes nowhere else, and is gone when it is completed."""
    engine = Engine(Policy(header_size_max=10))
    engine.send(b"1", b"2", b"3")
    for settle in (engine.queue.abandon, engine.queue.defer):
        message = engine.receive()
        assert message is not None and message.token is not None
        token = message.token
        engine.turn(lambda settle=settle, token=token: settle(token, engine.now, LARGE))
    message = engine.receive()
    assert message is not None and message.token is not None
    engine.queue.dead_letter(message.token, engine.now, "why", None, LARGE)
    engine.commit(checkpoint=True)
    for _ in range(3):
        dead = engine.receive(DEAD_LETTER)
        assert dead is not None and dead.reason == "HeaderSizeExceeded"
        engine.abandon(dead)
        dead = engine.receive(DEAD_LETTER)
        assert dead is not None
        engine.complete(dead)
    engine.commit(checkpoint=True)
    engine.crash()
    assert engine.receive(DEAD_LETTER) is None
    assert engine.queue.ledger.size_bytes == 0


def test_the_next_deadline_is_when_something_happens() -> None:
    engine = Engine()
    engine.send(b"1", ttl=50_000)
    engine.send(b"2", scheduled_at=engine.now + 90_000)
    assert engine.engine.next_deadline() == engine.now + 90_000, "nobody receives: no sweep"
    engine.engine.set_receivers(MAIN, 1)
    assert engine.engine.next_deadline() == engine.now + 50_000
    engine.receive()
    assert engine.engine.next_deadline() == engine.now + LOCK_MS

"""Backlogs larger than memory: windows, pages and recovery give the same answers."""

from __future__ import annotations

import pytest

from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER
from postbus.broker.window_budget import WindowBudget
from tests.support.engine import FRAGMENT, Engine

SMALL = WindowBudget(0, messages_min=16, body_bytes_min=64)


def small_engine(**policy: object) -> Engine:
    return Engine(Policy(**policy), SMALL, checkpoint_every=25)  # type: ignore[arg-type]


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % n for n in range(start, start + count)]


def test_a_backlog_beyond_the_window_comes_out_whole_and_in_order() -> None:
    engine = small_engine()
    for body in bodies(200):
        engine.send(body)
    received = []
    while (message := engine.receive()) is not None:
        received.append(message.message_id)
        engine.complete(message)
    assert received == [f"id-{body.decode()}" for body in bodies(200)]


def test_memory_holds_a_window_and_not_the_backlog() -> None:
    engine = small_engine()
    for body in bodies(500):
        engine.send(body)
    engine.commit(checkpoint=True)
    window = engine.queue.windows[0]
    assert len(window.live) <= SMALL.messages_min
    assert sum(len(m.raw or b"") for m in window.live.values()) <= SMALL.body_bytes_min
    assert engine.queue.ledger.delta.size == 0


def test_recovery_is_index_and_tail() -> None:
    engine = small_engine()
    for body in bodies(100):
        engine.send(body)
    for _ in range(30):
        message = engine.receive()
        assert message is not None
        engine.complete(message)
    before = [(m.number, m.message_id) for m in engine.peek(count=250)]
    counts, size = dict(engine.queue.ledger.counts), engine.queue.ledger.size_bytes
    engine.crash()
    assert [(m.number, m.message_id) for m in engine.peek(count=250)] == before
    assert {k: v for k, v in engine.queue.ledger.counts.items() if v} == {
        k: v for k, v in counts.items() if v
    }
    assert engine.queue.ledger.size_bytes == size


def test_peek_walks_from_any_number_over_what_is_gone() -> None:
    engine = small_engine()
    for body in bodies(120):
        engine.send(body)
    engine.commit(checkpoint=True)
    for _ in range(60):
        assert engine.receive_and_delete() is not None
    found = [m.number for m in engine.peek(start=0, count=3)]
    # Fewer than asked is legal (wire §6.4); none, or the wrong ones, is not.
    assert found and found == [61, 62, 63][: len(found)]
    assert [m.number for m in engine.peek(start=119, count=10)] == [119, 120]
    assert engine.peek(start=121) == []


def test_a_peek_of_one_passes_thousands_that_are_gone() -> None:
    engine = Engine(limits=SMALL)
    for body in bodies(3_000):
        engine.send(body)
    engine.commit(checkpoint=True)
    while engine.receive_and_delete() != bodies(2_999)[-1]:
        pass
    assert [m.number for m in engine.peek(count=1)] == [3_000]


def test_a_purge_goes_on_past_what_is_gone() -> None:
    engine = Engine(limits=SMALL)
    for body in bodies(3_000):
        engine.send(body)
    engine.commit(checkpoint=True)
    for _ in range(2_000):
        engine.receive_and_delete()
    engine.crash()
    deleted = 0
    while count := engine.delete_batch(100):
        deleted += count
    assert deleted == 1_000


def test_messages_that_leave_the_middle_of_the_line_leave_no_trace() -> None:
    engine = Engine(limits=WindowBudget(0, messages_min=64, body_bytes_min=10_000))
    engine.send(b"first")
    for n in range(500):
        engine.send(b"%d" % n, ttl=1_000)
        engine.wait(1_000)
    window = engine.queue.windows[0]
    assert window.ready_count == 1
    assert len(window._ready) < 200


def test_a_dead_letter_queue_filled_out_of_order_comes_out_in_order() -> None:
    engine = small_engine(max_delivery_count=1)
    for body in bodies(150):
        engine.send(body)
    held = []
    while (message := engine.receive()) is not None:
        held.append(message)
    for message in reversed(held):
        engine.abandon(message)
    window = engine.queue.windows[DEAD_LETTER]
    assert len(window.live) <= 2 * SMALL.messages_min + 1
    numbers = []
    while (dead := engine.receive(DEAD_LETTER)) is not None:
        numbers.append(dead.number)
        engine.complete(dead)
    assert numbers == list(range(1, 151))


def test_a_message_given_back_beyond_a_shrunken_window_waits_for_those_between() -> None:
    """R-SETTLE-07: in its sequence order."""
    engine = small_engine(max_delivery_count=1)
    for body in bodies(120):
        engine.send(body)
    held = []
    while (message := engine.receive()) is not None:
        held.append(message)
    for message in held[100:]:
        engine.abandon(message)
    locked = [engine.receive(DEAD_LETTER) for _ in range(20)]
    for message in held[:100]:
        engine.abandon(message)  # the window shrinks below the locked ones
    for dead in locked:
        assert dead is not None
        engine.abandon(dead)
    numbers = []
    while (dead := engine.receive(DEAD_LETTER)) is not None:
        numbers.append(dead.number)
        engine.complete(dead)
    assert numbers == list(range(1, 121))


def test_many_scheduled_messages_are_activated_in_slices_and_in_order() -> None:
    engine = small_engine()
    for n, body in enumerate(bodies(700)):
        engine.send(body, scheduled_at=engine.now + 10_000 - n)
    engine.crash()
    engine.wait(20_000)
    received = []
    while (message := engine.receive()) is not None:
        received.append(message.message_id)
        engine.complete(message)
    assert received == [f"id-{body.decode()}" for body in reversed(bodies(700))]


def test_many_expired_messages_are_swept_in_slices() -> None:
    engine = small_engine(dead_letter_on_expiry=True)
    for body in bodies(700):
        engine.send(body, ttl=1_000)
    engine.crash()
    engine.wait(1_000)
    assert engine.peek() == []
    assert engine.queue.ledger.count(DEAD_LETTER) == 700


def test_deferred_messages_are_found_in_the_index() -> None:
    engine = small_engine()
    numbers = []
    for body in bodies(50):
        numbers += engine.send(body)
    for _ in range(50):
        message = engine.receive()
        assert message is not None
        engine.defer(message)
    engine.commit(checkpoint=True)
    engine.crash()
    found = engine.receive_deferred(numbers[40], numbers[3])
    assert [m.number for m in found] == [numbers[40], numbers[3]]
    with pytest.raises(Exception, match="already locked or does not exist"):
        engine.receive_deferred(numbers[3])
    for message in found:
        engine.complete(message)
    engine.crash()
    assert engine.queue.ledger.count(0, 1) == 48


def test_copy_forward_frees_old_batches_without_losing_a_body() -> None:
    from postbus.broker import chores

    engine = small_engine()
    for body in bodies(200):
        engine.send(body, b"filler" * 50)
    keep = {3, 199, 399}  # small bodies beside large ones that go
    while (message := engine.receive()) is not None:
        if message.number not in keep:
            engine.complete(message)
    engine.commit(checkpoint=True)
    head = engine.queue.ledger.head
    engine.paged(lambda pages: chores.copy_forward(engine.engine, head, 100, pages))
    engine.commit(checkpoint=True)
    while engine.store.trim(FRAGMENT, engine.now + 1, 0, 1_000).more:
        pass
    oldest = engine.store.read(FRAGMENT, 0, 1)
    assert oldest[0].base >= head, "every batch from before the copy is gone"
    engine.crash()
    assert [engine.receive_and_delete() for _ in range(4)] == [
        bodies(200)[1],
        bodies(200)[99],
        bodies(200)[199],
        None,
    ]

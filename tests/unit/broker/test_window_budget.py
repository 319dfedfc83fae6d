"""One budget of memory for all windows: who gets room, and who gives it back."""

from __future__ import annotations

import pytest

from postbus.broker import window_budget
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window import Window
from postbus.broker.window_budget import CHANGE_BYTES, MESSAGE_BYTES, WindowBudget
from tests.support.engine import Engine
from tests.support.topics import Place, Sorter
from tests.support.windows import audit, audit_engines, windows_of

BODY = 1_000
EACH = MESSAGE_BYTES + BODY
LEAST = 4


def budget_for(messages: int) -> WindowBudget:
    """A budget with room for so many messages in windows."""
    return WindowBudget(-(-messages * EACH * 4 // 3), LEAST, 2 * BODY)


def fill(window: Window, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        message = Message(bytes(BODY))
        message.number = message.base = number
        window.add(message)


def take(window: Window, count: int = 1) -> None:
    for _ in range(count):
        message = window.head()
        assert message is not None
        window.pop_head()
        window.forget(message)


def test_a_window_takes_all_the_room_that_is_free() -> None:
    budget = budget_for(100)
    window = Window(budget, True)
    fill(window, 150)
    assert len(window.live) == 100
    assert not window.complete
    assert all(message.has_body for message in window.live.values())


@pytest.mark.interpreted_only
def test_a_window_without_a_receiver_gives_its_room_to_one_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_budget, "IDLE_TAKES", 10)
    budget = budget_for(100)
    idle, busy = Window(budget, True), Window(budget, True)
    fill(idle, 100)
    fill(busy, LEAST)
    for number in range(LEAST + 1, 200):
        take(busy)
        fill(busy, 1, number)
    fill(busy, 60, 200)
    assert len(busy.live) == LEAST + 60
    assert LEAST <= len(idle.live) < 40
    head = idle.head()
    assert head is not None
    assert head.number == 1
    assert head.has_body
    audit(budget, [idle, busy])


def test_a_busy_window_cannot_starve_another() -> None:
    budget = budget_for(100)
    busy, other = Window(budget, True), Window(budget, True)
    fill(busy, 100)
    fill(other, 100)
    assert 40 <= len(other.live) <= 60, "its share, from the largest window"
    assert 40 <= len(busy.live) <= 60
    audit(budget, [busy, other])


def test_a_window_that_has_its_share_takes_nothing_from_others() -> None:
    budget = budget_for(90)
    windows = [Window(budget, True) for _ in range(3)]
    for _ in range(3):
        for window in windows:
            last = max(window.live, default=0)
            fill(window, 60, last + 1)
    assert all(20 <= len(window.live) <= 40 for window in windows)
    audit(budget, windows)


def test_a_window_may_hold_the_minimum_though_nothing_is_left() -> None:
    budget = budget_for(10)
    windows = [Window(budget, True) for _ in range(20)]
    for window in windows:
        fill(window, 50)
    for window in windows:
        assert len(window.live) >= LEAST
        head = window.head()
        assert head is not None
        assert head.has_body
    audit(budget, windows)


def test_a_message_larger_than_the_budget_takes_nothing_from_others() -> None:
    budget = budget_for(20)
    full, window = Window(budget, True), Window(budget, True)
    fill(full, 20)
    fill(window, LEAST)
    large = Message(bytes(1 << 20))
    large.number = LEAST + 1
    window.add(large)
    assert large.number not in window.live
    assert len(full.live) > 10


def test_everything_that_ends_a_message_gives_its_memory_back() -> None:
    engine = Engine(Policy(max_delivery_count=1), budget_for(100))
    for _ in range(8):
        engine.send(b"x" * BODY)
    engine.send(b"x" * BODY, ttl=100)
    for settle in (engine.complete, engine.abandon, engine.defer, engine.dead_letter):
        message = engine.receive()
        assert message is not None
        settle(message)
        audit_engines(engine.limits, [engine.engine])
    assert engine.receive_and_delete() is not None
    assert engine.delete_batch(2) == 2
    engine.wait(1_000)
    assert engine.receive_and_delete(DEAD_LETTER) is not None
    audit_engines(engine.limits, [engine.engine])
    assert engine.queue.ledger.count(MAIN) == 1
    assert engine.queue.ledger.count(DEAD_LETTER) == 2
    assert engine.limits.used <= 3 * EACH
    engine.crash()
    assert engine.limits.used == 0, "an engine that is thrown away holds nothing"


def test_a_subscription_that_is_deleted_gives_its_memory_back() -> None:
    place = Place(matcher=Sorter())
    place.subscribe(1)
    place.subscribe(2)
    place.publish(*(f"m{n}" for n in range(20)))
    place.spread()
    both = place.limits.used
    place.unsubscribe(2)
    assert place.limits.used == both // 2
    audit_engines(place.limits, [place.engine])
    assert len(windows_of(place.engine)) == 6


def test_changes_of_all_deltas_are_counted_together() -> None:
    budget = WindowBudget(4 * 100 * CHANGE_BYTES)
    first, second = Engine(limits=budget), Engine(limits=budget)
    first.engine.shared.charge_changes(60)
    second.engine.shared.charge_changes(40)
    assert not budget.is_short_for_changes
    second.engine.shared.charge_changes(41)
    assert budget.is_short_for_changes
    first.crash()
    assert budget.changes == 41

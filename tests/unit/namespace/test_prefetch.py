"""Receivers that take more than they can settle are noticed (R-PRE-05)."""

from __future__ import annotations

import pytest

from postbus.namespace.prefetch import PrefetchWatch

T0 = 1_700_000_000_000
LOCK_MS = 30_000
MINUTE = 60_000


def watch_of(credit: int, settle_ms: int, samples: int = 100) -> PrefetchWatch:
    watch = PrefetchWatch(T0)
    watch.credited(credit)
    for _ in range(samples):
        watch.settled(settle_ms)
    return watch


@pytest.mark.parametrize("settle_ms", [1, 2, 3, 7, 50, 333, 4_000, 60_000, 900_000])
def test_the_ratio_is_the_full_buffers_time_over_the_lock(settle_ms: int) -> None:
    ratio = watch_of(credit=9, settle_ms=settle_ms).lock_ratio(LOCK_MS, T0)
    assert ratio == pytest.approx(10 * settle_ms / LOCK_MS, rel=0.2)


def test_a_buffer_that_outlasts_its_locks_is_a_finding_with_the_numbers() -> None:
    (finding,) = watch_of(credit=500, settle_ms=100).findings(LOCK_MS, None, T0)
    assert "up to 500 messages" in finding
    assert "lock of 30000 ms" in finding


def test_a_buffer_that_is_settled_in_time_is_none() -> None:
    assert watch_of(credit=100, settle_ms=100).findings(LOCK_MS, None, T0) == []


def test_few_settlements_say_nothing_yet() -> None:
    assert watch_of(credit=5_000, settle_ms=1_000, samples=5).findings(LOCK_MS, None, T0) == []


def test_one_slow_message_among_fast_ones_does_not_count() -> None:
    watch = watch_of(credit=100, settle_ms=5)
    watch.settled(1_000_000_000)
    assert watch.findings(LOCK_MS, None, T0) == []


def test_settling_within_a_millisecond_is_no_risk() -> None:
    assert watch_of(credit=100_000, settle_ms=0).lock_ratio(LOCK_MS, T0) == 0


def test_a_lock_not_shorter_than_the_default_time_to_live_is_a_finding() -> None:
    watch = PrefetchWatch(T0)
    (finding,) = watch.findings(LOCK_MS, LOCK_MS, T0)
    assert "not shorter than the default time to live" in finding
    assert watch.findings(LOCK_MS, LOCK_MS + 1, T0) == []


def test_what_was_long_ago_is_forgotten() -> None:
    watch = watch_of(credit=500, settle_ms=100)
    assert watch.lock_ratio(LOCK_MS, T0 + 6 * MINUTE) > 1
    assert watch.lock_ratio(LOCK_MS, T0 + 12 * MINUTE) == 0

    idle = watch_of(credit=500, settle_ms=100)
    assert idle.lock_ratio(LOCK_MS, T0 + 60 * MINUTE) == 0


def test_a_warning_is_due_once_an_hour() -> None:
    watch = PrefetchWatch(T0)
    assert watch.may_warn(T0)
    assert not watch.may_warn(T0 + 59 * MINUTE)
    assert watch.may_warn(T0 + 60 * MINUTE)

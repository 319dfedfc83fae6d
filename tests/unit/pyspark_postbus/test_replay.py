"""How fast a replay sends, and how much of it the driver holds."""

from __future__ import annotations

import pytest

from pyspark_postbus.pipelines.inputs import parts_of
from pyspark_postbus.pipelines.replay import Pace, ReplayError


class Clock:
    """Time that passes when somebody sleeps, or when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_messages_are_sent_no_faster_than_the_rate_also_after_a_pause() -> None:
    clock = Clock()
    pace = Pace(20.0, clock, clock.sleep)
    for _ in range(3):
        pace.wait(5)
    assert clock.slept == [0.0, 0.25, 0.25]
    # Spark was busy, or the broker away: what was missed is not made up for all at once.
    clock.now += 60.0
    for _ in range(3):
        pace.wait(5)
    assert clock.slept[3:] == [0.0, 0.25, 0.25]


def test_without_a_rate_nothing_is_waited_for() -> None:
    clock = Clock()
    pace = Pace(None, clock, clock.sleep)
    pace.wait(1_000)
    assert clock.slept == []
    assert pace.slice == 1_000
    assert Pace(0.5).slice == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ReplayError, match="above 0"):
        Pace(rate)


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [
        (0, 0, 1),
        (20_000, 1_000, 1),
        (20_001, 1_000, 2),
        # 10,000 messages of 100 KB would be a gigabyte in the driver.
        (10_000, 1_000_000_000, 15),
        (3, 1_000_000_000, 3),
    ],
)
def test_the_driver_holds_neither_too_many_messages_nor_too_large_ones(
    count: int, size: int, parts: int
) -> None:
    assert parts_of(count, size) == parts

"""The system clock, never backwards.

Locks, schedules and expiry compare instants, so time that steps back would revive what has ended.
"""

import time
from collections.abc import Callable

from postbus.model.instant import Instant

_NS_PER_MS = 1_000_000


class SystemClock:
    """Wall time that only moves forward.

    A wall clock that is ahead is followed at once. One that was set back is waited for at half
    speed, measured by the monotonic clock: standing still until it catches up would stop every
    timer for as long as the correction was large.
    """

    __slots__ = ("_monotonic_ns", "_now_ns", "_seen_ns", "_wall_ns")

    def __init__(
        self,
        not_before: Instant = 0,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`not_before` is the last instant known from an earlier run (a journal's newest batch)."""
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._seen_ns = monotonic_ns()
        self._now_ns = max(wall_ns(), not_before * _NS_PER_MS)

    def now(self) -> Instant:
        wall = self._wall_ns()
        seen = self._monotonic_ns()
        if wall > self._now_ns:
            self._now_ns = wall
        else:
            self._now_ns += (seen - self._seen_ns) // 2
        self._seen_ns = seen
        return self._now_ns // _NS_PER_MS

"""The three clocks of a process, and their uses.

The broker's time never goes back. Locks, schedules and expiry compare instants; if time went back,
ended locks would come alive again. The broker's time dates everything that is stored or compared
with stored instants: messages, locks, time to live, schedules, duplicates, retention, idleness,
changes of entities, offsets of readers. Instants from clients (`x-opt-scheduled-enqueue-time`, `at`
of the feed) are compared with it too. If the wall clock was ahead and was set back, these come
early by the difference.

The wall clock is compared with dates that others have set: shared access signatures, JSON Web
Tokens and the claims and links based on them, and certificates (`postbus.tls.certificates`). It
also gives the time in a refusal, which people look up in their own logs. By the broker's time,
tokens would look expired for twice as long as a clock was ahead, even after a restart.

The event loop's clock measures how long a peer takes: heartbeats, idle time-outs, the login. When
the wall clock is set, connections must not end and heartbeats must not stop. Pauses of the broker
itself (between two requests for signing keys, between two lines of a log) use the broker's time.
There half speed does no harm, while a wall clock that is set back would prolong them.
"""

import time
from collections.abc import Callable

from postbus.model.times import Instant

_NS_PER_MS = 1_000_000


class SystemClock:
    """The broker's time: wall time that only moves forward.

    If the wall clock is set forward, this clock follows at once. If it is set back, this clock runs
    at half speed, by the monotonic clock, until the wall clock catches up. If it stood still, every
    timer would stop for that time.
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

    def wall(self) -> Instant:
        """The time of the machine's clock. It may go back."""
        return self._wall_ns() // _NS_PER_MS

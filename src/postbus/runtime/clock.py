"""The clocks of a process, and what each of them is for.

The broker's time never goes back: locks, schedules and expiry compare instants, so time that steps
back would revive what has ended. It dates all that is stored or is compared with what is stored:
messages, locks, time to live, schedules, duplicates, retention, idleness, changes of entities, how
far readers are. Instants that clients give (`x-opt-scheduled-enqueue-time`, `at` of the feed) are
compared with it too: after a wall clock that was ahead they come early, by as much.

The wall clock judges what somebody else has dated: shared access signatures, JSON Web Tokens, the
claims and links that stand on them; certificates (`postbus.tls.certificates`), and the time in
a refusal, which people look up in their own logs. Judged by the broker's time, every token would
look expired for twice as long as a clock was ahead, restarts included.

The event loop's clock counts how long a peer takes: heartbeats, idle time-outs, the time for a
login. A wall clock that is set must neither end all connections nor keep heartbeats from going out.
Pauses of our own (between two looks for signing keys, between two lines of a log) are the broker's
time: half the speed does no harm, and a wall clock set back would draw them out.
"""

import time
from collections.abc import Callable

from postbus.model.times import Instant

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

    def wall(self) -> Instant:
        """The machine's clock as it is now; may go back."""
        return self._wall_ns() // _NS_PER_MS

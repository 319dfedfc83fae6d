"""The machine under the broker: a clock, an event loop and a store's thread, all simulated.

Nothing here runs by itself. The scheduler chooses what happens next: a callback of the loop, a call
on the store's thread, or the arrival of the answer to such a call.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.runtime.clock import SystemClock

T0 = 1_700_000_000_000
_NS = 1_000_000


class Timer:
    """What `call_later` returns."""

    def __init__(self, at: int, call: Callable[[], None]) -> None:
        self.at = at
        self.call = call
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled


class Machine:
    """The event loop, as far as `Runtime` uses it, and the clocks of the machine, in ms."""

    def __init__(self) -> None:
        self._wall = T0
        self._monotonic = 0
        self.start(0)
        self.ready: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []

    def start(self, not_before: int) -> None:
        """A new process, with what it knows of the time from the last one."""
        self._clock = SystemClock(
            not_before,
            wall_ns=lambda: self._wall * _NS,
            monotonic_ns=lambda: self._monotonic * _NS,
        )
        self.now = self._clock.now()
        """What the broker's own clock makes of the other two."""

    def set_clock(self, by: int) -> None:
        """Somebody sets the wall clock, and nothing rings for it."""
        self._wall += by
        self.now = self._clock.now()

    def call_soon(self, call: Callable[..., None], *values: Any) -> None:
        self.ready.append(lambda: call(*values))

    def call_later(self, delay_s: float, call: Callable[..., None], *values: Any) -> Timer:
        timer = Timer(self._monotonic + max(1, round(delay_s * 1000)), lambda: call(*values))
        self._timers.append(timer)
        return timer

    def run_one(self) -> None:
        self.ready.popleft()()

    def pass_time(self, ms: int) -> None:
        """The clock jumps; whatever was to ring meanwhile rings now, late."""
        self._wall += ms
        self._monotonic += ms
        self.now = self._clock.now()
        timers, self._timers = self._timers, []
        for timer in sorted(timers, key=lambda each: each.at):
            if timer.cancelled():
                continue
            if timer.at <= self._monotonic:
                self.ready.append(timer.call)
            else:
                self._timers.append(timer)

    @property
    def next_ring(self) -> int | None:
        """In how many ms something rings."""
        left = (t.at - self._monotonic for t in self._timers if not t.cancelled())
        return min(left, default=None)

    def crash(self) -> None:
        """The process is gone; the machine's clocks are not."""
        self.ready.clear()
        self._timers.clear()


Call = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]


class Thread:
    """The store's thread. Calls happen in order; their answers are delayed, and may overtake each
    other, but none overtakes that of a commit: the runtime relies on hearing first that a commit
    has failed, and then what was read behind it."""

    def __init__(self, chance: random.Random, failing: float) -> None:
        self._chance = chance
        self.failing = failing
        """How often the store refuses a call before it has done anything."""
        self.calls: deque[Call] = deque()
        self.answers: list[tuple[bool, Callable[[], None]]] = []
        """Each with whether it is that of a commit."""

    def submit(
        self,
        call: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.calls.append((call, done, failed))

    def run_one(self) -> None:
        call, done, failed = self.calls.popleft()
        if self._chance.random() < self.failing:
            error = StoreUnavailable("The disk is full.")
            self.answers.append((_is_commit(done), lambda: failed(error)))
            return
        try:
            result = call()
        except (ValueError, ServiceBusError) as error:
            # Decided on top of a commit that failed: it does not fit where the journal ends. Or a
            # sync has failed.
            self.answers.append((_is_commit(done), partial(failed, error)))
            return
        self.answers.append((_is_commit(done), lambda: done(result)))

    def answer_one(self, in_order: bool = False) -> None:
        commits = [place for place, (is_commit, _) in enumerate(self.answers) if is_commit]
        end = commits[0] + 1 if commits else len(self.answers)
        place = 0 if in_order else self._chance.randrange(end)
        self.answers.pop(place)[1]()

    def crash(self) -> None:
        """What was not done yet will not be; what was done stays, and nobody hears of it."""
        self.calls.clear()
        self.answers.clear()


def _is_commit(done: Callable[[Any], None]) -> bool:
    return isinstance(done, partial) and done.func.__name__ == "_committed"

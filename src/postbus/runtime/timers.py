"""The timers of fragments: each wakes its fragment when the engine next has work of its own."""

import asyncio
from collections.abc import Callable
from typing import Final

from postbus.model.times import NEVER, Instant
from postbus.runtime.loaded_fragment import LoadedFragment

DELAY_MAX_MS: Final = 3_600_000


class FragmentTimers:
    """Sets the one timer of each fragment in a store."""

    __slots__ = ("_clock", "_loop", "_wake", "stopped")

    def __init__(
        self, clock: Callable[[], Instant], wake: Callable[[LoadedFragment], None]
    ) -> None:
        self._clock = clock
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self.stopped = False
        """Set when the runtime stops: no timer is set or obeyed from then on."""

    def set(self, fragment: LoadedFragment, now: Instant) -> None:
        """Wake the fragment at its engine's next deadline. An earlier timer stays as it is."""
        engine = fragment.engine
        deadline = fragment.wakes_at if engine is None else engine.next_deadline()
        if self.stopped or (engine is None and deadline >= NEVER):
            return
        if fragment.timer is not None:
            if fragment.timer_at <= deadline and not fragment.timer.cancelled():
                return
            fragment.timer.cancel()
        delay = min(max(deadline - now, 1), DELAY_MAX_MS)
        fragment.timer_at = now + delay
        fragment.timer = self._loop.call_later(delay / 1000, self._ring, fragment)

    def set_again(self, fragment: LoadedFragment) -> None:
        """Set a fragment's timer anew: the clock was set, and a timer counts seconds only."""
        if fragment.timer is not None:
            self.cancel(fragment)
            self.set(fragment, self._clock())

    def cancel(self, fragment: LoadedFragment) -> None:
        if fragment.timer is not None:
            fragment.timer.cancel()
            fragment.timer = None

    def _ring(self, fragment: LoadedFragment) -> None:
        fragment.timer = None
        if self.stopped or fragment.gone is not None:
            return
        now = self._clock()
        if fragment.engine is not None or fragment.wakes_at <= now:
            self._wake(fragment)
        else:
            self.set(fragment, now)

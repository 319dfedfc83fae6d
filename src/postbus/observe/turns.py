"""How long one piece of work keeps the event loop, while everything else waits.

Turns of the engines and data from clients are measured one by one. All other work shows as a tick
that comes late.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

import structlog

ENGINE: Final = "engine"
CLIENT: Final = "client"
OTHER: Final = "other"
KINDS: Final = (ENGINE, CLIENT, OTHER)

LONG_S: Final = 0.05
"""Longer work is logged."""
KEPT_S: Final = 60.0
TICK_S: Final = 0.1

log = structlog.get_logger("turns")


class TurnMeter:
    """The longest turn of each kind, in this minute and the one before. So every scraper that comes
    once a minute sees each long turn."""

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._now = dict.fromkeys(KINDS, 0.0)
        self._before = dict.fromkeys(KINDS, 0.0)

    def observe(self, kind: str, seconds: float) -> None:
        if seconds > self._now[kind]:
            self._now[kind] = seconds
            if seconds > LONG_S and seconds > self._before[kind]:
                log.warning("the event loop was kept", by=kind, seconds=round(seconds, 3))

    def timed(self, kind: str, call: Callable[[], None]) -> None:
        started = perf_counter()
        call()
        self.observe(kind, perf_counter() - started)

    def longest(self) -> dict[str, float]:
        return {kind: max(seconds, self._before[kind]) for kind, seconds in self._now.items()}

    def next_minute(self) -> None:
        self._before, self._now = self._now, dict.fromkeys(KINDS, 0.0)


class Ticking:
    """Ticks on the event loop. Other work held up a tick that comes late."""

    def __init__(self, meter: TurnMeter, loop: asyncio.AbstractEventLoop) -> None:
        self._meter = meter
        self._loop = loop
        self._due = perf_counter() + TICK_S
        self._minute_ends = self._due + KEPT_S
        self._timer = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now = perf_counter()
        self._meter.observe(OTHER, now - self._due)
        if now >= self._minute_ends:
            self._meter.next_minute()
            self._minute_ends = now + KEPT_S
        self._due = now + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

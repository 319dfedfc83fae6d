"""Which backlog queues are in use: pure, with time as an argument (R-PAIR-06)."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Rotation:
    """The usable backlog queues of a client. One that failed rests, for all senders."""

    def __init__(self, paths: Iterable[str], rest_s: float, draw: Callable[[int], int]) -> None:
        """`draw(n)` gives a number from 0 to n - 1 by chance."""
        self.paths = tuple(paths)
        self._rest_s = rest_s
        self._draw = draw
        self._out_until: dict[str, float] = {}

    def usable(self, now: float) -> list[str]:
        out = self._out_until
        return [path for path in self.paths if out.get(path, now) <= now]

    def choose(self, now: float, chosen: str | None) -> str | None:
        """The queue that a sender has chosen before, if it is usable; else another by chance."""
        usable = self.usable(now)
        if chosen in usable:
            return chosen
        return usable[self._draw(len(usable))] if usable else None

    def take_out(self, path: str, now: float) -> None:
        """A send to it has failed: every sender leaves it alone for a while."""
        self._out_until[path] = now + self._rest_s

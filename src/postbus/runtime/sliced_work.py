"""Long work for clients, done in pieces so that other clients need not wait.

Work is cut into pieces by its counted size. Each turn of the event loop does one piece, of one
client's work. Other connections are served in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from postbus.observe.turns import CLIENT, TurnMeter

Step = Callable[[], bool]
"""Does one piece; returns whether there is more to do."""


class SlicedWork:
    """The work under way. Its parts take turns."""

    def __init__(self, turns: TurnMeter) -> None:
        self.turns = turns
        self._steps: deque[Step] = deque()

    @property
    def idle(self) -> bool:
        """Whether no work is under way."""
        return not self._steps

    def add(self, step: Step) -> None:
        """Add work. Its first piece is done in a later turn of the loop."""
        self._steps.append(step)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        started = perf_counter()
        more = False
        try:
            more = self._steps[0]()
        finally:
            # Work that fails is dropped, and the event loop logs the error. The rest goes on.
            step = self._steps.popleft()
            if more:
                self._steps.append(step)
            if self._steps:
                asyncio.get_running_loop().call_soon(self._turn)
            self.turns.observe(CLIENT, perf_counter() - started)

"""Work for clients that takes longer than everybody else may wait.

It is cut into pieces by its counted size. Of all that is under way one piece is done in each turn
of the event loop, and whoever else has something to say or to hear comes in between.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from postbus.observe.turns import CLIENT, TurnMeter

Step = Callable[[], bool]
"""Does a piece; says whether there is more to do."""


class SlicedWork:
    """What is under way, in the order of its turns."""

    def __init__(self, turns: TurnMeter) -> None:
        self.turns = turns
        self._steps: deque[Step] = deque()

    def add(self, step: Step) -> None:
        """Have it done, from the next turn of the loop on."""
        self._steps.append(step)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        started = perf_counter()
        more = False
        try:
            more = self._steps[0]()
        finally:
            # One that fails is dropped, and the loop says why: the others go on.
            step = self._steps.popleft()
            if more:
                self._steps.append(step)
            if self._steps:
                asyncio.get_running_loop().call_soon(self._turn)
            self.turns.observe(CLIENT, perf_counter() - started)

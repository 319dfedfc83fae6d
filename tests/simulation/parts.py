"""A part of a world: it brings entities, their model, clients that use them, and checkers."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World

Weights = dict[Callable[[], None], float]


class Part:
    """Brings nothing; each part overrides what it needs."""

    tries_again = False
    """May the broker wait a while, at a quiet moment, before it tries something again?"""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self.world = world
        self.chance = world.chance
        self.scheduler = scheduler
        self.actions: Weights = {}
        """What clients do, one small thing at a time, and how often."""
        self.steps: Weights = {}
        """What else happens, and how often beside the steps of the scheduler."""

    def habits(self, usual: Weights) -> None:
        """Every seed has habits of its own: what all do all the time hides what few do often."""
        choice = self.chance.choice
        self.actions |= {act: often * choice([0, 1, 1, 4]) for act, often in usual.items()}

    def started(self) -> None:
        """A new process has its fragments, and has not begun to work."""

    def begin(self) -> None:
        """The first process runs."""

    def check(self) -> None:
        """Everything that was under way has come to its end."""

    def open_up(self) -> None:
        """The history is over: let everything be received."""

    def offer(self) -> None:
        """Everything is quiet, and nobody receives yet."""

    def take_out(self) -> None:
        """Receive what no receiver gets by itself; asked until everything is empty."""

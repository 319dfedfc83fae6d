"""What may happen next on a stage: the loop, the store's thread, an answer, time; and quiet."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.contract.disk import PowerCut
from tests.simulation.history import Violation, fault_of
from tests.simulation.stage import Stage

ENDS = "work comes to an end"
_REST_STEPS_MAX = 30_000
_RECOVERY_MS = 11_000
"""Longer than anything waits that was refused by the store."""


class Playing:
    """Plays one history to its end; what is done in it comes from `weights`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._chance: random.Random = stage.chance
        chance = stage.chance
        self.weights: dict[Callable[[], None], float] = {
            self._loop: chance.choice([4, 10, 30]),
            self._store: chance.choice([2, 6, 30]),
            self._answer: chance.choice([2, 6, 30]),
        }
        self._always = list(self.weights)

    def go(self, steps: int) -> None:
        actions, weights = list(self.weights), list(self.weights.values())
        for _ in range(steps):
            self._chance.choices(actions, weights)[0]()

    def _loop(self) -> None:
        if self._stage.machine.ready:
            self._stage.machine.run_one()

    def _store(self) -> None:
        if self._stage.thread.calls:
            try:
                self._stage.thread.run_one()
            except PowerCut:
                self._stage.restart()
            self._stage.give_up_if_spoilt()

    def _answer(self) -> None:
        if self._stage.thread.answers:
            self._stage.thread.answer_one()

    def time(self) -> None:
        ring = self._stage.machine.next_ring
        jumps = [1, 10, 300, 5_000]
        if ring is not None and ring <= 60_000:
            jumps += [max(1, ring)] * 3
        self._stage.machine.pass_time(self._chance.choice(jumps))

    def set_clock(self) -> None:
        """Somebody sets the wall clock, and nothing rings for it."""
        self._stage.machine.set_clock(self._chance.choice([-20_000, -700, -1, 1, 5_000]))

    def stop(self) -> None:
        """The process ends with its indexes up to date, or nearly, in the middle of its work."""
        for fragment in self._stage.fragments.values():
            fragment.checkpoint_wanted = True
            self._stage.runtime.wake(fragment)
        for _ in range(self._chance.randint(5, 60)):
            self._chance.choice(self._always)()
        self._stage.restart()

    def rest(self) -> None:
        """Let everything that is under way come to its end; time stands still."""
        stage = self._stage
        for _ in range(_REST_STEPS_MAX):
            if not (stage.machine.ready or stage.thread.calls or stage.thread.answers):
                return
            self._chance.choice(self._always)()
        raise Violation(ENDS, None, "the broker never comes to rest")

    @contextmanager
    def quiet(self, patient: bool = False) -> Iterator[None]:
        """Everything is done that can be; the store answers for so long. `patient` if somebody
        may be trying again."""
        stage = self._stage
        stage.spare()
        failing, stage.thread.failing = stage.thread.failing, 0.0
        for fragment in stage.fragments.values():
            stage.runtime.set_timer_again(fragment)  # as upkeep does where the clock was set
        for wait in [_RECOVERY_MS, _RECOVERY_MS, 1] if failing or patient else [1]:
            end = stage.now + wait
            while stage.now < end:  # a clock that was set back goes slowly
                self.rest()
                stage.machine.pass_time(wait)
        self.rest()
        yield
        stage.thread.failing = failing


@contextmanager
def told(seed: int, kind: str, stage: Stage) -> Iterator[None]:
    """Whatever goes wrong is a Violation, with the seed and the story of the message."""
    try:
        yield
    except Exception as error:
        found = error if isinstance(error, Violation) else fault_of(error)
        found.add_note(f"seed {seed} of {kind}\n{stage.history.about(found.name)}")
        if found is error:
            raise
        raise found from error
    finally:
        stage.close()

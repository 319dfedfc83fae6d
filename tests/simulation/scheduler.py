"""What may happen next in a world: the loop, a store's thread, an answer, time; and quiet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.contract.disk import PowerCut
from tests.simulation.history import Violation
from tests.simulation.promises import ENDS
from tests.simulation.world import World

_REST_STEPS_MAX = 60_000
_LOOP_STEPS_MAX = 50
_SOON_MS = 60_000
_RECOVERY_MS = 11_000
"""Longer than anything waits that was refused by the store."""


class Scheduler:
    """Chooses, from the seed, which of the things that could happen next does."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance = world.chance
        self._jump = chance.choice([30, 2_500, 20_000])
        self._always: list[Callable[[], None]] = [self._loop, self._store, self._answer]
        self.weights: dict[Callable[[], None], float] = {
            self._loop: chance.choice([3, 8, 25]),
            self._store: chance.choice([2, 5, 25]),
            self._answer: chance.choice([2, 5, 25]),
            self.pass_time: chance.choice([0.1, 0.5, 2]),
            self.idle: chance.choice([0, 0.1, 0.6]),
            self.rest: chance.choice([0, 0, 0.3, 2]),
            self.set_clock: chance.choice([0, 0, 0.1, 0.3]),
            world.trim: chance.choice([0, 0.5, 2, 4]),
            world.want_checkpoint: chance.choice([0.1, 0.3, 1]),
            world.crash: chance.choice(
                [0.15, 0.5, 1.5] if world.stores[0].disk is not None else [0, 0.15, 0.6]
            ),
            world.forget_idle: chance.choice([0, 0.5, 3]),
        }

    def _loop(self) -> None:
        if self._world.machine.ready:
            self._world.machine.run_one()

    def _store(self) -> None:
        stores = [store for store in self._world.stores if store.thread.calls]
        if stores:
            try:
                self._chance.choice(stores).thread.run_one()
            except PowerCut:
                self._world.restart()
            self._world.stop_if_a_sync_failed()

    def _answer(self) -> None:
        stores = [store for store in self._world.stores if store.thread.answers]
        if stores:
            self._chance.choice(stores).thread.answer_one()

    # -- time ------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        ring = self._world.machine.next_ring
        jumps = [1, 10, 300, self._jump]
        if ring is not None and ring <= _SOON_MS:
            jumps += [max(1, ring)] * 2 + [max(1, ring // 2)] * 2
        elif ring is not None:
            jumps.append(ring)  # an hour of nothing, in which all locks and lifetimes run out
        self.wait(self._chance.choice(jumps))

    def wait(self, ms: int) -> None:
        self._world.machine.pass_time(ms)

    def set_clock(self) -> None:
        """Somebody sets the wall clock, and nothing rings for it."""
        self._world.machine.set_clock(self._chance.choice([-20_000, -700, -1, 1, 5_000]))

    def idle(self) -> None:
        """Nobody does anything until all requests are answered, and then for a while."""
        self.rest()
        self.pass_time()

    def stop(self) -> None:
        """The process ends with its indexes up to date, or nearly, in the middle of its work."""
        world = self._world
        for fragment in world.fragments.values():
            fragment.checkpoint_wanted = True
            world.runtime_of(fragment).wake(fragment)
        for _ in range(self._chance.randint(5, 60)):
            self._chance.choice(self._always)()
        world.restart()

    # -- quiet moments ---------------------------------------------------------------------------

    def run_loop(self) -> None:
        """The loop does all it can without the stores."""
        for _ in range(_LOOP_STEPS_MAX):
            if not self._world.machine.ready:
                return
            self._loop()

    def rest(self) -> None:
        """Everything that is under way comes to its end; time stands still."""
        world = self._world
        for _ in range(_REST_STEPS_MAX):
            threads = [store.thread for store in world.stores]
            if not (world.machine.ready or any(t.calls or t.answers for t in threads)):
                return
            self._chance.choice(self._always)()
        raise Violation(ENDS, None, "the broker never comes to rest")

    def rest_and_wait(self, ms: int) -> None:
        self.rest()
        self.wait(ms)
        self.rest()

    @contextmanager
    def quiet(self, patient: bool = False) -> Iterator[None]:
        """Everything is done that can be done; meanwhile the stores answer. `patient` waits for
        requests that are tried again after a while."""
        world = self._world
        patient = patient or world.failing > 0 or world.made_room
        world.made_room = False
        for store in world.stores:
            if store.disk is not None:
                store.disk.call_off()
                patient = patient or store.disk.was_full
                store.disk.was_full = False
            store.thread.failing = 0.0
        for fragment in world.fragments.values():
            # As upkeep does where the clock was set.
            world.runtime_of(fragment).set_timer_again(fragment)
        for ms in [_RECOVERY_MS, _RECOVERY_MS, 1] if patient else [1]:
            end = world.now + ms
            while world.now < end:  # a clock that was set back goes slowly
                self.rest()
                self.wait(ms)
        self.rest()
        yield
        for store in world.stores:
            store.thread.failing = world.failing

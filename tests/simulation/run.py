"""Run a seed: steps in random order, audits now and then, and at the end all is taken out."""

from __future__ import annotations

import random
from collections.abc import Callable

from postbus.broker.message import DEFERRED, SCHEDULED
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from tests.contract.disk import PowerCut
from tests.simulation.history import Violation, fault_of
from tests.simulation.inventory import (
    from_every_record,
    from_index_and_tail,
    read_from,
    same,
    take_stock,
)
from tests.simulation.patches import tiny
from tests.simulation.simulation import Simulation

STEPS = 800
ON_DISK_EVERY = 4
_SOON = 60_000
_LOOP_STEPS_MAX = 50
_REST_STEPS_MAX = 20_000
_DRAIN_ROUNDS = 400


def run_seed(seed: int, kind: type[Simulation] = Simulation, steps: int = STEPS) -> None:
    """Raises Violation, with the seed and the story of the message it is about."""
    chance = random.Random(seed)
    with tiny(chance):
        simulation = kind(chance, on_disk(seed))
        try:
            Run(simulation).go(chance.randint(steps // 10, steps))
        except Exception as error:
            found = error if isinstance(error, Violation) else fault_of(error)
            found.add_note(f"seed {seed}\n{simulation.history.about(found.name)}")
            if found is error:
                raise
            raise found from error
        finally:
            simulation.close()


def on_disk(seed: int) -> bool:
    return seed % ON_DISK_EVERY == ON_DISK_EVERY - 1


class Run:
    """Plays one simulation to its end."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._chance = simulation.chance
        chance = simulation.chance
        self._jump = chance.choice([30, 2_500, 20_000])
        self._weights = {
            self._loop: chance.choice([2, 6, 20]),
            self._store: chance.choice([1, 3, 20]),
            self._answer: chance.choice([1, 3, 20]),
            simulation.clients.act: 10,
            self._receive: chance.choice([1, 3, 6]),
            self._hurry: chance.choice([0, 0.1, 0.3]),
            self._time: chance.choice([0.1, 0.5, 2]),
            self._idle: chance.choice([0, 0.1, 0.6]),
            simulation.trim: chance.choice([0, 0.5, 2]),
            self._checkpoint: 0.3,
            simulation.crash: chance.choice(simulation.crash_weights),
            self._set_clock: chance.choice([0, 0.1]),
            simulation.forget_idle: chance.choice([0, 0.5, 3]),
            self._desert: chance.choice([0, 0.1, 0.5]),
            self.audit: 0.15,
        }

    def go(self, steps: int) -> None:
        actions, weights = list(self._weights), list(self._weights.values())
        for _ in range(steps):
            self._chance.choices(actions, weights)[0]()
        self.audit()
        self._drain()

    # -- what may happen next -------------------------------------------------------------------

    def _loop(self) -> None:
        if self._sim.machine.ready:
            self._sim.machine.run_one()

    def _store(self) -> None:
        if self._sim.thread.calls:
            try:
                self._sim.thread.run_one()
            except PowerCut:
                self._sim.restart()
            self._sim.give_up_if_spoilt()

    def _answer(self) -> None:
        if self._sim.thread.answers:
            self._sim.thread.answer_one()

    def _receive(self) -> None:
        sim, chance = self._sim, self._chance
        if len(sim.receivers) < 3 or chance.random() < 0.1:
            sim.attach()
        elif chance.random() < 0.2:
            sim.detach()
        else:
            sim.refresh_credit()

    def _hurry(self) -> None:
        """Somebody sends to a queue where nobody waits; while that is being written another comes
        to receive, and others ask for things that write nothing: that is worth a turn."""
        sim = self._sim
        while sim.receivers:
            sim.detach()
        sim.clients.send()
        self._catch_up()
        sim.attach_one(MAIN, False, 2)
        for _ in range(3):
            sim.clients.settle_late()
        self._catch_up()

    def _catch_up(self) -> None:
        """The loop does all it can without the store."""
        for _ in range(_LOOP_STEPS_MAX):
            if not self._sim.machine.ready:
                return
            self._loop()

    def _time(self) -> None:
        machine = self._sim.machine
        ring = machine.next_ring
        jumps = [1, 10, 300, self._jump]
        if ring is not None and ring <= _SOON:
            jumps += [max(1, ring)] * 2 + [max(1, ring // 2)] * 2
        elif ring is not None:
            jumps.append(ring)  # an hour of nothing, in which all that can run out does
        machine.pass_time(self._chance.choice(jumps))

    def _idle(self) -> None:
        """Nobody does anything until all is answered, and then for a while."""
        self._rest()
        self._time()

    def _set_clock(self) -> None:
        self._sim.machine.set_clock(self._chance.choice([-20_000, -700, -1, 1, 5_000]))

    def _checkpoint(self) -> None:
        self._sim.fragment.checkpoint_wanted = True
        self._sim.runtime.wake(self._sim.fragment)

    def _desert(self) -> None:
        """Everybody leaves. When the locks have run out the engine is not needed any more."""
        sim = self._sim
        while sim.receivers:
            sim.detach()
        sim.machine.pass_time(sim.policy.lock_ms)
        for _ in range(2):  # a checkpoint may have to be written first
            self._rest()
            sim.forget_idle()
        sim.machine.pass_time(self._chance.choice([1, 300, self._jump]))
        self._rest()
        self._check_due()

    # -- quiet moments --------------------------------------------------------------------------

    def _rest(self) -> None:
        """Let everything that is under way come to its end; time stands still."""
        sim = self._sim
        steps: list[Callable[[], None]] = [self._loop, self._store, self._answer]
        for _ in range(_REST_STEPS_MAX):
            if not (sim.machine.ready or sim.thread.calls or sim.thread.answers):
                return
            self._chance.choice(steps)()
        raise Violation("work comes to an end", None, "the broker never comes to rest")

    def audit(self) -> None:
        """Compare the live engine, the model, a restart, and a replay of everything."""
        sim = self._sim
        sim.spare()
        failing, sim.thread.failing = sim.thread.failing, 0.0
        self._rest()
        if not failing:
            self._check_due()
            self._check_served()
        sim.runtime.wake(sim.fragment)  # what failed before is asked again
        self._rest()
        sim.thread.failing = failing
        engine = sim.fragment.engine
        if engine is None or engine.ledger.pending:
            raise Violation("work comes to an end", None, "the engine is not there, or not written")
        if sim.model.live != sim.model.durable:
            raise Violation("replay equals live", None, "decided and written differ")
        queue = engine.own
        live = take_stock(queue, read_from(sim.journal.store))
        for checker in sim.checkers:
            checker.seen(live, queue)
        second = from_index_and_tail(sim.journal.store, sim.journal.stands, sim.policy)
        same(live, take_stock(second, read_from(sim.journal.store)), "replay equals live")
        third, read = from_every_record(sim.journal.batches, sim.policy)
        same(live, take_stock(third, read), "index and tail equal a full replay")
        for other in (second, third):
            for checker in sim.checkers:
                checker.seen(live, other)

    def _check_due(self) -> None:
        """Whether or not the engine is in memory, as long as the store answers."""
        if self._sim.thread.failing:
            return
        # Upkeep looks every second whether the clock was set.
        self._sim.runtime.set_timer_again(self._sim.fragment)
        self._sim.machine.pass_time(1)  # a timer waits that long at the least
        self._rest()
        now = self._sim.now - 1
        for entry in self._sim.model.durable.values():
            if entry.lane == SCHEDULED and entry.enqueued_at <= now:
                text = f"due at {entry.enqueued_at}, it is {now}"
                raise Violation("what is due comes on time", entry.name, text)

    def _check_served(self) -> None:
        """Nobody is called but where something happened, so a call that is lost is lost."""
        sim = self._sim
        for subqueue, line in sim.fragment.receiver_queues.items():
            if not (sim.policy.receives and any(r.capacity() > 0 for r in line.members)):
                continue
            first = sim.model.first_ready(subqueue, sim.now)
            if first is not None:
                raise Violation("whoever waits is served", first.name, f"nobody gets {first}")

    def _drain(self) -> None:
        """Whatever is there can be had."""
        sim = self._sim
        sim.thread.failing = 0.0
        sim.update(Policy())
        for _ in range(_DRAIN_ROUNDS):
            if not sim.model.durable:
                self.audit()
                return
            sim.attach_one(MAIN, True, 20)
            sim.attach_one(DEAD_LETTER, True, 20)
            for entry in list(sim.model.live.values()):
                if entry.lane == DEFERRED:
                    sim.clients.receive_deferred(entry.subqueue, [entry.number], True)
            self._rest()
            sim.machine.pass_time(15_000)
            self._rest()
        name = min(sim.model.durable)
        raise Violation("whatever is there can be had", name, f"stays: {sim.model.durable[name]}")

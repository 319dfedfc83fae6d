"""Run a seed: steps in random order, checks at quiet moments, and at the end all is taken out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack

from tests.simulation.disk import SimDisk
from tests.simulation.duplicates.part import Duplicates
from tests.simulation.history import Violation, fault_of
from tests.simulation.limits import simulated_loop, small_limits
from tests.simulation.parts import Part, Weights
from tests.simulation.promises import TAKEN_OUT
from tests.simulation.queues.part import PlainQueue, QueueClients
from tests.simulation.queues.queues import Queues
from tests.simulation.queues.resubmission import Resubmission
from tests.simulation.replay import all_rows, check_empty
from tests.simulation.scheduler import Scheduler
from tests.simulation.sessions.part import Sessions
from tests.simulation.topics.part import Topics
from tests.simulation.topics.resubmission import TopicResubmission
from tests.simulation.transactions.part import TransactionClients
from tests.simulation.world import World

QUEUES = ("queues", "resubmission")
TOPICS = ("topics", "resubmission")
SESSIONS = ("sessions", "duplicates", "transactions")
EVERYTHING = ("queues", "topics", "sessions", "duplicates", "transactions", "resubmission")
"""All parts there are."""

STEPS = 800
ON_DISK_EVERY = 4
_DRAIN_ROUNDS = 80


def run_seed(
    seed: int,
    parts: Sequence[str] = EVERYTHING,
    world_class: type[World] = World,
    steps: int = STEPS,
    on_disk: bool | None = None,
    disk: type[SimDisk] = SimDisk,
) -> World:
    """Raises Violation, with the seed and the story of the message that it is about."""
    chance = random.Random(seed)
    if on_disk is None:
        on_disk = seed % ON_DISK_EVERY == ON_DISK_EVERY - 1
    with ExitStack() as stack:
        stack.enter_context(small_limits(chance))
        world = world_class(chance, disk if on_disk else None)
        stack.callback(world.close)
        stack.enter_context(simulated_loop(world.machine))
        try:
            Run(world, parts).go(chance.randint(steps // 10, steps))
        except Exception as error:
            found = error if isinstance(error, Violation) else fault_of(error)
            story = world.history.about(found.name)
            found.add_note(f"seed {seed} of {' '.join(parts)}\n{story}")
            if found is error:
                raise
            raise found from error
    return world


def make_parts(world: World, scheduler: Scheduler, names: Sequence[str]) -> list[Part]:
    """The parts with these names, and what they have in common."""
    parts: list[Part] = []
    topics = Topics(world, scheduler) if "topics" in names else None
    if set(names) & {"queues", "sessions", "duplicates", "transactions"}:
        queues = Queues(world, scheduler)
        clients = QueueClients(queues)
        parts += [queues, clients]
        if "queues" in names:
            parts.append(PlainQueue(clients))
        if "sessions" in names:
            parts.append(Sessions(clients))
        if "duplicates" in names:
            parts.append(Duplicates(queues))
        if "transactions" in names:
            parts.append(TransactionClients(clients))
        if "resubmission" in names:
            parts.append(Resubmission(queues))
    if topics is not None:
        parts.append(topics)
        if "resubmission" in names:
            parts.append(TopicResubmission(topics))
    return parts


class Run:
    """Takes one history to its end."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self._world = world
        self._chance = chance = world.chance
        self._scheduler = Scheduler(world)
        self._parts = world.parts = make_parts(world, self._scheduler, names)
        self._actions: Weights = {}
        weights = self._weights = dict(self._scheduler.weights)
        weights |= {
            self._act: chance.choice([10, 20, 40]),
            self._stop: chance.choice([0, 0, 0.3, 0.6]),
            self.check: 0.2,
        }
        for part in self._parts:
            self._actions |= part.actions
            weights |= part.steps
        world.start()
        for part in self._parts:
            part.begin()

    def go(self, steps: int) -> None:
        steps_there_are, weights = list(self._weights), list(self._weights.values())
        for _ in range(steps):
            self._chance.choices(steps_there_are, weights)[0]()
        self.check()
        self._take_everything_out()

    def _act(self) -> None:
        """A client does one small thing."""
        self._chance.choices(list(self._actions), list(self._actions.values()))[0]()

    def _stop(self) -> None:
        """The process stops and starts again; and perhaps nobody uses anything after that."""
        self._scheduler.stop()
        if self._chance.random() < 0.5:
            self.check()

    def check(self) -> None:
        """Let everything come to its end; then each part looks."""
        patient = any(part.tries_again for part in self._parts)
        with self._scheduler.quiet(patient):
            self._world.check_memory()
            for part in self._parts:
                part.check()

    def _take_everything_out(self) -> None:
        world = self._world
        world.failing = 0.0
        for part in self._parts:
            part.open_up()
        with self._scheduler.quiet(patient=True):
            for part in self._parts:
                part.offer()
        for _ in range(_DRAIN_ROUNDS):
            for part in self._parts:
                part.take_out()
            self._scheduler.rest_and_wait(10_000)
            if not any(all_rows(world, fragment_id) for fragment_id in world.fragments):
                self.check()
                for fragment_id in world.fragments:
                    check_empty(world, fragment_id)
                return
        for fragment_id in world.fragments:
            for row in all_rows(world, fragment_id):
                text = f"{row.message_id} stays in {fragment_id}, lane {row.lane}"
                raise Violation(TAKEN_OUT, row.message_id, text)

"""Run a seed: steps in random order, audits now and then, and at the end all is taken out."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

from postbus.broker import forwarding, topic
from postbus.broker.message import DEAD_LETTER, MAIN, OWNER_BITS
from postbus.broker.policy import Policy
from postbus.server import courier
from tests.contract.disk import PowerCut
from tests.simulation.history import Violation, fault_of
from tests.simulation.patches import Silent, tiny
from tests.simulation.run import on_disk
from tests.simulation.topics.judge import ENDS, Judge
from tests.simulation.topics.people import People
from tests.simulation.topics.plan import TOPIC
from tests.simulation.topics.world import World

STEPS = 700
_REST_STEPS_MAX = 30_000
_RECOVERY_MS = 11_000
"""Longer than anything waits that was refused by the store."""
_DRAIN_ROUNDS = 60


def run_topic_seed(seed: int, steps: int = STEPS) -> World:
    """Raises Violation, with the seed and the story of the message it is about."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        stack.enter_context(tiny(chance))
        few = chance.choice([1, 2, 5])
        staged = {"COPIES_AT_ONCE": few, "STAGED_ROWS": chance.choice([1, few])}
        stack.enter_context(mock.patch.multiple(topic, **staged))
        shipped = {"SHIPPED_AT_ONCE": chance.choice([1, 2, 5]), "DIVERTED_AT_ONCE": few}
        stack.enter_context(mock.patch.multiple(forwarding, **shipped))
        world = World(chance, on_disk(seed))
        loop = mock.Mock(get_running_loop=lambda: world.machine)
        stack.enter_context(
            mock.patch.multiple(courier, log=Silent(), asyncio=loop, SHIPMENTS_MAX=few)
        )
        try:
            Play(world).go(chance.randint(steps // 10, steps))
        except Exception as error:
            found = error if isinstance(error, Violation) else fault_of(error)
            found.add_note(f"seed {seed} of topics\n{world.history.about(found.name)}")
            if found is error:
                raise
            raise found from error
        finally:
            world.close()
        return world


class Play:
    """Plays one history to its end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = chance = world.chance
        self._people = People(world)
        self._judge = Judge(world, self._people)
        self._weights: dict[Callable[[], None], float] = {
            self._loop: chance.choice([4, 10, 30]),
            self._store: chance.choice([2, 6, 30]),
            self._answer: chance.choice([2, 6, 30]),
            self._people.act: 10,
            self._time: chance.choice([0.2, 1]),
            self._rest: chance.choice([0, 0.3, 2]),
            world.trim: chance.choice([0, 0.5, 2]),
            world.want_checkpoint: 0.3,
            world.crash: chance.choice([0, 0.3, 1]),
            world.forget_idle: chance.choice([0, 1]),
            self._stop: chance.choice([0, 0.3]),
            self.audit: 0.2,
        }

    def go(self, steps: int) -> None:
        actions, weights = list(self._weights), list(self._weights.values())
        for _ in range(steps):
            self._chance.choices(actions, weights)[0]()
        self.audit()
        self._drain()

    def _loop(self) -> None:
        if self._world.machine.ready:
            self._world.machine.run_one()

    def _store(self) -> None:
        if self._world.thread.calls:
            try:
                self._world.thread.run_one()
            except PowerCut:
                self._world.restart()

    def _answer(self) -> None:
        if self._world.thread.answers:
            self._world.thread.answer_one()

    def _time(self) -> None:
        ring = self._world.machine.next_ring
        jumps = [1, 10, 300, 5_000]
        if ring is not None and ring <= 60_000:
            jumps += [max(1, ring)] * 3
        self._world.machine.pass_time(self._chance.choice(jumps))

    def _stop(self) -> None:
        """The process ends with its indexes up to date, or nearly, in the middle of its work."""
        for host in self._world.hosts.values():
            host.checkpoint_wanted = True
            self._world.runtime.wake(host)
        steps: list[Callable[[], None]] = [self._loop, self._store, self._answer]
        for _ in range(self._chance.randint(5, 60)):
            self._chance.choice(steps)()
        self._world.restart()

    def _rest(self) -> None:
        """Let everything that is under way come to its end; time stands still."""
        world = self._world
        steps: list[Callable[[], None]] = [self._loop, self._store, self._answer]
        for _ in range(_REST_STEPS_MAX):
            if not (world.machine.ready or world.thread.calls or world.thread.answers):
                return
            self._chance.choice(steps)()
        raise Violation(ENDS, None, "the broker never comes to rest")

    def audit(self) -> None:
        world = self._world
        world.spare()
        failing, world.thread.failing = world.thread.failing, 0.0
        # A courier that met a deleted entity tries again, and finds that there is none.
        patient = failing or world.plan.gone
        for wait in [_RECOVERY_MS, _RECOVERY_MS, 1] if patient else [1]:
            self._rest()
            world.machine.pass_time(wait)
        self._rest()
        self._judge.at_rest()
        world.thread.failing = failing

    def _drain(self) -> None:
        """Whatever is there can be had."""
        world = self._world
        world.failing = world.thread.failing = 0.0
        plain = Policy(dead_letter_on_expiry=True)
        for subscription in world.plan.standing():
            keeps = subscription.policy.dead_letter_on_filter_errors
            self._people.set_subscription(
                subscription, plain._replace(dead_letter_on_filter_errors=keeps)
            )
        for fragment in world.hosts:
            self._people.set_policy(fragment, plain)
        for subqueue, fragment in self._everywhere():
            world.attach(world.hosts[fragment], subqueue, True, 1_000_000)
        for _ in range(_DRAIN_ROUNDS):
            self._rest()
            for fragment, message in self._judge.deferred():
                self._people.take_deferred(fragment, message)
            world.machine.pass_time(10_000)
            self._rest()
            if not any(
                any(h.engine.ledger.counts.values()) for h in world.hosts.values() if h.engine
            ):
                break
        self.audit()
        self._judge.empty()

    def _everywhere(self) -> list[tuple[int, int]]:
        owners = {TOPIC: [each.owner for each in self._world.plan.standing()]}
        return [
            (owner << OWNER_BITS | kind, fragment)
            for fragment in self._world.hosts
            for owner in owners.get(fragment, [0])
            for kind in (MAIN, DEAD_LETTER)
        ]

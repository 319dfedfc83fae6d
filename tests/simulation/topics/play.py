"""Run a seed: steps in random order, audits now and then, and at the end all is taken out."""

from __future__ import annotations

import random
from contextlib import ExitStack
from unittest import mock

from postbus.broker import forwarding, topic
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.runtime import forwarder
from tests.simulation.patches import Silent, tiny
from tests.simulation.playing import Playing, told
from tests.simulation.run import on_disk
from tests.simulation.topics.judge import Judge
from tests.simulation.topics.people import People
from tests.simulation.topics.plan import TOPIC
from tests.simulation.topics.world import World

STEPS = 700
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
            mock.patch.multiple(forwarder, log=Silent(), asyncio=loop, BATCHES_MAX=few)
        )
        with told(seed, "topics", world):
            Play(world).play(chance.randint(steps // 10, steps))
        return world


class Play(Playing):
    """Plays one history to its end."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        chance = world.chance
        self._world = world
        self._people = People(world)
        self._judge = Judge(world, self._people)
        self.weights |= {
            self._people.act: 10,
            self.time: chance.choice([0.2, 1]),
            self.rest: chance.choice([0, 0.3, 2]),
            world.trim: chance.choice([0, 0.5, 2]),
            world.want_checkpoint: 0.3,
            world.crash: chance.choice([0, 0.3, 1]),
            world.forget_idle: chance.choice([0, 1]),
            self.stop: chance.choice([0, 0.3]),
            self.audit: 0.2,
        }

    def play(self, steps: int) -> None:
        self.go(steps)
        self.audit()
        self._drain()

    def audit(self) -> None:
        # A courier that met a deleted entity tries again, and finds that there is none.
        with self.quiet(patient=bool(self._world.gone)):
            self._judge.at_rest()

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
        for fragment_id in world.fragments:
            self._people.set_policy(fragment_id, plain)
        for subqueue, fragment_id in self._everywhere():
            world.attach(world.fragments[fragment_id], subqueue, True, 1_000_000)
        for _ in range(_DRAIN_ROUNDS):
            self.rest()
            for fragment_id, message in self._judge.deferred():
                self._people.take_deferred(fragment_id, message)
            world.machine.pass_time(10_000)
            self.rest()
            if not any(
                any(h.engine.ledger.counts.values()) for h in world.fragments.values() if h.engine
            ):
                break
        self.audit()
        self._judge.empty()

    def _everywhere(self) -> list[tuple[int, int]]:
        owners = {TOPIC: [each.owner for each in self._world.plan.standing()]}
        received = [
            (subqueue_of(owner, kind), fragment_id)
            for fragment_id in self._world.fragments
            for owner in owners.get(fragment_id, [0])
            for kind in (MAIN, DEAD_LETTER)
        ]
        return received + [
            (TRANSFER_DEAD_LETTER, fragment_id) for fragment_id in self._world.fragments
        ]

"""Run a seed: steps in random order, audits now and then, and at the end all is taken out."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any
from unittest import mock

from postbus.broker import browse as browsing
from postbus.broker import (
    duplicate_history,
    duplicates,
    forwarding,
    held_sessions,
    session_list,
    session_operations,
)
from postbus.broker.message import ACTIVE, DEFERRED
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from postbus.gateway.transactions import open_transactions
from postbus.runtime import forwarder, reads, sessions
from tests.simulation.history import Violation
from tests.simulation.patches import Silent, tiny
from tests.simulation.playing import Playing, told
from tests.simulation.run import on_disk
from tests.simulation.sessions.company import Company
from tests.simulation.sessions.dealers import Dealers
from tests.simulation.sessions.judge import Judge
from tests.simulation.sessions.letters import WORK
from tests.simulation.sessions.people import People
from tests.simulation.sessions.promises import OFFERED
from tests.simulation.sessions.world import World

STEPS = 900
_DRAIN_ROUNDS = 80


def run_session_seed(seed: int, steps: int = STEPS) -> World:
    """Raises Violation, with the seed and the story of the message it is about."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        stack.enter_context(tiny(chance))
        for module, values in _bounds(chance):
            stack.enter_context(mock.patch.multiple(module, **values))
        world = World(chance, on_disk(seed))
        loop = mock.Mock(get_running_loop=lambda: world.machine)
        for module in (forwarder, open_transactions):
            stack.enter_context(mock.patch.multiple(module, log=Silent(), asyncio=loop))
        with told(seed, "sessions", world):
            Play(world).play(chance.randint(steps // 10, steps))
        return world


def _bounds(chance: random.Random) -> list[tuple[Any, dict[str, Any]]]:
    """As small as they can be."""
    few = chance.choice([1, 2, 5])
    line = {"READY_MAX": chance.choice([1, 2, 4, 1_024])}
    return [
        (forwarding, {"SHIPPED_AT_ONCE": few}),
        (forwarder, {"BATCHES_MAX": few}),
        (held_sessions, line),
        (session_operations, {**line, "FIRST_ROWS": chance.choice([1, 2, 64])}),
        (session_operations, {"LOOKED_AT_MAX": chance.choice([1, 3])}),
        (session_list, {"READ_AT_ONCE": chance.choice([1, 3, 256])}),
        (sessions, {"GIVEN_PER_TURN": few, "SERVED_AT_ONCE": chance.choice([1, 3])}),
        (duplicate_history, {"SEGMENT_IDS": chance.choice([1, 3, 65_536]), "CAPACITY_MIN": 2}),
        (duplicates, {"RECALLED_AT_ONCE": chance.choice([1, 4_096])}),
        (reads, {"FORESEEN_MAX": chance.choice([1, 3])}),
        (browsing, {"DELETE_ROWS": chance.choice([1, 3])}),
    ]


class Play(Playing):
    """Plays one history to its end."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        chance = world.chance
        self._world = world
        self._people = People(world)
        self._company = Company(world)
        self._dealers = Dealers(world, self._people)
        self._judge = Judge(world, self._company)
        world.on_engine_lost = self._engine_lost
        world.on_restart = self._dealers.restarted
        people = [self._people.weights, self._company.weights, self._dealers.weights]
        self._acts = {act: often for weights in people for act, often in weights.items()}
        self._eager = chance.choice([0, 0.2, 0.5])
        """How often somebody who has received something does something with it."""
        self.weights |= {
            self._act: chance.choice([15, 40]),
            self.time: chance.choice([0.2, 1]),
            self.rest: chance.choice([0.3, 2, 5]),
            world.trim: chance.choice([0, 0.5, 2]),
            world.forget_ids: chance.choice([0, 1]),
            world.want_checkpoint: chance.choice([0.1, 1]),
            world.crash: chance.choice([0, 0.1, 0.6]),
            world.forget_idle: chance.choice([0, 1]),
            self._stop: chance.choice([0, 0.2, 0.6]),
            self.set_clock: chance.choice([0, 0, 0.3]),
            self.audit: 0.2,
        }

    def play(self, steps: int) -> None:
        self.go(steps)
        self.audit()
        self._drain()

    def _act(self) -> None:
        if self._people.held and self._chance.random() < self._eager:
            self._chance.choice([self._people.settle, self._dealers.settle, self._dealers.move])()
            if self._chance.random() < 0.5:
                self._dealers.commit()
            return
        self._chance.choices(list(self._acts), list(self._acts.values()))[0]()

    def _stop(self) -> None:
        """And perhaps nobody uses anything after the next start."""
        self.stop()
        if self._chance.random() < 0.5:
            self.audit()

    def _engine_lost(self, fragment_id: int) -> None:
        self._people.forget(fragment_id)
        self._company.forget(fragment_id)

    def audit(self) -> None:
        # One that was full may have room again, and the courier rests before it looks.
        with self.quiet(patient=True):
            self._judge.at_rest()

    # -- the end -------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Whatever is there can be had, and every session is offered."""
        world = self._world
        world.failing = world.thread.failing = 0.0
        for guest in self._company.guests:
            guest.close()
        for taker in list(world.takers):
            world.detach(taker)
        for fragment_id, policy in list(world.policies.items()):
            window_ms = policy.duplicate_window_ms
            plain = Policy(dead_letter_on_expiry=True, duplicate_window_ms=window_ms)
            world.set_policy(fragment_id, plain._replace(requires_session=fragment_id == WORK))
        with self.quiet(patient=True):
            self._go_round()
        for fragment_id, fragment in world.fragments.items():
            for subqueue in (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER):
                if fragment_id != WORK or subqueue != MAIN:
                    world.attach(fragment, subqueue, True, 1_000_000)
        for _ in range(_DRAIN_ROUNDS):
            self._take_out()
            world.machine.pass_time(10_000)
            self.rest()
            if not any(self._judge.entries(fragment_id) for fragment_id in world.fragments):
                break
        self.audit()
        self._judge.empty()

    def _go_round(self) -> None:
        """Sessions that are taken and given up again have their turns, one and all."""
        free = self._judge.free_sessions()
        offered: set[str] = set()
        for _ in range(6 * len(free) + 10):
            guest = self._company.invite(None, False, 0)
            self.rest()
            if guest.session is not None:
                offered.add(guest.session.id)
            guest.close()
            self.rest()
        if set(free) - offered:
            raise Violation(OFFERED, None, f"{set(free) - offered} of {free} never")

    def _take_out(self) -> None:
        self.rest()
        world, judge = self._world, self._judge
        for fragment_id in world.fragments:
            for entry in [each for each in judge.entries(fragment_id) if each.place[1] == DEFERRED]:
                subqueue, _, number = entry.place
                in_session = fragment_id == WORK and subqueue == MAIN
                guest = self._company.invite(entry.session_id, True, 0) if in_session else None
                self.rest()
                session_id = entry.session_id if in_session else None
                self._people.receive_deferred(fragment_id, subqueue, session_id, number, True)
                self.rest()
                if guest is not None:
                    guest.close()
        for session_id in list(world.book.states):
            guest = self._company.invite(session_id, True, 0)
            self.rest()
            self._company.write_state(session_id, clears=True)
            self.rest()
            guest.close()
        if judge.waits_for(WORK, ACTIVE):
            guest = self._company.invite(None, True, 1_000)
            self.rest()
            guest.close()

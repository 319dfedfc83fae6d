"""One history from one seed: the real broker below, simulated clients above, and accidents."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

from postbus.broker import records
from postbus.broker.chores import copy_forward
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.resubmission import Outcome, Result
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window import WindowLimits
from postbus.errors import InternalError, MessageLockLost, OutcomeUnknown, ServiceBusError
from postbus.observe.meters import StoreMeter
from postbus.runtime.engine_cache import EngineCache, Retired
from postbus.runtime.loaded_fragment import LoadedFragment, Output
from postbus.runtime.loading import Loader
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call, Chore
from postbus.runtime.runtime import Runtime
from postbus.store.memory.store import MemoryStore
from tests.simulation.checkers import all_checkers
from tests.simulation.clients import Clients, Held, Known, random_policy
from tests.simulation.disk import SimDisk
from tests.simulation.history import History, Violation, fault_of
from tests.simulation.inventory import FRAGMENT
from tests.simulation.journal import Journal
from tests.simulation.machine import Machine, Thread
from tests.simulation.model import Asked, Model, Sent
from tests.simulation.receivers import SimReceiver, shown_count
from tests.support.operations import Do

TOLD = "each dead letter is told what has become of it"
RETENTION_MS = 2_000
RETENTION_BYTES = 600


class WatchedRuntime(Runtime):
    """The real one; it only says what it does."""

    simulation: Simulation

    def _written(self, fragment: LoadedFragment, now: int) -> Any:
        self.simulation.absorb()
        written = super()._written(fragment, now)
        self.simulation.model.sealed()
        return written

    def _retired(self, retired: Retired, now: int) -> None:
        for fragment in retired.forgotten:
            wakes_at = fragment.wakes_at % 10_000_000
            self.simulation.note(None, f"engine forgotten, wakes at {wakes_at}")
        super()._retired(retired, now)

    def discard(self, fragment: LoadedFragment, refusal: ServiceBusError) -> None:
        self.simulation.engine_lost(str(refusal))
        super().discard(fragment, refusal)

    def _fault(
        self, fragment: LoadedFragment, error: Exception, requests: list[Any], outputs: list[Output]
    ) -> None:
        raise error  # the real one logs it, refuses everybody and goes on


class Simulation:
    """Everything there is, and one step after the other."""

    runtime_class: type[WatchedRuntime] = WatchedRuntime
    syncs = True
    """Does the disk do what it is asked when it is asked to sync?"""
    remembers_time = True
    """Is a new process told the newest instant that the last one has written?"""

    def __init__(self, chance: random.Random, on_disk: bool = False) -> None:
        self.chance = chance
        self._disk = SimDisk(chance, self.syncs) if on_disk else None
        self.machine = Machine()
        self.history = History()
        self.policy = random_policy(chance)
        self.model = Model(self.policy, self.history)
        self.checkers = all_checkers(self.model)
        self._limits = WindowLimits(chance.choice([4, 5, 8]), chance.choice([0, 60, 300]))
        self._failing = chance.choice([0.0, 0.0, 0.02, 0.1])
        self.clients = Clients(self, Known())
        self.receivers: list[SimReceiver] = []
        self.journal = Journal(self._disk.store if self._disk else MemoryStore(), self.model)
        self._start()

    @property
    def now(self) -> int:
        return self.machine.now

    # -- the process --------------------------------------------------------------------------

    def _start(self) -> None:
        self.machine.start(self.journal.newest() if self.remembers_time else 0)
        self.thread = Thread(self.chance, self._failing)
        store: Any = self.journal
        thread: Any = self.thread
        loader = Loader(store, thread, "here", self._limits, lambda: 12345)
        with mock.patch("asyncio.get_running_loop", return_value=self.machine):
            self.runtime = self.runtime_class(
                store, thread, lambda: self.machine.now, loader, StoreMeter(), EngineCache(1, 0)
            )
        self.runtime.simulation = self
        self.fragment = LoadedFragment(FRAGMENT, 0, 0, "orders", self.policy)
        self.receivers = []
        self.runtime.survey([self.fragment])

    @property
    def crash_weights(self) -> list[float]:
        return [0, 0.15, 0.5] if self._disk is None else [0.15, 0.5, 1.5]

    def crash(self) -> None:
        """Now, or when the disk is next written to, or after a sync that fails; or the disk is full
        for a while, which ends nothing."""
        how = 1.0 if self._disk is None else self.chance.random()
        if self._disk is None or how >= 0.6:
            self.restart()
        elif how < 0.3:
            self._disk.doom()
        elif how < 0.45:
            self._disk.spoil()
        else:
            self.note(None, "the disk is full for a while")
            self._disk.fill()

    def give_up_if_spoilt(self) -> None:
        """After a failed sync the store is stopped: all are told, and then somebody restarts."""
        if self._disk is None or not self._disk.spoilt:
            return
        self.note(None, "a sync failed")
        while self.thread.answers:
            self.thread.answer_one(in_order=True)
        self.restart()

    def restart(self) -> None:
        self.machine.crash()
        self.thread.crash()
        if self._disk is None:
            self.note(None, "CRASH")
        else:
            self.note(None, f"CRASH {self._disk.restart()}")
            self.journal.reopened(self._disk.store)
        self.engine_lost("crash")
        self.machine.set_clock(-self.chance.choice([0, 0, 0, 3, 1_000, 60_000]))
        self._start()

    def spare(self) -> None:
        """No crash for now that is not asked for."""
        if self._disk is not None:
            self._disk.spare()

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def engine_lost(self, why: str) -> None:
        self.note(None, f"engine lost: {why}")
        self.model.roll_back()
        known = self.clients.known
        known.old_tokens += [held.token for held in known.held]
        known.held.clear()
        for receiver in self.receivers:
            receiver.lost()

    # -- what clients do ------------------------------------------------------------------------

    def ask(
        self,
        asked: Asked,
        call: Callable[[Queue, int, Pages], Any],
        done: Callable[[Any], None],
    ) -> None:
        def decide(engine: Engine, now: int, pages: Pages) -> Any:
            queue = engine.own
            self.absorb()
            self.model.asked = asked
            if asked.verb == "release":
                released = self._release(asked.token, queue)
            try:
                result = call(queue, now, pages)
            except MessageLockLost:
                self._check_lost(asked, released=asked.verb == "release" and released)
                raise
            finally:
                self.absorb()
                self.model.asked = None
            if asked.verb == "renew":
                self._renewed(asked.token, result)
            if not isinstance(result, Need):
                self.note(None, f"decided {asked.verb} {list(asked.numbers) or ''}")
            return result

        def refused(error: ServiceBusError) -> None:
            if isinstance(error, InternalError):
                raise fault_of(error)
            self.note(None, f"refused {asked.verb}: {type(error).__name__}")
            if not isinstance(error, OutcomeUnknown):
                for checker in self.checkers:
                    checker.refused(asked)

        exclusive = asked.verb in ("peek", "deferred")
        self.runtime.submit(Call(self.fragment, Do(decide), done, refused, exclusive=exclusive))

    def _release(self, token: bytes, queue: Queue) -> bool:
        """Nothing is written for it, so the model must be told."""
        in_force = queue.policy.receives and self.model.held_by(token, self.now) is not None
        if in_force:
            self.model.unlock(token)
        return in_force

    def _check_lost(self, asked: Asked, released: bool) -> None:
        name = self.model.held_by(asked.token, self.now)
        if name is not None or released:
            raise Violation("one holder per lock", name, f"{asked.verb}: the lock was lost")

    def _renewed(self, token: bytes, until: int) -> None:
        for lock in self.model.locks.values():
            if lock.token == token:
                lock.until = until

    def sending(self, name: str, sent: Sent) -> None:
        self.model.sent[name] = sent

    def editing(self, name: str, body: bytes) -> None:
        sent = self.model.sent[name]
        self.model.sent[name] = sent._replace(edited=(*sent.edited, body))

    def dead_letters(self) -> list[int]:
        entries = self.model.live.values()
        return sorted(entry.number for entry in entries if entry.subqueue == DEAD_LETTER)

    def check_resubmitted(self, numbers: Sequence[int], results: Sequence[Result]) -> None:
        """What each was told is what has become of it; the model has not heard of it yet."""
        before = {e.number: e for e in self.model.live.values() if e.subqueue == DEAD_LETTER}
        live = self.model.live
        locked = {live[name].number for name in self.model.locks if name in live}
        for number, result in zip(numbers, results, strict=False):
            dead = before.pop(number, None)
            if dead is None:
                expected = {Outcome.NOT_FOUND}
            elif number in locked:
                expected = {Outcome.LOCKED}
            else:
                expected = {Outcome.MOVED, Outcome.REFUSED}
            if result.outcome not in expected:
                name = None if dead is None else dead.name
                raise Violation(TOLD, name, f"number {number} of {dead} was told {result}")
            if dead is not None and result.outcome is not Outcome.MOVED:
                before[number] = dead

    def confirm(self, verb: str, names: Sequence[str]) -> None:
        for name in names:
            self.note(name, f"client was told: {verb} done")
        for checker in self.checkers:
            checker.confirmed(verb, names)

    def show(self, name: str, raw: bytes) -> None:
        for checker in self.checkers:
            checker.shown(name, raw)

    def check_peek(self, subqueue: int, start: int, found: list[Message]) -> None:
        self.absorb()
        expected = sorted(
            entry.number
            for entry in self.model.live.values()
            if entry.subqueue == subqueue and entry.number >= start
        )
        numbers = [message.number for message in found]
        if numbers != expected[: len(numbers)] or (expected and not numbers):
            raise Violation("a peek shows what is there", None, f"{numbers}, not {expected}")

    def update(self, policy: Policy) -> None:
        self.policy = self.fragment.policy = policy

        def call(queue: Queue, now: int, _: Pages) -> None:
            self.model.locks.clear()
            queue.update(policy, now)

        self.ask(Asked("update"), call, lambda _: None)

    # -- receivers ------------------------------------------------------------------------------

    def attach(self) -> None:
        chance = self.chance
        subqueue = chance.choice([MAIN, MAIN, MAIN, DEAD_LETTER])
        self.attach_one(subqueue, chance.random() < 0.25, chance.choice([1, 2, 10]))

    def attach_one(self, subqueue: int, deletes: bool, credit: int) -> None:
        receiver = SimReceiver(self, len(self.receivers), subqueue, deletes)
        receiver.credit = credit
        self.receivers.append(receiver)
        line = self.fragment.receivers_of(subqueue)
        line.join(receiver)
        line.wants(receiver)
        self._count_receivers(subqueue)
        self.runtime.wake(self.fragment)

    def detach(self) -> None:
        receiver = self.receivers.pop(self.chance.randrange(len(self.receivers)))
        receiver.attached = False
        self.fragment.receivers_of(receiver.subqueue).leave(receiver)
        self._count_receivers(receiver.subqueue)

    def _count_receivers(self, subqueue: int) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(
                subqueue, len(self.fragment.receivers_of(subqueue).members)
            )

    def refresh_credit(self) -> None:
        receiver = self.chance.choice(self.receivers)
        receiver.credit += self.chance.choice([1, 1, 5])
        receiver.draining = self.chance.random() < 0.2
        self.fragment.receivers_of(receiver.subqueue).wants(receiver)
        self.runtime.wake(self.fragment)

    def before_take(self) -> None:
        self.absorb()

    def after_take(self, receiver: SimReceiver) -> None:
        assert self.fragment.engine is not None
        queue = self.fragment.engine.own
        if receiver.deletes:
            self.absorb(but=1)
            message = records.decode(queue.ledger.pending[-1]).message
        else:
            self.absorb()
            message = next(reversed(queue.locks.values()))
            for checker in self.checkers:
                checker.locked(message)
        for checker in self.checkers:
            checker.taken(message.message_id, message.number, receiver.subqueue, self.now)
        if receiver.deletes:
            self.absorb()
        else:
            self._note_lock(message)

    def locked(self, message: Message) -> None:
        """A deferred message was locked; that is not in line, so there is no order to keep."""
        for checker in self.checkers:
            checker.locked(message)
        self._note_lock(message)

    def _note_lock(self, message: Message) -> None:
        self.note(message.message_id, f"locked until {message.locked_until % 10_000_000}")
        self.model.lock(message)

    def delivered(self, receiver: SimReceiver, outgoing: OutgoingMessage) -> None:
        name = outgoing.message.message_id
        count = shown_count(outgoing)
        self.note(name, f"delivered to {receiver.holder}, count {count}")
        for checker in self.checkers:
            checker.delivered(name, count, receiver.subqueue)
            checker.shown(name, outgoing.raw)
        if receiver.deletes:
            self.confirm("complete", [name])
        else:
            assert outgoing.token is not None
            self.clients.known.held.append(Held(name, outgoing.message.number, outgoing.token))

    def give_back(self, outgoing: OutgoingMessage) -> None:
        token = outgoing.token
        if token is None:
            message, raw = outgoing.message, outgoing.raw
            self.ask(Asked("put_back"), lambda q, *_: q.put_back(message, raw), lambda _: None)
        else:
            self.ask(
                Asked("release", token), lambda q, now, _: q.release(token, now), lambda _: None
            )

    def forget_idle(self) -> None:
        """As `runtime.upkeep` does it; nobody has used the engine for long enough."""
        self.fragment.used = False
        self.runtime.forget_idle()

    # -- upkeep, and what is noticed -------------------------------------------------------------

    def trim(self) -> None:
        """As `runtime.upkeep` does it: trim a slice, ask for a checkpoint, copy bodies forward."""
        fragment_id, older_than = FRAGMENT, self.now - self.chance.choice([0, RETENTION_MS])
        limit = self.chance.choice([1, 3, 100])
        bytes_max = self.chance.choice([0, RETENTION_BYTES])
        fragment, store = self.fragment, self.journal

        def trimmed(below: int) -> None:
            engine = fragment.engine
            if engine is None:
                return
            if engine.ledger.head > engine.ledger.checkpoint:
                fragment.checkpoint_wanted = True
                self.runtime.wake(fragment)
            if "copy" not in fragment.chores:
                fragment.chores.add("copy")
                at_once = self.chance.choice([1, 4])
                self.runtime.submit(Chore(fragment, "copy", partial(_copy, below, at_once)))

        def call() -> int:
            store.trim(fragment_id, older_than, bytes_max, limit)
            return int(store.tail(fragment_id))

        self.thread.submit(call, trimmed, lambda _: None)

    def absorb(self, but: int = 0) -> None:
        engine = self.fragment.engine
        if engine is None:
            return
        for event in self.model.absorb(engine.own, but):
            self.note(event.after.name, f"{event.kind.name} {_place(event.after)}")
            for checker in self.checkers:
                checker.decided(event, self.now)

    def note(self, name: str | None, text: str) -> None:
        self.history.note(self.now, name, text)


def _copy(below: int, limit: int, engine: Engine, now: int, pages: Pages) -> Need | None:
    return copy_forward(engine, below, limit, pages)


def _place(entry: Any) -> str:
    return f"subqueue {entry.subqueue} lane {entry.lane} #{entry.number} count {entry.count}"

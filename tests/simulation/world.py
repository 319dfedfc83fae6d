"""The world of a history: one process of the real broker, its stores and its entities, and the
accidents that befall them. Parts bring the entities, their clients and the checkers."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from postbus.broker.chores import copy_forward
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.window_budget import WindowBudget
from postbus.errors import InternalError, ServiceBusError
from postbus.runtime.engine_cache import Retired
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call, Chore, GiveBack
from postbus.runtime.runtime import Runtime
from postbus.runtime.turn import Turn
from postbus.store.ports.journal import Part as StorePart
from tests.simulation.history import History, Violation, fault_of
from tests.simulation.journal import Written
from tests.simulation.machine import Machine
from tests.simulation.promises import MEMORY
from tests.simulation.receivers import Receiver
from tests.simulation.stores import Store
from tests.support.operations import Do
from tests.support.windows import audit_engines

if TYPE_CHECKING:
    from tests.simulation.disk import SimDisk
    from tests.simulation.parts import Part

RETENTION_MS = 2_000
RETENTION_BYTES = 600


class WatchedRuntime(Runtime):
    """The real runtime. It tells the models what it does, and a fault of it is a failure."""

    world: World

    def _written(self, fragment: LoadedFragment, now: int) -> Any:
        model = self.world.models[fragment.id]
        model.sealing(fragment)
        written = super()._written(fragment, now)
        model.sealed()
        return written

    def _retired(self, retired: Retired, now: int) -> None:
        for fragment in retired.forgotten:
            wakes_at = fragment.wakes_at % 10_000_000
            self.world.note(None, f"engine forgotten: {fragment.name}, wakes at {wakes_at}")
        super()._retired(retired, now)

    def discard(self, fragment: LoadedFragment, refusal: ServiceBusError) -> None:
        self.world.engine_lost(fragment, str(refusal))
        super().discard(fragment, refusal)

    def _fault(self, fragment: LoadedFragment, error: Exception, turn: Turn) -> None:
        raise error  # the real runtime logs the error, refuses all requests and goes on


class Model:
    """What is known of one fragment beside the broker. This one knows nothing."""

    def __init__(self, world: World) -> None:
        self.world = world

    def absorb(self, fragment: LoadedFragment, but: int = 0) -> None:
        """Read the records that the engine has decided, but for the last few."""

    def sealing(self, fragment: LoadedFragment) -> None:
        """The batch of a commit is about to be closed."""

    def sealed(self) -> None:
        """The batch is closed: the next record is the first of another batch."""

    def committed(self, part: StorePart, written: Written) -> None:
        """These records are durable."""

    def engine_lost(self) -> None:
        """The engine was thrown away: what the store has is what there is."""

    def taken(self, receiver: Receiver, message: Message) -> None:
        """The engine has decided that a receiver gets this message."""

    def delivered(self, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        """A receiver was given this message."""

    def give_back(self, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        """A message came for a receiver that is gone."""
        self.world.runtime_of(receiver.fragment).submit(GiveBack(receiver.fragment, outgoing))


class Entity:
    """A queue or topic, through all lives of the process."""

    def __init__(self, entity_id: int, name: str, policy: Policy, model: Model) -> None:
        self.id = entity_id
        self.name = name
        self.policy = policy
        self.model = model
        self.deleted = False
        self.store = 0
        self.fragment_ids = (entity_id,)


class World:
    """One process, with all that outlives it."""

    runtime_class: type[WatchedRuntime] = WatchedRuntime
    disk_syncs = True
    """Does the disk do its work when it is told to sync?"""
    remembers_time = True
    """Is a new process told the newest instant that the last process has written?"""

    def __init__(self, chance: random.Random, disk: type[SimDisk] | None) -> None:
        self.chance = chance
        self.machine = Machine()
        self.history = History()
        self.failing = chance.choice([0.0, 0.0, 0.02, 0.1])
        """How often a store refuses a call."""
        self.made_room = False
        """An entity that was full is not: messages that wait for it are sent after a pause."""
        self._memory = (
            *(chance.choice([0, 3_000, 8_000, 40_000]),),
            *(chance.choice([4, 5, 8, 40]), chance.choice([0, 60, 300])),
        )
        self.budget = WindowBudget(*self._memory)
        self.entities: dict[int, Entity] = {}
        self.models: dict[int, Model] = {}
        self.fragments: dict[int, LoadedFragment] = {}
        """Those of the present process."""
        self.receivers: list[Receiver] = []
        self.durable_heads: dict[int, int] = {}
        """Offset after the newest record that the store has of each fragment."""
        self.parts: list[Part] = []
        self.stores = [Store(self, disk)]

    @property
    def now(self) -> int:
        return self.machine.now

    def note(self, name: str | None, text: str) -> None:
        self.history.note(self.now, name, text)

    # -- entities --------------------------------------------------------------------------------

    def add(self, entity: Entity) -> None:
        self.entities[entity.id] = entity
        for fragment_id in entity.fragment_ids:
            self.models[fragment_id] = entity.model

    def is_deleted(self, fragment_id: int) -> bool:
        return fragment_id not in self.fragments

    def store_of(self, fragment: LoadedFragment) -> Store:
        return self.stores[fragment.store]

    def runtime_of(self, fragment: LoadedFragment) -> WatchedRuntime:
        return self.store_of(fragment).runtime

    def policy_of(self, fragment_id: int) -> Policy:
        return self.entities[fragment_id].policy

    # -- the process -----------------------------------------------------------------------------

    def start(self) -> None:
        newest = max(store.recorded.newest() for store in self.stores)
        self.machine.start(newest if self.remembers_time else 0)
        self.budget = WindowBudget(*self._memory)
        for store in self.stores:
            store.start()
        self.receivers = []
        self.fragments = {
            fragment_id: LoadedFragment(
                fragment_id, fragment_id, entity.store, entity.name, entity.policy
            )
            for entity in self.entities.values()
            if not entity.deleted
            for fragment_id in entity.fragment_ids
        }
        for part in self.parts:
            part.started()
        forwarder = Forwarder(self.fragments.get, self.runtime_of)
        for fragment in self.fragments.values():
            forwarder.serve(fragment)
        for number, store in enumerate(self.stores):
            store.runtime.survey([f for f in self.fragments.values() if f.store == number])

    def crash(self) -> None:
        """Now, or when the disk is next written to, or after a sync that fails. Or the disk is
        full for a while, which ends nothing."""
        disk = self.chance.choice(self.stores).disk
        how = 1.0 if disk is None else self.chance.random()
        if disk is None or how >= 0.6:
            self.restart()
        elif how < 0.25:
            disk.crash_soon()
        elif how < 0.5:
            disk.fail_a_sync()
        else:
            self.note(None, "the disk is full for a while")
            disk.fill()

    def restart(self) -> None:
        self.machine.crash()
        for store in self.stores:
            self.note(None, f"CRASH {store.crash()}")
        self.machine.set_clock(-self.chance.choice([0, 0, 0, 3, 1_000, 60_000]))
        for model in self.models.values():
            model.engine_lost()
        self.start()

    def stop_if_a_sync_failed(self) -> None:
        """After a failed sync the store is stopped: all clients are told, then it starts again."""
        for store in self.stores:
            if store.disk is not None and store.disk.sync_failed:
                self.note(None, "a sync failed")
                while store.thread.answers:
                    store.thread.answer_one(in_order=True)
                self.restart()

    def check_memory(self) -> None:
        """Everything that the budget counts is in a window of an engine."""
        engines = [each.engine for each in self.fragments.values() if each.engine is not None]
        try:
            audit_engines(self.budget, engines)
        except AssertionError as error:
            raise Violation(MEMORY, None, str(error)) from error

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def engine_lost(self, fragment: LoadedFragment, why: str) -> None:
        self.note(None, f"engine of {fragment.name} lost: {why}")
        self.models[fragment.id].engine_lost()
        for receiver in self.receivers:
            if receiver.fragment is fragment:
                receiver.engine_lost()

    # -- clients ---------------------------------------------------------------------------------

    def ask(
        self,
        fragment_id: int,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
        failed: Callable[[ServiceBusError], None] = lambda _: None,
        exclusive: bool = False,
    ) -> None:
        """Have a call made on the engine of a fragment, as all requests of clients are."""

        def refused(error: ServiceBusError) -> None:
            if isinstance(error, InternalError):
                raise fault_of(error)
            failed(error)

        fragment = self.fragments.get(fragment_id)
        if fragment is not None:
            request = Call(fragment, Do(call), done, refused, exclusive=exclusive)
            self.runtime_of(fragment).submit(request)

    def attach(self, fragment_id: int, subqueue: int, deletes: bool, credit: int) -> None:
        fragment = self.fragments[fragment_id]
        receiver = Receiver(self, fragment, subqueue, deletes, len(self.receivers))
        self.receivers.append(receiver)
        receiver.attach(credit)

    def detach(self, receiver: Receiver) -> None:
        self.receivers.remove(receiver)
        receiver.detach()

    # -- upkeep ----------------------------------------------------------------------------------

    def trim(self) -> None:
        """As `runtime.upkeep` does: trim a slice, ask for a checkpoint, copy bodies forward."""
        chance = self.chance
        fragment = chance.choice(list(self.fragments.values()))
        older_than = self.now - chance.choice([0, RETENTION_MS])
        bytes_max = chance.choice([0, 0, RETENTION_BYTES])
        store, limit = self.store_of(fragment), chance.choice([1, 3, 100])
        recorded = store.recorded

        def call() -> int:
            recorded.trim(fragment.id, older_than, bytes_max, limit)
            return int(recorded.tail(fragment.id))

        def trimmed(below: int) -> None:
            if fragment.engine is None:
                return
            fragment.checkpoint_wanted = True
            store.runtime.wake(fragment)
            if "copy" not in fragment.chores:
                fragment.chores.add("copy")
                copied = partial(_copy, below, chance.choice([1, 4, 20]))
                store.runtime.attend(Chore(fragment, "copy", copied))

        if fragment.id in recorded.standing_of:
            store.thread.submit(call, trimmed, lambda _: None)

    def forget_idle(self) -> None:
        """As `runtime.upkeep` does: nobody has used the engines for long enough."""
        for fragment in self.fragments.values():
            fragment.used = False
        for store in self.stores:
            store.runtime.forget_idle()

    def want_checkpoint(self) -> None:
        fragment = self.chance.choice(list(self.fragments.values()))
        if fragment.engine is not None:
            fragment.checkpoint_wanted = True
            self.runtime_of(fragment).wake(fragment)


def _copy(below: int, limit: int, engine: Engine, now: int, pages: Pages) -> Need | None:
    return copy_forward(engine, below, limit, pages)

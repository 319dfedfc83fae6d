"""Several entities and the way between them: the real broker and courier on a played machine, and
the accidents that befall them. What is on it, and who, is another matter."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from unittest import mock

from postbus.broker.chores import copy_forward
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.window import WindowLimits
from postbus.errors import InternalError, ServiceBusError
from postbus.observe.meters import StoreMeter
from postbus.runtime.engine_cache import EngineCache
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment, Output
from postbus.runtime.loading import Loader
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call, Chore, GiveBack
from postbus.runtime.runtime import Runtime
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.store import Store
from tests.simulation.disk import SimDisk
from tests.simulation.history import History, fault_of
from tests.simulation.machine import Machine, Thread
from tests.support.operations import Do

RETENTION_MS = 2_000


class StageRuntime(Runtime):
    """The real one; a fault of the broker is a failure here."""

    stage: Stage

    def discard(self, fragment: LoadedFragment, refusal: ServiceBusError) -> None:
        self.stage.engine_lost(fragment, str(refusal))
        super().discard(fragment, refusal)

    def _fault(
        self, fragment: LoadedFragment, error: Exception, requests: list[Any], outputs: list[Output]
    ) -> None:
        raise error


class Receiving(Protocol):
    """One who is given messages."""

    fragment: LoadedFragment
    subqueue: int


class Taker:
    """A receiver; `deletes` or locks."""

    draining = False

    def __init__(
        self, stage: Stage, fragment: LoadedFragment, subqueue: int, deletes: bool
    ) -> None:
        self._stage = stage
        self.fragment = fragment
        self.subqueue = subqueue
        self.deletes = deletes
        self.holder = 1
        self.credit = 0
        self.reserved = 0
        self.attached = True

    def capacity(self) -> int:
        return max(0, self.credit - self.reserved)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.reserved += 1
        self._stage.taken(self, message)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        self.reserved -= len(messages)
        self.credit -= len(messages)
        for outgoing in messages:
            if self.attached:
                self._stage.delivered(self, outgoing)
            else:
                self._stage.give_back(self, outgoing)

    def drained(self) -> None: ...


class Stage(ABC):
    """The process and everything around it."""

    runtime_class: type[StageRuntime] = StageRuntime
    names: dict[int, str]

    def __init__(
        self, chance: random.Random, on_disk: bool, policies: dict[int, Policy], gone: set[int]
    ) -> None:
        self.chance = chance
        self.machine = Machine()
        self.history = History()
        self.policies = policies
        self.gone = gone
        """Fragments of entities that were deleted."""
        self.failing = chance.choice([0.0, 0.0, 0.02, 0.1])
        self._disk = SimDisk(chance) if on_disk else None
        self._limits = WindowLimits(chance.choice([4, 8, 40]), chance.choice([0, 60, 300]))
        self.records = self.keep_records(self._disk.store if self._disk else MemoryStore())
        self.on_delivery: Callable[[Any, OutgoingMessage], None] = lambda *_: None
        self._start()

    @property
    def now(self) -> int:
        return self.machine.now

    def note(self, name: str | None, text: str) -> None:
        self.history.note(self.now, name, text)

    # -- for those who know what is on it ------------------------------------------------------

    @abstractmethod
    def keep_records(self, store: Store) -> Any:
        """The store, with a memory of all that was written to it."""

    @abstractmethod
    def set_up(self) -> None:
        """A new process has its fragments: let them know what else there is."""

    def taken(self, taker: Taker, message: Message) -> None:  # noqa: B027  (few want to know)
        """A message was decided to be a receiver's."""

    def give_back(self, taker: Receiving, outgoing: OutgoingMessage) -> None:
        """A message came for a receiver that is gone."""
        self.runtime.submit(GiveBack(taker.fragment, outgoing))

    # -- the process ---------------------------------------------------------------------------

    def _start(self) -> None:
        self.machine.start(self.records.newest())
        self.thread = Thread(self.chance, self.failing)
        self.takers: list[Taker] = []
        store: Any = self.records
        thread: Any = self.thread
        loader = Loader(store, thread, "here", self._limits, lambda: 12345)
        with mock.patch("asyncio.get_running_loop", return_value=self.machine):
            self.runtime = self.runtime_class(
                store, thread, lambda: self.machine.now, loader, StoreMeter(), EngineCache(1, 0)
            )
        self.runtime.stage = self
        self.fragments = {
            fragment_id: LoadedFragment(
                fragment_id, fragment_id, 0, self.names[fragment_id], policy
            )
            for fragment_id, policy in self.policies.items()
            if fragment_id not in self.gone
        }
        self.set_up()
        forwarder = Forwarder(self.fragments.get, lambda _: self.runtime)
        for fragment in self.fragments.values():
            forwarder.serve(fragment)
        self.runtime.survey(list(self.fragments.values()))

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
        self.note(None, f"CRASH {self._disk.restart() if self._disk else ''}")
        if self._disk is not None:
            self.records.reopened(self._disk.store)
        self._start()

    def spare(self) -> None:
        if self._disk is not None:
            self._disk.spare()

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()

    def engine_lost(self, fragment: LoadedFragment, why: str) -> None:
        self.note(None, f"engine of {fragment.name} lost: {why}")
        for taker in self.takers:
            if taker.fragment is fragment:
                taker.reserved = 0
                fragment.receivers_of(taker.subqueue).wants(
                    taker
                )  # as a client does that attaches again

    # -- asking --------------------------------------------------------------------------------

    def ask(
        self,
        fragment_id: int,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None] | None = None,
    ) -> None:
        def refused(error: ServiceBusError) -> None:
            if isinstance(error, InternalError):
                raise fault_of(error)
            if failed is not None:
                failed(error)

        fragment = self.fragments.get(fragment_id)
        if fragment is not None:
            self.runtime.submit(Call(fragment, Do(call), done, refused, exclusive=False))

    def attach(self, fragment: LoadedFragment, subqueue: int, deletes: bool, credit: int) -> None:
        taker = Taker(self, fragment, subqueue, deletes)
        taker.credit = credit
        self.takers.append(taker)
        line = fragment.receivers_of(subqueue)
        line.join(taker)
        line.wants(taker)
        if fragment.engine is not None:
            fragment.engine.set_receivers(subqueue, len(line.members))
        self.runtime.wake(fragment)

    def detach(self, taker: Taker) -> None:
        """What is under way to it comes back."""
        taker.attached = False
        self.takers.remove(taker)
        line = taker.fragment.receivers_of(taker.subqueue)
        line.leave(taker)
        if taker.fragment.engine is not None:
            taker.fragment.engine.set_receivers(taker.subqueue, len(line.members))

    def refresh(self, taker: Taker, credit: int) -> None:
        taker.credit += credit
        taker.fragment.receivers_of(taker.subqueue).wants(taker)
        self.runtime.wake(taker.fragment)

    def delivered(self, taker: Receiving, outgoing: OutgoingMessage) -> None:
        self.note(
            outgoing.message.message_id, f"delivered from {taker.fragment.name} {taker.subqueue}"
        )
        self.on_delivery(taker, outgoing)

    # -- upkeep --------------------------------------------------------------------------------

    def trim(self) -> None:
        """As `runtime.upkeep` does it: trim a slice, ask for a checkpoint, copy bodies forward."""
        fragment = self.chance.choice(list(self.fragments.values()))
        older_than = self.now - self.chance.choice([0, RETENTION_MS])
        store, fragment_id = self.records, fragment.id

        def trimmed(below: int) -> None:
            if fragment.engine is None:
                return
            fragment.checkpoint_wanted = True
            self.runtime.wake(fragment)
            if "copy" not in fragment.chores:
                fragment.chores.add("copy")
                limit = self.chance.choice([1, 4, 20])
                self.runtime.attend(Chore(fragment, "copy", partial(_copy, below, limit)))

        def call() -> int:
            store.trim(fragment_id, older_than, 0, self.chance.choice([1, 3, 100]))
            return int(store.tail(fragment_id))

        if fragment_id in self.records.stands:
            self.thread.submit(call, trimmed, lambda _: None)

    def forget_idle(self) -> None:
        for fragment in self.fragments.values():
            fragment.used = False
        self.runtime.forget_idle()

    def want_checkpoint(self) -> None:
        fragment = self.chance.choice(list(self.fragments.values()))
        if fragment.engine is not None:
            fragment.checkpoint_wanted = True
            self.runtime.wake(fragment)


def _copy(below: int, limit: int, engine: Engine, now: int, pages: Pages) -> Need | None:
    return copy_forward(engine, below, limit, pages)

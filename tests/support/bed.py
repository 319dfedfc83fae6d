"""A runtime on a store that waits when told to, and one queue: for tests of what happens between a
decision and its commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.observe.meters import EntityMeter, StoreMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Part
from tests.support.operations import Do


class Gate(MemoryStore):
    """A store whose commits wait until they are let through, or fail when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.commits = 0
        self._waiting = False

    @property
    def is_blocked(self) -> bool:
        """Whether a commit waits, and goes on waiting."""
        return self._waiting and not self.open.is_set()

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        self._waiting = True
        assert self.open.wait(10)
        self._waiting = False
        self.commits += 1
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().commit(parts)


class Taker:
    """A receiver with credit."""

    def __init__(self, fragment: LoadedFragment, credit: int, deletes: bool = False) -> None:
        self.fragment = fragment
        self.credit = credit
        self.deletes = deletes
        self.holder = 1
        self.draining = False
        self.taken: list[bytes] = []
        self.was_drained = 0

    def capacity(self) -> int:
        return self.credit

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.credit -= 1
        return OutgoingMessage(message, raw, (raw,))

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        self.taken += [outgoing.raw for outgoing in messages]

    def drained(self) -> None:
        self.draining = False
        self.was_drained += 1


class Bed:
    """A runtime on a gated store, and one queue."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.store = Gate()
        self.thread = StoreThread("store", asyncio.get_running_loop())
        budget = WindowBudget(1 << 20, messages_min=16, body_bytes_min=1_024)
        loader = Loader(self.store, self.thread, "test", budget, lambda: 7)
        self.meter = StoreMeter()
        self.runtime = Runtime(self.store, self.thread, lambda: self.now, loader, self.meter)
        self.fragment = LoadedFragment(1, 0, 0, "orders", Policy())
        self.fragment.meter = EntityMeter()
        _newest.clear()
        _newest.append(self)

    async def catch_up(self) -> None:
        """Let the store's thread do all that it has to do, or come to a commit that must wait."""
        done = asyncio.ensure_future(self.thread.run(lambda: None))
        while not (done.done() or self.store.is_blocked):
            await asyncio.sleep(0)

    def ask(self, call: Callable[[Queue, Instant, Pages], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def failed(error: ServiceBusError) -> None:
            future.set_exception(error)

        def on_queue(engine: Engine, now: Instant, pages: Pages) -> Any:
            return call(engine.own, now, pages)

        self.runtime.submit(Call(self.fragment, Do(on_queue), future.set_result, failed))
        return future

    def send(self, *bodies: bytes) -> asyncio.Future[Any]:
        messages = [Message(body) for body in bodies]
        return self.ask(lambda queue, now, pages: queue.send(messages, now))

    def join(self, taker: Taker) -> None:
        line = self.fragment.receivers_of(MAIN)
        line.join(taker)
        line.wants(taker)
        self.runtime.wake(self.fragment)


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


_newest: list[Bed] = []
"""The bed of the test under way."""
HOPS_MAX = 10
"""More often than that, nothing goes from the loop to the store's thread and back."""


async def settled() -> None:
    """Let the loop and the store's thread do what they can, however long the thread takes."""
    [bed] = _newest
    async with asyncio.timeout(30):
        for _ in range(HOPS_MAX):
            await bed.catch_up()
            for _ in range(HOPS_MAX):
                await asyncio.sleep(0)

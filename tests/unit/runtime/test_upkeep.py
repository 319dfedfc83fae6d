"""Journals past their retention go, whether or not their engine is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.observe.meters import StoreMeter
from postbus.runtime.engine_cache import EngineCache
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.requests import Call
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.upkeep import Upkeep
from postbus.store.memory.store import MemoryStore
from postbus.store.sqlite.store import SqliteStore
from tests.support.operations import Do

pytestmark = pytest.mark.usefixtures("small_limits")

NOW = 1_700_000_000_000


class Bed:
    """One queue whose engine is forgotten as soon as nobody needs it."""

    def __init__(self, store: MemoryStore | SqliteStore) -> None:
        self.store = store
        self.thread = StoreThread("store", asyncio.get_running_loop())
        loader = Loader(self.store, self.thread, "test", WindowBudget(), lambda: 7)
        engine_cache = EngineCache(10, idle_ms=0)
        meter = StoreMeter()
        self.runtime = Runtime(self.store, self.thread, lambda: NOW, loader, meter, engine_cache)
        self.upkeep = Upkeep(self.store, self.thread, self.runtime, loader, meter)
        self.fragment = LoadedFragment(1, 0, 0, "orders", Policy())

    async def ask(self, call: Callable[[Queue, int, Pages], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_queue(engine: Engine, now: int, pages: Pages) -> Any:
            return call(engine.own, now, pages)

        self.runtime.submit(
            Call(self.fragment, Do(on_queue), future.set_result, future.set_exception)
        )
        return await future

    async def send_and_take(self, count: int) -> None:
        """Each in a batch of its own."""
        for _ in range(count):
            await self.ask(lambda queue, now, _: queue.send([Message(b"body", "id")], now))
        for _ in range(count):
            await self.ask(lambda queue, now, _: queue.take_and_delete(MAIN, now))

    async def forget(self) -> None:
        while self.fragment.engine is not None:
            self.runtime.forget_idle()
            await self.runtime.quiet()

    @property
    def batches(self) -> int:
        return len(self.store.read(1, 0, 1 << 40))


@pytest.fixture(params=["memory", "sqlite"])
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    in_file = request.param == "sqlite"
    bed = Bed(SqliteStore(str(tmp_path / "store.db")) if in_file else MemoryStore())
    yield bed
    await bed.runtime.quiet()
    await bed.thread.stop()
    bed.store.close()


async def test_the_journal_of_a_forgotten_engine_is_trimmed_without_loading_it(bed: Bed) -> None:
    await bed.send_and_take(5)
    await bed.forget()
    assert bed.batches == 10

    await bed.upkeep.tidy(bed.fragment, NOW + 1, 0)
    assert bed.batches == 0
    assert bed.fragment.engine is None


async def test_a_journal_within_retention_stays(bed: Bed) -> None:
    await bed.send_and_take(5)
    await bed.forget()
    await bed.upkeep.tidy(bed.fragment, NOW, 1 << 30)
    assert bed.batches == 10
    assert bed.fragment.engine is None


async def test_bodies_that_pin_old_batches_of_a_forgotten_engine_are_copied(bed: Bed) -> None:
    # given a large batch of which one message is left
    messages = [Message(b"x" * 1_000, f"id-{n}") for n in range(20)]
    await bed.ask(lambda queue, now, _: queue.send(messages, now))
    await bed.ask(lambda q, now, _: [q.take_and_delete(MAIN, now) for _ in range(19)])
    await bed.forget()

    # when it passes out of retention, its engine is loaded once and the body copied
    await bed.upkeep.tidy(bed.fragment, NOW + 1, 0)
    await bed.runtime.quiet()
    assert bed.fragment.engine is not None
    await bed.forget()
    await bed.upkeep.tidy(bed.fragment, NOW + 1, 0)
    assert bed.batches == 1
    assert len(bed.store.read(1, 0, 1 << 40)[0].data) < 2_000
    assert (await bed.ask(lambda queue, now, _: queue.ledger.count(MAIN))) == 1


async def test_a_deleted_entity_leaves_nothing_behind(bed: Bed) -> None:
    bed.fragment.policy = Policy(duplicate_window_ms=60_000)
    for number in range(5):
        await seen(bed, f"{number}")
    await bed.forget()
    await bed.upkeep.drop(1)
    assert bed.store.position(1) is None
    assert bed.batches == 0
    assert bed.store.index.load_lane(1, MAIN, 0, 0, 100) == []
    assert bed.store.index.load_seen_digests(1, 1, b"", 10) == []


async def test_an_engine_that_cannot_be_loaded_is_left_alone(bed: Bed) -> None:
    await bed.upkeep.tidy(bed.fragment, NOW + 1, 0)
    assert bed.store.position(1) is None


async def seen(bed: Bed, message_id: str) -> None:
    """Have an id in the store."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def send(engine: Engine, now: int, pages: Pages) -> Any:
        return engine.send([Message(b"body", message_id)], now, pages)

    bed.runtime.submit(Call(bed.fragment, Do(send), future.set_result, future.set_exception))
    await future
    bed.fragment.checkpoint_wanted = True
    bed.runtime.wake(bed.fragment)
    await bed.runtime.quiet()


@pytest.mark.parametrize("in_memory", [True, False])
async def test_ids_past_the_window_leave_the_store(bed: Bed, in_memory: bool) -> None:
    bed.fragment.policy = Policy(duplicate_window_ms=60_000)
    for number in range(7):
        await seen(bed, f"{number}")
    if not in_memory:
        await bed.forget()
    assert len(bed.store.index.load_seen_digests(1, 1, b"", 10)) == 7
    await bed.upkeep.forget_ids(bed.fragment, NOW + 59_999)
    assert len(bed.store.index.load_seen_digests(1, 1, b"", 10)) == 7
    await bed.upkeep.forget_ids(bed.fragment, NOW + 60_000)
    assert bed.store.index.load_seen_digests(1, 1, b"", 10) == []
    assert (bed.fragment.engine is not None) is in_memory
    await bed.upkeep.forget_ids(bed.fragment, NOW + 60_000)


async def test_an_entity_that_does_not_look_at_ids_has_none_to_forget(bed: Bed) -> None:
    await bed.send_and_take(1)
    await bed.upkeep.forget_ids(bed.fragment, NOW + 60_000)


async def test_ids_are_kept_while_the_journal_has_more_than_the_checkpoint(bed: Bed) -> None:
    """Those that are replayed go into the same part, which must not be on its way out."""
    bed.fragment.policy = Policy(duplicate_window_ms=60_000)
    await seen(bed, "a")
    await bed.ask(lambda queue, now, _: queue.send([Message(b"body", "b")], now))
    bed.fragment.engine = None
    await bed.upkeep.forget_ids(bed.fragment, NOW + 60_000)
    assert len(bed.store.index.load_seen_digests(1, 1, b"", 10)) == 1

"""Sends that have to read first: none overtakes another, and all of a turn read at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.model.times import Instant
from postbus.observe.meters import EntityMeter, StoreMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.reads import FORESEEN_MAX, OrderedRequest
from postbus.runtime.requests import Call
from postbus.runtime.runtime import REQUESTS_PER_TURN, Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.store.memory.index import MemoryIndex
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Part
from tests.support.operations import Do
from tests.unit.runtime.test_forwarder import until

# A class of the tests inherits from a compiled one there.
pytestmark = pytest.mark.interpreted_only


class _CountedIndex(MemoryIndex):
    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.reads: list[int] = []
        self.failure: Exception | None = None

    def load_seen(
        self, fragment: int, segments: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        assert self.open.wait(10)
        self.reads.append(len(digests))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().load_seen(fragment, segments, digests)


class Library(MemoryStore):
    """A store that counts what is looked up, lets it wait, and fails when told to."""

    index: _CountedIndex

    def __init__(self) -> None:
        super().__init__()
        self.index = _CountedIndex()
        self.commit_failure: Exception | None = None

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        if self.commit_failure is not None:
            failure, self.commit_failure = self.commit_failure, None
            raise failure
        return super().commit(parts)


class Sent(OrderedRequest):
    """A send that keeps what became of it."""

    def __init__(self, fragment: LoadedFragment, *ids: str) -> None:
        super().__init__(fragment, 10)
        self.messages = [Message(b"x", each) for each in ids]
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        found = engine.send(self.messages, now, self.pages)
        return found if isinstance(found, Need) else None

    def foresee(self, engine: Engine, now: Instant) -> Need | None:
        return engine.foresee(self.messages, now)

    def answer(self) -> None:
        self.done.set_result(None)

    def refuse(self, error: ServiceBusError) -> None:
        self.done.set_exception(error)


class Bed:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self.store = Library()
        self.thread = StoreThread("store", asyncio.get_running_loop())
        loader = Loader(self.store, self.thread, "test", WindowBudget(), lambda: 7)
        self.runtime = Runtime(self.store, self.thread, lambda: self.now, loader, StoreMeter())
        self.fragment = LoadedFragment(1, 0, 0, "orders", Policy(duplicate_window_ms=60_000))
        self.fragment.meter = EntityMeter()

    def send(self, *ids: str) -> asyncio.Future[None]:
        return self.submit(*ids).done

    def submit(self, *ids: str) -> Sent:
        sent = Sent(self.fragment, *ids)
        self.runtime.submit(sent)
        return sent

    async def know(self, *ids: str) -> None:
        """Have these in the store, and nothing of them in memory but the filter."""
        await self.send(*ids)
        self.fragment.checkpoint_wanted = True
        self.runtime.wake(self.fragment)
        assert self.fragment.engine is not None
        ledger = self.fragment.engine.ledger
        await until(lambda: ledger.head == ledger.checkpoint)
        await self.quiet()
        self.store.index.reads.clear()

    async def quiet(self) -> None:
        await until(lambda: not self.fragment.chores and self.runtime.idle)

    @property
    def behind(self) -> int:
        """Sends that are held back."""
        held = self.runtime._page_reader.held.get(self.fragment)
        return 0 if held is None else len(held._behind)

    def there(self) -> list[str]:
        assert self.fragment.engine is not None
        window = self.fragment.engine.own.windows[MAIN]
        return [message.message_id for message in window.live.values()]


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.index.open.set()
    await bed.thread.stop()


async def test_a_send_behind_one_that_reads_does_not_overtake_it(bed: Bed) -> None:
    await bed.know("a")
    bed.store.index.open.clear()
    first = bed.send("a", "b")
    await until(lambda: bed.fragment.loads > 0)
    second, third = bed.send("c"), bed.send("d")
    await until(lambda: bed.behind == 2)
    assert not (first.done() or second.done() or third.done())
    assert bed.runtime.congested is False
    bed.store.index.open.set()
    await asyncio.gather(first, second, third)
    assert bed.there() == ["a", "b", "c", "d"]


async def test_what_is_no_send_is_not_held_back(bed: Bed) -> None:
    await bed.know("a")
    bed.store.index.open.clear()
    held = bed.send("a")
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    count = lambda engine, now, pages: engine.ledger.count(MAIN)  # noqa: E731
    bed.runtime.submit(Call(bed.fragment, Do(count), done.set_result, done.set_exception))
    assert await asyncio.wait_for(done, 5) == 1
    assert not held.done()
    bed.store.index.open.set()
    await held


async def test_the_possible_duplicates_of_a_turn_cost_one_read(bed: Bed) -> None:
    ids = [f"{n}" for n in range(REQUESTS_PER_TURN)]
    await bed.know(*ids)
    await asyncio.gather(*(bed.send(each, f"new {each}") for each in ids))
    assert bed.store.index.reads == [REQUESTS_PER_TURN]
    assert bed.there() == [*ids, *(f"new {each}" for each in ids)]
    # those are known exactly, and no read is needed for them
    await asyncio.gather(*(bed.send(f"new {each}") for each in ids))
    assert len(bed.store.index.reads) == 1


async def test_one_read_is_not_without_bounds(bed: Bed) -> None:
    ids = [f"{n}" for n in range(3 * FORESEEN_MAX)]
    await bed.know(*ids)
    await asyncio.gather(*(bed.send(*ids[n : n + 64]) for n in range(0, len(ids), 64)))
    assert len(bed.store.index.reads) >= 2
    assert max(bed.store.index.reads) <= FORESEEN_MAX + 128
    assert len(bed.there()) <= len(ids)


async def test_what_was_read_is_kept_only_by_those_it_was_read_for(bed: Bed) -> None:
    """Or the answers of every lookup would be in memory until there is a moment without sends."""
    await bed.know("a", "b", "c")
    bed.store.index.open.clear()
    first, with_it = bed.submit("a"), bed.submit("b")
    await until(lambda: bed.fragment.loads > 0)
    later = bed.submit("c")
    await until(lambda: bed.behind == 2)
    bed.store.index.open.set()
    await asyncio.gather(first.done, with_it.done, later.done)
    assert bed.store.index.reads == [2, 1]
    assert first.pages is with_it.pages is not None
    assert first.pages.seen.keys().isdisjoint(later.pages.seen if later.pages else {})
    assert bed.there() == ["a", "b", "c"]


async def test_whoever_waits_for_a_read_that_fails_is_refused(bed: Bed) -> None:
    await bed.know("a")
    bed.store.index.failure = StoreUnavailable("no")
    sends = [bed.send("a"), bed.send("b")]
    for each in sends:
        with pytest.raises(StoreUnavailable):
            await each
    assert bed.there() == ["a"]
    await bed.send("b")
    assert bed.there() == ["a", "b"]


async def test_whoever_waits_while_the_engine_is_thrown_away_is_refused(bed: Bed) -> None:
    """Those that came later may be stored by then, so these could not keep their order."""
    await bed.know("a")
    bed.store.index.open.clear()
    waiting = [bed.send("a"), bed.send("b")]
    await until(lambda: bed.fragment.loads > 0 and bed.behind == 1)
    bed.runtime.discard(bed.fragment, StoreUnavailable("gone"))
    bed.store.index.open.set()
    for each in waiting:
        with pytest.raises(StoreUnavailable, match="loaded anew"):
            await each
    await bed.send("c")
    await bed.quiet()
    assert not bed.runtime._page_reader.held


async def test_sends_that_wait_count_as_waiting(bed: Bed) -> None:
    await bed.know("a")
    bed.store.index.open.clear()
    bed.send("a")
    await until(lambda: bed.fragment.loads > 0)
    waiting = [bed.send("b") for _ in range(20_100)]
    await until(lambda: not bed.runtime._inbox)
    assert bed.runtime.congested
    bed.store.index.open.set()
    await asyncio.gather(*waiting)
    assert not bed.runtime.congested
    await bed.quiet()
    assert bed.there() == ["a", "b"]


async def test_a_failed_commit_forgets_the_ids_that_came_with_it(bed: Bed) -> None:
    await bed.know("a")
    bed.store.commit_failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable):
        await bed.send("b")
    await bed.send("b")
    await bed.quiet()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN) == 2

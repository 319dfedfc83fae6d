"""R-PIPE-02: the change feed beside an engine: what it shows, waits for, refuses and never does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from postbus.amqp.sections import encode_data
from postbus.broker import records
from postbus.broker.message import Message
from postbus.broker.record_kinds import RecordKind
from postbus.errors import (
    ConnectionForced,
    EntityNotFound,
    InvalidArgument,
    OffsetAhead,
    OffsetTrimmed,
    QuotaExceeded,
    ServerBusy,
    StoreUnavailable,
    Unauthorized,
)
from postbus.feed import service as feed_module
from postbus.feed.readers import KEPT_MS, SILENT_MS, FeedReaders, Progress
from postbus.feed.service import Feed, Query
from postbus.model.address import resolve_path
from postbus.model.index_rows import Row
from postbus.namespace.entities import QueueEntity
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.store_thread import StoreThread
from postbus.settings import Settings
from postbus.store import batch
from postbus.store.memory.catalog import MemoryCatalog, MemoryReaderOffsets
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.catalog import EntityRecord, FragmentRecord
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer
from tests.support.bed import Bed

FRAGMENT = 1
NEVER_GONE = 1 << 40


class Desk:
    """A feed of one queue whose journal the test writes itself."""

    def __init__(self, store: Any) -> None:
        loop = asyncio.get_running_loop()
        record = EntityRecord("orders", "queue", {}, 0, 0, (FragmentRecord(FRAGMENT, 0, 0),))
        self.entity = QueueEntity(record, Settings(), 0)
        self.fragment: LoadedFragment = self.entity.only_fragment
        self.store = store
        self.writer = Writer(store)
        self.namespace: Any = SimpleNamespace(
            name="ns",
            entity=lambda name: self.entity if name == "orders" else None,
            entities=lambda: [] if self.fragment.gone else [self.entity],
        )
        self.threads = [StoreThread("feed", loop)]
        self.feed = Feed(self.namespace, [store.journal_reader()], self.threads)  # type: ignore[arg-type]
        self.gone: asyncio.Future[None] = loop.create_future()
        self.refusal: Unauthorized | None = None

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def commit(self, *bodies: bytes, at: int = T0) -> list[Row]:
        """As a commit of the runtime is noted."""
        rows = self.writer.send(*bodies, at=at)
        for tell in list(self.fragment.on_records):
            tell()
        return rows

    async def ask(self, start: int, size: int = 1 << 20, wait_ms: int = 0) -> Any:
        query = Query(start, None, size, wait_ms)
        return await self.feed.ask(self.fragment, query, self.gone, self.check)

    def waits(self, start: int) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.ask(start, wait_ms=60_000))

    async def settle(self) -> None:
        """Let the feed's thread answer what it was asked."""
        for _ in range(3):
            await self.threads[0].run(lambda: None)

    def delete(self) -> None:
        self.fragment.gone = EntityNotFound("orders")
        lost, self.fragment.on_lost = self.fragment.on_lost, {}
        for call in lost:
            call(self.fragment.gone)


def other_host(number: int) -> LoadedFragment:
    record = EntityRecord(f"q{number}", "queue", {}, 0, 0, (FragmentRecord(number + 9, 0, 0),))
    return QueueEntity(record, Settings(), 0).only_fragment


def record(number: int, kind: RecordKind = RecordKind.ENQUEUED, size: int = 10) -> bytes:
    """A record of a message, as the engine writes it."""
    raw = encode_data(b"x" * size)
    message = Message(raw, f"m{number}")
    message.number = message.enqueue_number = number
    return records.encode_with_body(kind, message, raw)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    store = SqliteStore(str(tmp_path / "store.db"))
    desk = Desk(store)
    yield desk
    await desk.threads[0].stop()
    store.close()


async def read(desk: Desk, answer: Any) -> bytes:
    return b"".join([piece async for piece in desk.feed.batches(desk.fragment, answer)])


async def test_what_was_committed_is_read_in_slices(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "RAW_MAX", 300)
    for number in range(10):
        desk.commit(b"%d" % number * 100)
    answer = await desk.ask(0)
    pieces = [piece async for piece in desk.feed.batches(desk.fragment, answer)]
    assert len(pieces) == 10
    assert b"".join(pieces) == b"".join([each.data for each in desk.store.read(1, 0, 1 << 30)])
    assert (answer.next, answer.size) == (10, sum(map(len, pieces)))


async def test_a_batch_that_is_larger_than_a_slice_is_read_in_parts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "RAW_MAX", 300)
    for size in (50, 1_000, 60, 600 - batch.HEADER_SIZE - batch.RECORD_PREFIX_SIZE):
        desk.commit(b"x" * size)
    answer = await desk.ask(0)
    pieces = [bytes(piece) async for piece in desk.feed.batches(desk.fragment, answer)]
    assert max(map(len, pieces)) == 300
    assert b"".join(pieces) == b"".join([each.data for each in desk.store.read(1, 0, 1 << 30)])
    assert answer.size == sum(map(len, pieces))


async def test_no_reader_loads_an_engine_or_counts_as_use(desk: Desk) -> None:
    waiting = desk.waits(0)
    await desk.settle()
    desk.commit(b"1")
    await waiting
    await desk.feed.journals(desk.entity)
    assert desk.fragment.engine is None
    assert not desk.fragment.used
    assert desk.entity.accessed_at == 0
    assert not desk.fragment.on_records and not desk.fragment.on_lost, "nothing is left behind"


async def test_a_wait_sees_a_commit_that_comes_between_its_look_and_its_wait(desk: Desk) -> None:
    looks = 0
    reader: Any = desk.feed._readers[0]
    look = reader.look

    def committing(*asked: int) -> Any:
        nonlocal looks
        looks += 1
        found = look(*asked)
        if looks == 1:
            desk.writer.send(b"1")
            loop.call_soon_threadsafe(lambda: [tell() for tell in list(desk.fragment.on_records)])
        return found

    loop = asyncio.get_running_loop()
    reader.look = committing
    answer = await asyncio.wait_for(desk.waits(0), 10)
    assert (answer.next, looks) == (1, 2)


async def test_a_wait_goes_on_when_only_the_engine_is_gone(desk: Desk) -> None:
    waiting = desk.waits(0)
    await desk.settle()
    lost, desk.fragment.on_lost = desk.fragment.on_lost, {}
    for call in lost:
        call(StoreUnavailable("not now"))
    await desk.settle()
    assert not waiting.done()
    desk.commit(b"1")
    assert (await waiting).next == 1


async def test_a_wait_ends_with_the_entity_also_for_one_whose_key_was_its_own(desk: Desk) -> None:
    waiting = desk.waits(0)
    await desk.settle()
    desk.refusal = Unauthorized("the key went with the entity")
    desk.delete()
    desk.feed.review()
    with pytest.raises(EntityNotFound):
        await waiting


async def test_a_wait_ends_with_its_key_with_the_broker_and_with_its_client(desk: Desk) -> None:
    by_key, by_stop = desk.waits(0), desk.waits(0)
    await desk.settle()
    desk.refusal = Unauthorized("gone")
    desk.feed.review()
    for task in (by_key, by_stop):
        with pytest.raises(Unauthorized):
            await task
    desk.refusal = None
    by_client = desk.waits(0)
    await desk.settle()
    desk.gone.set_result(None)
    assert (await by_client).slices == []
    desk.gone = asyncio.get_running_loop().create_future()
    by_stop = desk.waits(0)
    await desk.settle()
    desk.feed.stop()
    with pytest.raises(ConnectionForced):
        await by_stop
    with pytest.raises(ConnectionForced):
        await desk.ask(0)


async def test_offsets_outside_the_feed_are_refused_with_its_ends(desk: Desk) -> None:
    desk.commit(b"1", b"2")
    desk.commit(b"3", at=T0 + 10)
    desk.writer.checkpoint()
    desk.store.trim(1, T0 + 5, 1 << 40, 10)
    with pytest.raises(OffsetTrimmed) as trimmed:
        await desk.ask(1)
    assert (trimmed.value.first, trimmed.value.next) == (2, 3)
    with pytest.raises(OffsetAhead) as ahead:
        await desk.ask(4)
    assert (ahead.value.first, ahead.value.next) == (2, 3)
    assert (await desk.ask(3)).slices == []


@pytest.mark.parametrize("at_once", [1, 100])
async def test_a_journal_that_is_trimmed_while_a_slow_client_reads_ends_the_reply(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Between two batches, and between two parts of one."""
    monkeypatch.setattr(feed_module, "RAW_MAX", at_once)
    for number in range(4):
        desk.commit(b"%d" % number)
    desk.writer.checkpoint()
    pieces = desk.feed.batches(desk.fragment, await desk.ask(0))
    assert await anext(pieces)
    desk.store.trim(1, NEVER_GONE * 100, 0, 10)
    with pytest.raises(ServerBusy, match="was trimmed while it was read"):
        await anext(pieces)
    with pytest.raises(OffsetTrimmed):
        await desk.ask(1)


@pytest.mark.parametrize("as_lines", [False, True])
async def test_a_reply_has_no_gap_where_a_live_body_holds_its_first_batch(
    desk: Desk, as_lines: bool
) -> None:
    first = desk.commit(record(1))
    for number in range(2, 5):
        desk.commit(record(number))
    desk.writer.checkpoint(first)
    answer = await desk.ask(0)
    desk.store.trim(1, NEVER_GONE * 100, 0, 10)
    desk.commit(record(5))
    assert [each.base for each in desk.store.read(1, 0, 1 << 30)] == [0, 4], "one is held in place"
    if as_lines:
        pieces = desk.feed.lines(desk.entity, desk.fragment, answer)
    else:
        pieces = desk.feed.batches(desk.fragment, answer)
    with pytest.raises(ServerBusy, match="was trimmed while it was read"):
        await anext(pieces)


async def test_only_a_few_put_large_batches_into_lines_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-PIPE-02: such a batch is in memory whole, however slowly its reader reads."""
    monkeypatch.setattr(feed_module, "RAW_MAX", 300)
    monkeypatch.setattr(feed_module, "LINES_BYTES", 1)
    desk.commit(record(1), record(2), record(3), record(4), record(5))
    desk.commit(record(6))
    all_of, small = await desk.ask(0), await desk.ask(5)
    assert [each.size > 300 for each in all_of.slices] == [True, False]

    def lines(answer: Any) -> AsyncGenerator[bytes]:
        return desk.feed.lines(desk.entity, desk.fragment, answer)

    holding = [lines(all_of) for _ in range(feed_module.LARGE_LINES_MAX)]
    for each in holding:
        assert await anext(each)
    late = lines(all_of)
    waiting = asyncio.ensure_future(anext(late))
    assert len([piece async for piece in lines(small)]) == 1, "no matter of theirs"
    await desk.settle()
    assert not waiting.done()
    await holding[0].aclose()
    assert await waiting
    # past the large one, the next may have it
    another = asyncio.ensure_future(anext(lines(all_of)))
    for _ in range(5):
        await anext(late)
    assert await another
    for each in (late, *holding):
        await each.aclose()


async def test_lines_come_in_pieces_of_bounded_size_and_none_is_missing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "LINES_BYTES", 1_000)
    monkeypatch.setattr(feed_module, "LINES_AT_ONCE", 4)
    # Some calls find nothing but housekeeping, and others follow.
    desk.commit(*(record(n, RecordKind.COPIED) for n in range(1, 10)), record(10, size=900))
    desk.commit(*(record(n, size=900) for n in range(11, 20)))
    pieces = [
        piece async for piece in desk.feed.lines(desk.entity, desk.fragment, await desk.ask(0))
    ]
    offsets = [json.loads(line)["offset"] for piece in pieces for line in piece.splitlines()]
    assert offsets == list(range(9, 19))
    assert len(pieces) == 10, "each of these lines is a piece of its own"


async def test_so_many_answers_are_sent_at_once_and_the_rest_wait_for_a_place(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "PLACE_WITHIN_S", 0.05)
    desk.commit(b"1")
    answer = await desk.ask(0)
    fragments = [other_host(number) for number in range(feed_module.ANSWERS_MAX)]
    for fragment in fragments:
        await desk.feed.begin(desk.entity, fragment, answer)
    with pytest.raises(ServerBusy):
        await desk.feed.begin(desk.entity, desk.fragment, answer)
    desk.feed.end(fragments[0])
    await desk.feed.begin(desk.entity, desk.fragment, answer)
    assert desk.entity.meter.feed_reads == feed_module.ANSWERS_MAX + 1
    assert desk.entity.meter.feed_bytes == answer.size * (feed_module.ANSWERS_MAX + 1)


async def test_the_readers_of_one_entity_leave_places_for_those_of_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "PLACE_WITHIN_S", 0.05)
    answer = await desk.ask(0)
    for _ in range(feed_module.PER_FRAGMENT_MAX):
        await desk.feed.begin(desk.entity, desk.fragment, answer)
    waits = [
        desk.feed.begin(desk.entity, desk.fragment, answer) for _ in range(feed_module.ANSWERS_MAX)
    ]
    refused = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(each) for each in refused} == {ServerBusy}, "and none took a place with it"
    other = other_host(2)
    await desk.feed.begin(desk.entity, other, answer)
    desk.feed.end(desk.fragment)
    await desk.feed.begin(desk.entity, desk.fragment, answer)
    for fragment in [other, *[desk.fragment] * feed_module.PER_FRAGMENT_MAX]:
        desk.feed.end(fragment)
    assert not desk.feed._places_of, "a fragment that nobody reads takes no memory"


@pytest.mark.parametrize("path", ["orders/$DeadLetterQueue", "orders/Subscriptions/s"])
async def test_a_part_of_an_entity_has_no_feed_of_its_own(desk: Desk, path: str) -> None:
    with pytest.raises(InvalidArgument, match="it is in that of 'orders'"):
        desk.feed.find(resolve_path(path))
    with pytest.raises(EntityNotFound):
        desk.feed.find(resolve_path("absent"))
    with pytest.raises(EntityNotFound):
        desk.feed.fragment(desk.entity, 1)


async def test_a_store_in_memory_is_read_on_its_own_thread() -> None:
    assert MemoryStore().journal_reader().own_thread is False


async def test_a_commit_of_the_runtime_tells_readers_and_its_head() -> None:
    bed = Bed()
    told: list[int | None] = []
    bed.fragment.on_records[lambda: told.append(bed.fragment.head)] = None
    await bed.send(b"1")
    await bed.send(b"2")
    assert told == [1, 2]
    bed.store.open.set()
    await bed.thread.stop()


# -- readers -----------------------------------------------------------------------------------


class Register:
    def __init__(self, desk: Desk) -> None:
        self.now = T0
        self.catalog = MemoryCatalog(T0)
        self.desk = desk
        self.readers = self.opened()

    def opened(self) -> FeedReaders:
        thread = self.desk.threads[0]
        marks = self.catalog.reader_offsets
        return FeedReaders(self.desk.namespace, marks, thread, lambda: self.now)

    async def put(self, name: str, offset: int) -> None:
        progress = Progress({0: offset}, None, None, self.now)
        await self.readers.put(self.desk.entity, name, progress)


async def test_progress_is_there_after_a_start(desk: Desk) -> None:
    register = Register(desk)
    await register.put("a", 5)
    await register.put("a", 7)
    again = register.opened()
    await again.open()
    assert again.of(desk.entity) == {"a": Progress({0: 7}, None, None, T0)}


async def test_progress_that_comes_together_is_written_together(desk: Desk) -> None:
    register = Register(desk)
    writes: list[int] = []
    write = register.catalog.reader_offsets.write

    def counting(changed: Any) -> None:
        writes.append(len(changed))
        write(changed)

    register.readers._marks = SimpleNamespace(write=counting)  # type: ignore[assignment]
    await asyncio.gather(*(register.put(f"r{number}", number) for number in range(20)))
    assert sum(writes) == 20
    assert len(writes) <= 3


async def test_progress_that_cannot_be_written_is_refused_and_written_later(desk: Desk) -> None:
    register = Register(desk)
    full = mock.patch.object(MemoryReaderOffsets, "write", side_effect=StoreUnavailable("full"))
    with full, pytest.raises(StoreUnavailable):
        await register.put("a", 1)
    await register.put("b", 2)
    assert {key.name for key in register.catalog.reader_offsets.all()} == {"a", "b"}


async def test_a_reader_that_was_not_heard_of_for_a_week_is_forgotten(desk: Desk) -> None:
    register = Register(desk)
    await register.put("old", 1)
    register.now += KEPT_MS + 1
    assert register.readers.of(desk.entity) == {}
    await register.put("new", 2)
    assert {key.name for key in register.catalog.reader_offsets.all()} == {"new"}


async def test_a_start_on_a_full_disk_forgets_readers_later(desk: Desk) -> None:
    register = Register(desk)
    await register.put("old", 1)
    register.now += KEPT_MS + 1
    register.readers, marks = register.opened(), register.catalog.reader_offsets
    with mock.patch.object(MemoryReaderOffsets, "write", side_effect=StoreUnavailable("full")):
        await register.readers.open()
    await register.put("new", 2)
    assert {key.name for key in marks.all()} == {"new"}


async def test_readers_of_an_entity_that_is_gone_are_forgotten_at_the_next_start(
    desk: Desk,
) -> None:
    register = Register(desk)
    await register.put("a", 1)
    desk.delete()
    await register.opened().open()
    assert register.catalog.reader_offsets.all() == {}


@pytest.mark.parametrize("bound", ["READERS_MAX", "PER_ENTITY_MAX"])
async def test_readers_are_bounded_and_a_silent_one_makes_room_for_a_new_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"postbus.feed.readers.{bound}", 2)
    register = Register(desk)
    await register.put("older", 1)
    register.now += 1
    await register.put("old", 1)
    with pytest.raises(QuotaExceeded):
        await register.put("new", 1)
    register.now += SILENT_MS - 1
    await register.put("new", 1)
    assert set(register.readers.of(desk.entity)) == {"old", "new"}


async def test_a_lag_is_known_as_far_as_the_head_is(desk: Desk) -> None:
    register = Register(desk)
    await register.put("a", 2)
    assert register.readers.lags(desk.entity) == {}
    desk.fragment.head = 9
    assert register.readers.lags(desk.entity) == {"a": 7}
    await register.put("a", 12)
    assert register.readers.lags(desk.entity) == {"a": 0}

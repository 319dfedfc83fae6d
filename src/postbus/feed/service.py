"""The change feed of a namespace: the journals, read beside the traffic (R-PIPE-02).

A reader asks nothing of an engine: it keeps none in memory, and no commit waits for it. The stored
batches are read on a thread of their own, a short range at a time. They are read only as fast as
the client takes them, so that a slow client holds neither memory nor a snapshot of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from postbus.broker.subqueue_numbers import subqueue_of
from postbus.errors import (
    SHUTTING_DOWN,
    ConnectionForced,
    EntityNotFound,
    InvalidArgument,
    NotSupported,
    OffsetAhead,
    OffsetTrimmed,
    ServerBusy,
    ServiceBusError,
)
from postbus.feed.events import SUB_QUEUES, JournalOrigin, event
from postbus.feed.lines import line
from postbus.model.address import Address, SubQueue
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.namespace import Namespace
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.store_thread import StoreThread
from postbus.store import batch
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal_reader import RAW_MAX, BatchOutline, Extent, JournalReader

FORMAT: Final = batch.VERSION
BATCHES_MAX: Final = 8_192
"""In one answer: small batches take more time than their bytes say."""
LINES_AT_ONCE: Final = 256
"""Records made into lines in one call on the thread, so that other readers have their turn."""
LINES_BYTES: Final = 512 * 1024
"""The same for large records: a line may have several times the size of its record."""
LARGE_LINES_MAX: Final = 2
"""Answers in JSON lines with a batch larger than a slice. To make lines, the batch is in memory
whole, and several times over if it is one large message."""
ANSWERS_MAX: Final = 64
"""Answers being read and sent at once; each holds two slices. Waiting readers are not counted."""
PER_FRAGMENT_MAX: Final = 16
"""Of these, for one fragment. Clients with the key of a single entity may take their answers as
slowly as is allowed, and must not keep everybody else from reading."""
PLACE_WITHIN_S: Final = 5.0


T = TypeVar("T")


class Journal(NamedTuple):
    """The journal of a fragment of an entity."""

    index: int  # type: ignore[assignment]  # hides tuple.index, of no use here
    id: int
    extent: Extent


class Slice(NamedTuple):
    """Batches that are read at once, or a single batch that is too large for it. All batches from
    the first to the last are in it, so their number tells whether any was trimmed meanwhile."""

    first: int
    """The base of the first batch."""
    last: int
    batches: int
    size: int
    """Bytes of all batches; more than RAW_MAX only for a single batch."""


class Answer(NamedTuple):
    """The batches to read from an offset on. Nothing of them is in memory yet, not even their
    outlines: many answers may wait for a place."""

    start: int
    """The offset that was asked for, by number or by time."""
    extent: Extent
    slices: list[Slice]
    next: int
    """Offset after the last record in it."""
    size: int


class Query(NamedTuple):
    """The request of a reader: from an offset on, or from a time on."""

    start: int | None
    at: Instant | None
    bytes_max: int
    wait_ms: int


class _Places:
    """The places from which answers of a fragment are sent, and the number of their users."""

    __slots__ = ("free", "users")

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(PER_FRAGMENT_MAX)
        self.users = 0


class Feed:
    """The journals of a namespace, for clients that only read."""

    def __init__(
        self, namespace: Namespace, readers: list[JournalReader], threads: list[StoreThread]
    ) -> None:
        """A reader of each store, and the thread on which to call it."""
        self._namespace = namespace
        self._readers = readers
        self._threads = threads
        self._waits: dict[asyncio.Future[None], tuple[LoadedFragment, Callable[[], None]]] = {}
        """Each with a check that refuses a client which may no longer read."""
        self._places = asyncio.Semaphore(ANSWERS_MAX)
        self._large_lines = asyncio.Semaphore(LARGE_LINES_MAX)
        self._places_of: dict[LoadedFragment, _Places] = {}
        """The same for each fragment that is read."""
        self._stopping = False

    def find(self, address: Address) -> QueueEntity | TopicEntity:
        """The entity of an address that has a feed."""
        if address.subqueue is not SubQueue.MAIN or address.subscription or address.management:
            raise InvalidArgument(
                f"'{address.path}' has no feed of its own: it is in that of '{address.entity}'."
            )
        entity = self._namespace.entity(address.entity)
        if entity is not None and entity.partitioned:
            raise NotSupported(
                f"The entity '{entity.path}' is partitioned: Postbus does not support the change "
                "feed of partitioned entities yet."
            )
        if entity is None:
            raise EntityNotFound(address.written)
        return entity

    def fragment(self, entity: QueueEntity | TopicEntity, index: int) -> LoadedFragment:
        """The fragment of an entity at an index."""
        for fragment in entity.fragments:
            if fragment.index == index:
                return fragment
        raise EntityNotFound(f"{entity.name}/$feed/{index}")

    async def journals(self, entity: QueueEntity | TopicEntity) -> list[Journal]:
        """The extent of each fragment."""
        found = []
        for fragment in entity.fragments:
            look = await self._call(fragment, lambda reader, id_: reader.look(id_, 0, 0, 0))
            fragment.head = max(fragment.head or 0, look.extent.next)
            found.append(Journal(fragment.index, fragment.id, look.extent))
        return found

    async def time_of(self, fragment: LoadedFragment, offset: int) -> Instant | None:
        """When the record at an offset was committed, or the oldest that is left behind it."""
        return await self._call(fragment, lambda reader, id_: reader.time_of(id_, offset))

    async def ask(
        self,
        fragment: LoadedFragment,
        query: Query,
        gone: asyncio.Future[None],
        check: Callable[[], None],
    ) -> Answer:
        """The answer to read; if there is nothing yet, wait for it. `gone` is done when nobody
        waits for the answer any more. `check` refuses a client that may no longer read."""
        loop = asyncio.get_running_loop()
        until = loop.time() + query.wait_ms / 1_000
        start = await self._start(fragment, query)
        look = partial(_look, start, query.bytes_max)
        while True:
            if self._stopping:
                raise ConnectionForced(SHUTTING_DOWN)
            if fragment.gone is not None:
                raise fragment.gone
            check()  # time has passed since the request came
            with self._news(fragment, check) as news:
                answer = await self._call(fragment, look)
                _refuse_outside(fragment, start, answer.extent)
                left = until - loop.time()
                if answer.slices or not query.bytes_max or left <= 0 or gone.done():
                    return answer
                await asyncio.wait({news, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    news.result()  # or why nobody may wait here any longer

    async def _start(self, fragment: LoadedFragment, query: Query) -> int:
        at = query.at
        if query.start is not None or at is None:
            return query.start or 0
        return await self._call(fragment, lambda reader, id_: reader.find(id_, at))

    async def begin(
        self, entity: QueueEntity | TopicEntity, fragment: LoadedFragment, answer: Answer
    ) -> None:
        """Wait for a place to send an answer from; `end` must follow. Many answers may wait: a
        commit wakes all readers of an entity at once."""
        own = self._places_of.setdefault(fragment, _Places())
        own.users += 1
        try:
            async with asyncio.timeout(PLACE_WITHIN_S):
                await own.free.acquire()
                try:
                    await self._places.acquire()
                except BaseException:
                    own.free.release()
                    raise
        except TimeoutError:
            self._left(fragment, own)
            raise ServerBusy(
                "The broker answers as many readers of feeds as it can; try again."
            ) from None
        except BaseException:
            self._left(fragment, own)
            raise
        entity.meter.feed_reads += 1
        entity.meter.feed_bytes += answer.size

    def end(self, fragment: LoadedFragment) -> None:
        """The answer was sent, or its client is gone."""
        own = self._places_of[fragment]
        self._places.release()
        own.free.release()
        self._left(fragment, own)

    def _left(self, fragment: LoadedFragment, own: _Places) -> None:
        own.users -= 1
        if not own.users:  # else every fragment that was ever read would stay in memory
            del self._places_of[fragment]

    async def batches(
        self, fragment: LoadedFragment, answer: Answer
    ) -> AsyncGenerator[bytes | memoryview]:
        """The stored batches, some at a time, a large batch in parts. The client checks their
        checksums, which also cover the way to it."""
        for each in answer.slices:
            if each.size <= RAW_MAX:
                yield await self._read_raw(fragment, each)
                continue
            for position in range(0, each.size, RAW_MAX):
                yield await self._read_part(fragment, each, position)

    async def lines(
        self, entity: QueueEntity | TopicEntity, fragment: LoadedFragment, answer: Answer
    ) -> AsyncGenerator[bytes]:
        """Their events as JSON lines, from the first requested offset on. The caller must close it:
        other answers may wait for the memory that a large batch takes."""
        place = place_of(entity, fragment)
        thread = self._threads[fragment.store]
        for each in answer.slices:
            async with self._large_lines if each.size > RAW_MAX else nullcontext():
                events = _lines(place, answer.start, await self._read(fragment, each))
                while (some := await thread.run(partial(_some, events))) is not None:
                    if some:  # else there was only housekeeping among them
                        yield some
                del events

    def review(self) -> None:
        """Keys were taken away: a wait of a client with a revoked key ends."""
        for news, (fragment, check) in list(self._waits.items()):
            if (
                fragment.gone is None and not news.done()
            ):  # that says more than that its keys are gone
                try:
                    check()
                except ServiceBusError as refusal:
                    news.set_exception(refusal)

    def stop(self) -> None:
        """The broker stops: end every wait, and let no new wait begin."""
        self._stopping = True
        for news in self._waits:
            if not news.done():
                news.set_exception(ConnectionForced(SHUTTING_DOWN))

    # -- the journal ---------------------------------------------------------------------------

    @contextmanager
    def _news(
        self, fragment: LoadedFragment, check: Callable[[], None]
    ) -> Iterator[asyncio.Future[None]]:
        """Done when the fragment has more records, or is gone. A reader registers before it looks
        at the journal, so no commit can slip in between."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(_: object = None) -> None:
            if not news.done():
                news.set_result(None)

        self._waits[news] = fragment, check
        fragment.on_records[tell] = None
        # Called when the entity is deleted; also when only its engine is gone, which is no matter.
        fragment.on_lost[tell] = None
        try:
            yield news
        finally:
            del self._waits[news]
            fragment.on_records.pop(tell, None)
            fragment.on_lost.pop(tell, None)
            if news.done():
                news.exception()  # heard of, also where nobody waited

    async def _call(self, fragment: LoadedFragment, call: Callable[[JournalReader, int], T]) -> T:
        reader = self._readers[fragment.store]
        found = await self._threads[fragment.store].run(partial(call, reader, fragment.id))
        if fragment.gone is not None:
            # Deleted meanwhile: the batches read so far may be half of it.
            raise fragment.gone
        return found

    async def _read_raw(self, fragment: LoadedFragment, asked: Slice) -> bytes | memoryview:
        first, last, count, _ = asked
        found, data = await self._call(
            fragment, lambda reader, id_: reader.read_raw(id_, first, last)
        )
        _refuse_gap(fragment, count, found)
        return data

    async def _read_part(
        self, fragment: LoadedFragment, asked: Slice, position: int
    ) -> bytes | memoryview:
        base, size = asked.first, min(RAW_MAX, asked.size - position)
        data = await self._call(
            fragment, lambda reader, id_: reader.read_part(id_, base, position, size)
        )
        if data is None:
            raise _trimmed(fragment)
        return data

    async def _read(self, fragment: LoadedFragment, asked: Slice) -> list[StoredBatch]:
        first, last, count, _ = asked
        stored = await self._call(fragment, lambda reader, id_: reader.read(id_, first, last))
        _refuse_gap(fragment, count, len(stored))
        return stored


def _refuse_gap(fragment: LoadedFragment, asked: int, found: int) -> None:
    """A slow client: the reply has begun, so it ends here, and the next request gets the offset
    that is left. The first batch may still be there, held in place by a live body, while batches
    behind it are gone. So the rest would have a gap."""
    if found != asked:
        raise _trimmed(fragment)


def _trimmed(fragment: LoadedFragment) -> ServerBusy:
    return ServerBusy(f"The journal of '{fragment.name}' was trimmed while it was read.")


def _look(start: int, bytes_max: int, reader: JournalReader, fragment_id: int) -> Answer:
    extent, batches = reader.look(fragment_id, start, bytes_max, BATCHES_MAX)
    end = batches[-1].base + batches[-1].count if batches else start
    size = sum([each.size for each in batches])
    return Answer(start, extent, list(_slices(batches)), end, size)


def place_of(entity: QueueEntity | TopicEntity, fragment: LoadedFragment) -> JournalOrigin:
    return JournalOrigin(entity.name, fragment.index, subscription_names(entity))


def subscription_names(entity: QueueEntity | TopicEntity) -> dict[int, str]:
    """By owner, the number above a subqueue's kind."""
    if isinstance(entity, QueueEntity):
        return {}
    return {each.owner: each.name for each in entity.subscriptions()}


def subqueues_of(entity: QueueEntity | TopicEntity) -> dict[int, tuple[str | None, str]]:
    """The meaning of each number of a subqueue in the records: subscription, and its part."""
    owners: dict[int, str | None] = {0: None, **subscription_names(entity)}
    return {
        subqueue_of(owner, kind): (name, text)
        for owner, name in owners.items()
        for kind, text in SUB_QUEUES.items()
    }


def _refuse_outside(fragment: LoadedFragment, start: int, extent: Extent) -> None:
    if start < extent.first:
        raise OffsetTrimmed(fragment.name, start, extent.first, extent.next)
    if start > extent.next:
        raise OffsetAhead(fragment.name, start, extent.first, extent.next)


def _slices(batches: list[BatchOutline]) -> Iterator[Slice]:
    """Batches that are read at once, and each batch that is too large for it."""
    at = 0
    while at < len(batches):
        end, size = at + 1, batches[at].size
        while end < len(batches) and size + batches[end].size <= RAW_MAX:
            size += batches[end].size
            end += 1
        yield Slice(batches[at].base, batches[end - 1].base, end - at, size)
        at = end


def _lines(place: JournalOrigin, start: int, stored: list[StoredBatch]) -> Iterator[bytes]:
    """A line for each record; empty if the record is no event or comes before `start`."""
    for each in stored:
        at = batch.unpack(each.data).at
        for offset, (_, record) in enumerate(batch.records(each.data), each.base):
            told = event(place, offset, at, record) if offset >= start else None
            yield b"" if told is None else line(told)


def _some(lines: Iterator[bytes]) -> bytes | None:
    """The next few; None when there are no more."""
    some: list[bytes] = []
    size = 0
    for text in islice(lines, LINES_AT_ONCE):
        some.append(text)
        size += len(text)
        if size >= LINES_BYTES:
            break
    return b"".join(some) if some else None

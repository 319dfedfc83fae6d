"""R-PIPE-02: however a reader cuts its questions, it gets every record, once and in order.

The same check must find each of the faults that are planted below: a limit that is off by one
shows only where the limit is met, so all of them are small here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postbus.feed import service as feed_module
from postbus.store import batch
from postbus.store.memory.store import MemoryStore
from postbus.store.sqlite.journal_reader import SqliteReader
from postbus.store.sqlite.store import SqliteStore
from tests.support import feed as client
from tests.unit.feed.test_service import Desk, record

pytestmark = pytest.mark.usefixtures("small_limits")

BATCHES = ((1, 10), (3, 10), (1, 900), (1, 10), (1, 10), (2, 60), (1, 300), (1, 10), (4, 5), (1, 1))
"""Records in each, and how large they are: some fit a slice together, some are larger than one."""


@pytest.fixture(params=["sqlite", "memory"])
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    kind = request.param
    store = SqliteStore(str(tmp_path / "store.db")) if kind == "sqlite" else MemoryStore()
    desk = Desk(store)
    number = 0
    for count, size in BATCHES:
        desk.commit(*(record(number := number + 1, size=size) for _ in range(count)))
    yield desk
    await desk.threads[0].stop()
    store.close()


def stored(desk: Desk) -> list[bytes]:
    return [data for each in desk.store.read(1, 0, 1 << 30) for _, data in batch.records(each.data)]


Found = list[tuple[int, Any]]
"""Offsets, and what is there."""


async def follow(
    desk: Desk, start: int, size: int, read: Callable[[Any], Awaitable[Found]]
) -> Found:
    """Ask from one answer's end to the next, as readers do."""
    found: Found = []
    while True:
        answer = await desk.ask(start, size)
        found += await read(answer)
        if answer.next == answer.extent.next:
            return found
        assert answer.next > start, "an answer that is not the last goes on"
        start = answer.next


async def assert_whole(desk: Desk) -> None:
    everything = stored(desk)

    async def as_batches(answer: Any) -> Found:
        body = b"".join([bytes(piece) async for piece in desk.feed.batches(desk.fragment, answer)])
        assert len(body) == answer.size
        return [(each.offset, each.data) for each in client.records(body)]

    async def as_lines(answer: Any) -> Found:
        lines = b"".join(
            [each async for each in desk.feed.lines(desk.entity, desk.fragment, answer)]
        )
        events = [json.loads(line) for line in lines.splitlines()]
        return [(each["offset"], each["sequenceNumber"]) for each in events]

    for size in (1, 450, 1_200, 1 << 20):
        for start in range(len(everything)):
            # The first batch may begin before the offset.
            found = [
                each for each in await follow(desk, start, size, as_batches) if each[0] >= start
            ]
            assert found == list(enumerate(everything))[start:], f"batches from {start}, {size}"
            numbers = [(offset, offset + 1) for offset in range(start, len(everything))]
            assert await follow(desk, start, size, as_lines) == numbers, f"lines from {start}"


async def test_a_reader_gets_every_record_however_small_its_questions(desk: Desk) -> None:
    await assert_whole(desk)


# -- planted faults ----------------------------------------------------------------------------


def _one_batch_skipped(look: Any) -> Any:
    """An answer that is cut at the limit of batches says that it ends one batch later."""

    def faulty(start: int, bytes_max: int, reader: Any, fragment: int) -> Any:
        answer = look(start, bytes_max, reader, fragment)
        held = reader.look(fragment, start, bytes_max, feed_module.BATCHES_MAX + 1).batches
        if len(held) > feed_module.BATCHES_MAX:
            return answer._replace(next=held[-1].base + held[-1].count)
        return answer

    return faulty


def _slice_one_short(slices: Any) -> Any:
    """The last batch of a slice is not in it, and not in the next one either."""

    def faulty(batches: Any) -> Iterator[Any]:
        for each in slices(batches):
            bases = [held.base for held in batches if each.first <= held.base <= each.last]
            last = bases[-2] if len(bases) > 1 else each.last
            yield each._replace(last=last, batches=max(1, len(bases) - 1))

    return faulty


def _line_lost(some: Any) -> Any:
    """Who looks whether there is more takes a line for it."""

    def faulty(lines: Iterator[bytes]) -> bytes | None:
        found: bytes | None = some(lines)
        next(lines, None)
        return found

    return faulty


def _from_the_next_batch(_: Any) -> Any:
    """Where a batch holds the offset in its middle, the answer begins behind the batch."""
    return lambda reader, fragment, offset: offset


def _part_one_short(read_part: Any) -> Any:
    async def faulty(feed: Any, fragment: Any, asked: Any, position: int) -> Any:
        return (await read_part(feed, fragment, asked, position))[:-1]

    return faulty


def _after_the_start(lines: Any) -> Any:
    return lambda place, start, batches: lines(place, start + 1, batches)


def _last_batch_only_by_bytes(look: Any) -> Any:
    """A batch that fits its bytes exactly is taken for one that does not, and passed over."""

    def faulty(start: int, bytes_max: int, reader: Any, fragment: int) -> Any:
        answer = look(start, bytes_max, reader, fragment)
        if len(answer.slices) > 1:
            return answer._replace(slices=answer.slices[:-1])
        return answer

    return faulty


FAULTS = [
    (feed_module, "_look", _one_batch_skipped),
    (feed_module, "_look", _last_batch_only_by_bytes),
    (feed_module, "_slices", _slice_one_short),
    (feed_module, "_some", _line_lost),
    (feed_module, "_lines", _after_the_start),
    (feed_module.Feed, "_read_part", _part_one_short),
    (SqliteReader, "_holding", _from_the_next_batch),
]


@pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("owner", "name", "fault"), FAULTS, ids=lambda each: getattr(each, "__name__", "")
)
async def test_a_planted_fault_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any
) -> None:
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    with pytest.raises((AssertionError, batch.BatchCorrupt)):
        await assert_whole(desk)

"""Lives of a store with a commit log, and what a start must find of them."""

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

from postbus.store.log.store import LogStore
from postbus.store.ports.journal import Part
from postbus.store.ports.store import Store
from tests.contract.disk import BY_NAME
from tests.contract.fragments import Dump, Writer, body_of, change
from tests.contract.stories import (
    Answered,
    Found,
    RandomStoreStory,
    StoreStory,
    Twin,
    assert_sound,
    standing,
)
from tests.support.fault_files import FaultFiles, InlineWriter

SEGMENT_BYTES = 24_576
"""Small, so that a life fills several, and some are let go."""


def open_log(
    folder: Path,
    vfs: str,
    make: Callable[..., LogStore] = LogStore,
    segment_bytes: int = SEGMENT_BYTES,
    **options: Any,
) -> LogStore:
    if not (isinstance(make, partial) and "make_writer" in make.keywords):
        options["make_writer"] = InlineWriter
    files = FaultFiles(folder, BY_NAME[vfs])
    return make(
        folder,
        files=files,
        vfs=vfs,
        segment_bytes=segment_bytes,
        spares_on_thread=False,
        **options,
    )


class LogStory(StoreStory):
    """As the story of a SQLite store. A planted fault is another `make`."""

    def __init__(self, make: Callable[..., LogStore] = LogStore) -> None:
        def open_store(path: str, vfs: str, wal_pages_max: int) -> Any:
            return open_log(Path(path).parent, vfs, make, wal_pages_max=wal_pages_max)

        super().__init__(open_store)

    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        return look_at_log(folder, vfs, shown)


class RandomLogStory(RandomStoreStory):
    def __init__(self, seed: int, steps: int, make: Callable[..., LogStore] = LogStore) -> None:
        super().__init__(seed, steps, make=LogStory(make)._make)

    def look(self, folder: Path, vfs: str, shown: Answered = lambda: None) -> Found:
        return look_at_log(folder, vfs, shown)


class PipelinedStory(LogStory):
    """Commits that begin before those before them are durable, in several segments at once."""

    def __init__(self, seed: int, rounds: int, under_way: int) -> None:
        super().__init__()
        self._seed = seed
        self._rounds = rounds
        self._under_way = under_way

    def live(self, twin: Twin, start: Callable[[], Twin]) -> Any:
        chance = random.Random(self._seed)
        store: Any = twin.file
        two: Any = twin
        writers = [Writer(two, fragment) for fragment in (1, 2)]
        for _ in range(self._rounds):
            commits = []
            for _ in range(chance.randint(1, self._under_way)):
                parts = [self._part(chance, writer) for writer in writers]
                commits.append((parts, store.begin(parts)))
            for parts, begun in commits:
                assert store.finish(begun) == twin.shadow.store.commit(parts) == {1, 2}
                twin.answered()
            if chance.random() < 0.2:
                for writer in writers:
                    two.trim(writer.fragment, 1 << 60, 20_000, 1_000)
        return twin.file

    def _part(self, chance: random.Random, writer: Writer) -> Part:
        body = chance.randbytes(chance.choice((10, 500, 4_000)))
        checkpoint = change(writer.head, state=body[:5]) if chance.random() < 0.3 else None
        part, _ = writer.part(body, checkpoint=checkpoint)
        writer.head += 1
        return part


def look_at_log(folder: Path, vfs: str, shown: Answered) -> Found:
    with closing(open_log(folder, vfs)) as store:
        found = standing(store)
        for fragment, (_, dump) in zip((1, 2), found, strict=True):
            assert_bodies(store, fragment, dump)
        shown()
        assert_sound(folder / "index.db", vfs)
    return found


def assert_bodies(store: Store, fragment: int, dump: Dump) -> None:
    """What is to be replayed is there without a gap, and so is the body of each message."""
    end = dump.checkpoint
    for base, data in dump.batches:
        if base >= end:
            assert base == end, "a gap in what is replayed"
        end = max(end, base + _count(data))
    assert end == dump.head
    for row in dump.rows:
        if row.length < 1 << 20 and row.base < dump.head:
            assert body_of(store, fragment, row) is not None, "a body is lost"


def _count(data: bytes) -> int:
    return int.from_bytes(data[44:48], "big")


def is_found(found: Found, states: list[Found], done: int, under_way: int = 1) -> bool:
    """Is this how things may stand after so many answers, with some of the next steps done as well?

    Who may write, all batches and the tail are as they were answered. The index may be older: it
    stands at a checkpoint that was written before.
    """
    return any(
        all(_fits(fragment, here, states[: last + 1]) for fragment, here in enumerate(found))
        for last in range(done, min(done + 1 + under_way, len(states)))
    )


def _fits(fragment: int, here: tuple[int, Dump], states: list[Found]) -> bool:
    wanted = states[-1][fragment]
    if wanted is ANY:
        return True
    (epoch, dump), (wanted_epoch, wanted_dump) = here, wanted
    return (epoch, dump.head, dump.tail, dump.batches) == (
        *(wanted_epoch, wanted_dump.head, wanted_dump.tail),
        wanted_dump.batches,
    ) and any(
        _index_of(dump) == _index_of(state[fragment][1])
        for state in states
        if state[fragment] is not ANY
    )


def _index_of(dump: Dump) -> object:
    return dump.checkpoint, dump.state, dump.rows

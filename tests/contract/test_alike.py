"""The stores in files and the one in memory, side by side through the same random life."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postbus.model.index_rows import Checkpoint, Row, RowKey
from postbus.store.log.retention import Retention
from postbus.store.log.store import LogStore
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.store import Store
from postbus.store.sqlite.store import SqliteStore
from tests.contract.disk import disk, no_fault
from tests.contract.fragments import T0, Dump, Writer, body_of, dump, key_of

LANES = tuple((subqueue, lane) for subqueue in (0, 1) for lane in (0, 1, 2))
STEPS = 80


class Engine:
    """Decides at random what happens to messages, and what the next checkpoint says of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.live: dict[int, tuple[Row, bytes]] = {}
        """Each live message by its number, with its body."""
        self.indexed: dict[int, RowKey] = {}
        """Where the last checkpoint left each message."""
        self.next_number = 0
        self.now = T0

    def send(self, writers: list[Writer]) -> None:
        bodies = [self.random.randbytes(self.random.randint(0, 3_000)) for _ in range(3)]
        self.now += self.random.randint(0, 1_000)
        for writer in writers:
            rows = writer.send(*bodies, at=self.now)
        for row, body in zip(rows, bodies, strict=True):
            group = self.random.choice((None, b"", b"a", b"b", bytes([self.next_number % 256])))
            placed = row._replace(number=self.next_number, wake_at=self._wake_at(), group=group)
            self.live[self.next_number] = placed, body
            self.next_number += 1

    def settle(self) -> None:
        for number in self.random.sample(sorted(self.live), len(self.live) // 3):
            row, body = self.live[number]
            if self.random.random() < 0.5:
                del self.live[number]
            else:
                subqueue, lane = self.random.choice(LANES)
                moved = row._replace(subqueue=subqueue, lane=lane, wake_at=self._wake_at())
                self.live[number] = moved, body

    def checkpoint(self, head: int) -> Checkpoint:
        rows = [row for row, _ in self.live.values()]
        kept = {row.number: key_of(row) for row in rows}
        removed = [key for number, key in self.indexed.items() if kept.get(number) != key]
        self.indexed = kept
        self.random.shuffle(rows)
        return Checkpoint(head, rows, removed, b"state at %d" % head)

    def copy_forward(self, stores: list[Store], writers: list[Writer]) -> None:
        found = [store.load_pinned(1, store.tail(1), 0.7, 1_000) for store in stores]
        assert found[0] == found[1]
        for row in found[0]:
            if row.number in self.live:
                kept, body = self.live[row.number]
                for writer in writers:
                    [copy] = writer.send(body, at=self.now)
                moved = kept._replace(base=copy.base, position=copy.position)
                self.live[row.number] = moved, body

    def _wake_at(self) -> int | None:
        return self.random.choice([None, T0 + self.random.randint(0, 50)])


def whole(store: Store) -> Dump:
    return dump(store, 1, LANES)


def open_sqlite(folder: Path, vfs: str) -> Store:
    return SqliteStore(str(folder / "store.db"), vfs=vfs, wal_pages_max=30)


def open_log(folder: Path, vfs: str) -> Store:
    return LogStore(folder, vfs=vfs, wal_pages_max=30, segment_bytes=32_768)


@pytest.mark.parametrize("open_file", [open_sqlite, open_log], ids=["sqlite", "log"])
@pytest.mark.parametrize("seed", range(25))
def test_both_stores_answer_alike_through_a_random_life(
    tmp_path: Path,
    seed: int,
    open_file: Callable[[Path, str], Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A log also offers bodies that hold a segment: that is its own rule, and has tests there.
    monkeypatch.setattr(Retention, "_is_sparse", lambda *_: False)
    engine = Engine(seed)
    memory = MemoryStore()
    with disk(no_fault) as sound:
        file = open_file(tmp_path, sound.name)
        stores: list[Store] = [file, memory]
        writers = [Writer(store) for store in stores]
        for step in range(STEPS):
            match engine.random.randrange(7):
                case 0 | 1 | 2:
                    engine.send(writers)
                case 3:
                    engine.settle()
                case 4:
                    checkpoint = engine.checkpoint(writers[0].head)
                    for writer in writers:
                        writer.send(checkpoint=checkpoint)
                    assert_alike(stores, engine)
                case 5:
                    engine.copy_forward(stores, writers)
                case 6:
                    older, room = engine.now - 5_000, engine.random.choice([0, 9_000, 1 << 40])
                    trimmed = [store.trim(1, older, room, 10_000) for store in stores]
                    assert trimmed[0] == trimmed[1], f"seed {seed}, step {step}"
            if engine.random.random() < 0.05:
                file.close()
                stores[0] = file = open_file(tmp_path, sound.name)
                writers = [Writer(store) for store in stores]
        with closing(file):
            assert whole(file) == whole(memory)


def assert_alike(stores: list[Store], engine: Engine) -> None:
    """At a checkpoint the index is exactly what is alive, and every body is where it says."""
    for store in stores:
        rows = [row for lane in LANES for row in store.index.load_lane(1, *lane, 0, 10_000)]
        assert {row.number: row for row in rows} == {n: row for n, (row, _) in engine.live.items()}
        for row in rows:
            assert body_of(store, 1, row) == engine.live[row.number][1]
    for lane in LANES:
        due = [store.index.load_due(1, *lane, T0 + 25, 10) for store in stores]
        assert due[0] == due[1]
        following = [store.index.next_due(1, *lane, T0 + 25) for store in stores]
        assert following[0] == following[1]
        groups = [store.index.load_groups(1, *lane, None, 10_000) for store in stores]
        assert groups[0] == groups[1]
        for group in groups[0][:5]:
            of_one = [store.index.load_group(1, *lane, group, 3, 10) for store in stores]
            assert of_one[0] == of_one[1]

"""How much SQLite has to do for one call does not depend on how much the store holds.

Counted in steps of SQLite's virtual machine, which are the same on every machine: a statement that
walks through a whole fragment where it should look up a few rows shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from postbus.model.index_rows import Row
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer, key_of

SMALL, LARGE = 400, 8_000
PER_BATCH = 20
LANES = ((0, 0), (0, 1), (0, 2))
FEW = 10


class Filled(NamedTuple):
    """A store with a backlog: rows in three lanes, every batch pinned and out of retention."""

    store: SqliteStore
    writer: Writer
    rows: list[Row]

    def steps(self, call: Callable[[Filled], object]) -> int:
        """What a call takes, to within a hundred steps."""
        connection = self.store._database._connection
        counted = 0

        def count() -> bool:
            nonlocal counted
            counted += 100
            return False

        connection.set_progress_handler(count, 100)
        try:
            call(self)
        finally:
            connection.set_progress_handler(None)
        return counted


def fill(path: Path, messages: int) -> Filled:
    store = SqliteStore(str(path))
    writer = Writer(store)
    rows: list[Row] = []
    for start in range(0, messages, PER_BATCH):
        sent = writer.send(*[b"x" * 256] * PER_BATCH)
        rows += [
            row._replace(lane=lane, subqueue=subqueue, wake_at=T0 + start + n)
            for n, row in enumerate(sent)
            for subqueue, lane in [LANES[n % len(LANES)]]
        ]
    writer.checkpoint(rows)
    while store.trim(1, T0 + 1, 0, 1_000).more:
        pass
    return Filled(store, writer, rows)


@pytest.fixture(scope="module")
def backlogs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Filled, Filled]]:
    folder = tmp_path_factory.mktemp("work")
    small, large = fill(folder / "small.db", SMALL), fill(folder / "large.db", LARGE)
    with closing(small.store), closing(large.store):
        yield small, large


def _middle(filled: Filled) -> list[Row]:
    half = len(filled.rows) // 2
    return filled.rows[half : half + FEW]


CALLS: dict[str, Callable[[Filled], object]] = {
    "a page of a lane": lambda f: f.store.index.load_lane(1, 0, 0, _middle(f)[0].number, FEW),
    "what is due": lambda f: f.store.index.load_due(1, 0, 2, T0 + 5, FEW),
    "when something is next due": lambda f: f.store.index.next_due(1, 0, 2, T0 + 5),
    "rows by key": lambda f: f.store.index.load_rows(1, [key_of(row) for row in _middle(f)]),
    "pinned rows": lambda f: f.store.load_pinned(1, _middle(f)[0].base, 2.0, FEW),
    "one batch": lambda f: f.store.read_batch(1, _middle(f)[0].base),
    "part of a batch": lambda f: f.store.read_slice(1, _middle(f)[0].base, 50, 100),
    "a piece of the journal": lambda f: f.store.read(1, _middle(f)[0].base, 1),
    "a trim with nothing to do": lambda f: f.store.trim(1, T0 + 1, 0, 100),
    "where it stands": lambda f: f.store.position(1),
    "a commit": lambda f: f.writer.send(b"x", at=T0 + 2),
    "a checkpoint that puts": lambda f: _put(f, _middle(f)),
    "a checkpoint that moves": lambda f: _move(f, _middle(f)),
    "a checkpoint that removes": lambda f: f.writer.checkpoint([], _middle(f)),
    "a trim after that": lambda f: f.store.trim(1, T0 + 1, 0, 100),
}


def _put(filled: Filled, rows: list[Row]) -> None:
    """As after copy-forward: the same rows, their bodies elsewhere."""
    base = filled.writer.head - 1
    filled.writer.checkpoint([row._replace(base=base) for row in rows])


def _move(filled: Filled, rows: list[Row]) -> None:
    filled.writer.checkpoint([row._replace(subqueue=1) for row in rows], rows)
    filled.writer.checkpoint(rows, [row._replace(subqueue=1) for row in rows])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_as_much_for_a_large_backlog_as_for_a_small_one(
    backlogs: tuple[Filled, Filled], name: str
) -> None:
    small, large = backlogs
    assert large.steps(CALLS[name]) <= 1.5 * small.steps(CALLS[name]) + 300


def test_taking_a_fragment_over_reads_none_of_its_backlog(
    backlogs: tuple[Filled, Filled],
) -> None:
    for filled in backlogs:
        assert filled.steps(lambda f: f.store.acquire(1, "broker-b", 0)) <= 300

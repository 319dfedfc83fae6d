"""Whatever is let go of in slices: all of it goes, nothing else does, and no slice is large."""

from __future__ import annotations

import pytest

from postbus.store.memory.store import MemoryStore
from postbus.store.ports.store import Store
from tests.contract.fragments import Row, Writer

pytestmark = pytest.mark.usefixtures("small_limits")

SIZES = (10, 400, 400, 400, 2_000, 10, 10, 900, 100, 10, 10, 1_200)
"""Of the bodies, one for each batch: a slice ends by its number of batches or by its bytes."""
SLICE_BYTES = 1_000
EVER = 1 << 60
LIMITS = (1, 2, 3, len(SIZES) - 1, len(SIZES), len(SIZES) + 1, 100)
each_limit = pytest.mark.parametrize("limit", LIMITS)


def written(store: Store, fragment: int = 1) -> tuple[Writer, list[Row]]:
    writer = Writer(store, fragment)
    rows = [row for size in SIZES for row in writer.send(bytes(size))]
    return writer, rows


def bases(store: Store, fragment: int = 1) -> list[int]:
    return [each.base for each in store.read(fragment, 0, EVER)]


def trim_all(store: Store, limit: int) -> None:
    for _ in range(4 * len(SIZES)):
        before = {each.base: len(each.data) for each in store.read(1, 0, EVER)}
        trimmed = store.trim(1, EVER, 0, limit)
        gone = sorted(before.keys() - set(bases(store)))
        assert len(gone) == trimmed.batches <= limit
        if not isinstance(store, MemoryStore):  # freeing memory costs nothing
            assert sum(before[base] for base in gone[:-1]) < SLICE_BYTES, "a slice too large"
        if not trimmed.more:
            return
    raise AssertionError("a trim that never ends")


@each_limit
@pytest.mark.parametrize("pinned", [(), (0,), (1, 4, 11), (3, 4, 5, 6), tuple(range(12))])
def test_a_trim_in_slices_lets_go_of_what_nothing_pins(
    store: Store, limit: int, pinned: tuple[int, ...]
) -> None:
    writer, rows = written(store)
    writer.checkpoint([rows[place] for place in pinned])
    trim_all(store, limit)
    assert bases(store) == list(pinned)
    assert store.tail(1) == len(SIZES)
    # Those go in their turn, and what was written meanwhile.
    writer.send(b"more")
    writer.checkpoint([], [rows[place] for place in pinned])
    trim_all(store, limit)
    assert bases(store) == []


@each_limit
def test_a_fragment_is_dropped_in_slices_to_the_last(store: Store, limit: int) -> None:
    kept = [written(store, fragment) for fragment in (1, 2, 3)]
    for writer, rows in kept:
        writer.checkpoint(rows)
    for _ in range(4 * len(SIZES)):
        before = {each.base: len(each.data) for each in store.read(2, 0, EVER)}
        done = store.drop(2, limit)
        gone = sorted(before.keys() - set(bases(store, 2)))
        if not isinstance(store, MemoryStore):
            assert sum(before[base] for base in gone[:-1]) < SLICE_BYTES, "a slice too large"
        if done:
            break
    assert done
    assert bases(store, 2) == [] == store.index.load_lane(2, 0, 0, 0, 100)
    assert store.acquire(2, "another", 0).head == 0, "the fragment is unknown"
    for fragment in (1, 3):
        assert len(bases(store, fragment)) == len(SIZES)
        assert len(store.index.load_lane(fragment, 0, 0, 0, 100)) == len(SIZES)


@each_limit
def test_searches_for_pinned_rows_find_all_of_them(store: Store, limit: int) -> None:
    """Rows that are little of their batch: each is found in its turn, when those that were found
    before have left."""
    writer = Writer(store)
    live: list[Row] = []
    for _ in range(8):
        live += writer.send(b"live", bytes(500), b"live")[::2]
        live += writer.send(b"few")
        live += writer.send(b"few")
    writer.checkpoint(live)
    left = {row.number: row for row in live}
    for _ in range(4 * len(live)):
        some = store.load_pinned(1, writer.head, 0.25, limit)
        assert len(some) <= limit
        writer.checkpoint([], [left.pop(row.number) for row in some])
    assert left == {}

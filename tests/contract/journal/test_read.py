"""Ranges, batches and slices of a journal."""

import pytest

from postbus.store.ports.store import Store
from tests.contract.fragments import Writer


def test_reading_starts_with_the_batch_that_holds_the_offset(store: Store) -> None:
    writer = Writer(store)
    for bodies in ([b"0", b"1", b"2"], [b"3"], [b"4", b"5"]):
        writer.send(*bodies)

    def bases(start: int) -> list[int]:
        return [stored.base for stored in store.read(1, start, 1 << 20)]

    assert bases(0) == [0, 3, 4]
    assert bases(2) == [0, 3, 4]
    assert bases(3) == [3, 4]
    assert bases(5) == [4]
    assert bases(6) == []
    assert bases(99) == []


def test_a_read_returns_one_batch_at_least_and_then_what_fits(store: Store) -> None:
    writer = Writer(store)
    for _ in range(4):
        writer.send(bytes(1_000))
    size = len(store.read(1, 0, 0)[0].data)

    assert len(store.read(1, 0, 0)) == 1
    assert len(store.read(1, 0, size)) == 1
    assert len(store.read(1, 0, 2 * size - 1)) == 1
    assert len(store.read(1, 0, 2 * size)) == 2
    assert len(store.read(1, 1, 99 * size)) == 3


def test_a_slice_is_part_of_one_batch(store: Store) -> None:
    writer = Writer(store)
    writer.send(bytes(range(256)) * 400)
    whole = store.read_batch(1, 0)
    assert whole is not None

    assert store.read_slice(1, 0, 0, 10) == whole[:10]
    assert store.read_slice(1, 0, 60_000, 300) == whole[60_000:60_300]
    assert store.read_slice(1, 0, len(whole), 0) == b""
    assert store.read_slice(1, 1, 0, 10) is None


@pytest.mark.parametrize(("position", "length"), [(-1, 1), (0, 99_999), (99_999, 1), (5, -1)])
def test_a_slice_outside_its_batch_is_refused(store: Store, position: int, length: int) -> None:
    writer = Writer(store)
    writer.send(b"body")

    with pytest.raises(ValueError, match="outside"):
        store.read_slice(1, 0, position, length)

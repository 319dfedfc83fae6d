"""The ids that entities have seen, in every store."""

from __future__ import annotations

import random

from postbus.model.index_rows import Checkpoint, SeenIds
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer


def digest(number: int) -> bytes:
    return random.Random(number).randbytes(16)


def see(writer: Writer, part: int, *numbers: int, at: int = T0) -> None:
    seen = SeenIds(part, [digest(n) for n in numbers], [at] * len(numbers))
    writer.send(checkpoint=Checkpoint(writer.head, [], [], b"state", seen))


def test_ids_are_found_in_the_parts_that_are_asked_for(store: Store) -> None:
    writer = Writer(store)
    see(writer, 1, 1, 2)
    see(writer, 2, 3, at=T0 + 5)
    asked = [digest(n) for n in (3, 1, 9)]

    assert store.index.load_seen(1, [1, 2], asked) == {digest(1): T0, digest(3): T0 + 5}
    assert store.index.load_seen(1, [2], asked) == {digest(3): T0 + 5}
    assert store.index.load_seen(1, [7], asked) == {}
    assert store.index.load_seen(1, [], asked) == store.index.load_seen(1, [1], []) == {}
    assert store.index.load_seen(2, [1, 2], asked) == {}


def test_an_id_that_was_seen_twice_has_its_later_time(store: Store) -> None:
    writer = Writer(store)
    see(writer, 1, 1, 2)
    see(writer, 1, 1, at=T0 + 9)
    see(writer, 3, 2, at=T0 + 7)

    for parts in ([1, 3], [3, 1]):
        assert store.index.load_seen(1, parts, [digest(1), digest(2)]) == {
            digest(1): T0 + 9,
            digest(2): T0 + 7,
        }


def test_the_ids_of_a_part_are_paged_in_order(store: Store) -> None:
    writer = Writer(store)
    see(writer, 1, *range(700))
    see(writer, 2, 1_000)
    ordered = sorted(digest(n) for n in range(700))

    assert store.index.load_seen_digests(1, 1, b"", 300) == ordered[:300]
    assert store.index.load_seen_digests(1, 1, ordered[299], 300) == ordered[300:600]
    assert store.index.load_seen_digests(1, 1, ordered[599], 300) == ordered[600:]
    assert store.index.load_seen_digests(1, 1, ordered[-1], 300) == []
    assert store.index.load_seen_digests(1, 2, b"", 300) == [digest(1_000)]
    assert store.index.load_seen_digests(1, 9, b"", 300) == []


def test_many_ids_are_found_at_once(store: Store) -> None:
    writer = Writer(store)
    for part in range(4):
        see(writer, part, *range(part * 1_000, part * 1_000 + 1_000), at=T0 + part)

    found = store.index.load_seen(1, range(4), [digest(n) for n in range(0, 8_000, 2)])
    assert found == {digest(n): T0 + n // 1_000 for n in range(0, 4_000, 2)}


def test_whole_parts_are_dropped_in_slices(store: Store) -> None:
    writer, other = Writer(store), Writer(store, 2)
    see(writer, 1, *range(10))
    see(writer, 2, *range(10, 20))
    see(writer, 3, 30)
    see(other, 1, 1)

    calls = 1
    while not store.index.drop_seen(1, 3, 7):
        calls += 1
    assert calls <= 3
    everything = [digest(n) for n in range(40)]
    assert store.index.load_seen(1, [1, 2, 3], everything) == {digest(30): T0}
    assert store.index.load_seen(2, [1], everything) == {digest(1): T0}
    assert store.index.drop_seen(1, 3, 7)


def test_a_dropped_fragment_leaves_no_ids_behind(store: Store) -> None:
    writer, other = Writer(store), Writer(store, 2)
    writer.send(b"a", b"b")
    see(writer, 1, *range(50))
    see(writer, 9, 60)
    see(other, 1, 1)
    calls = 0
    while not store.drop(1, 20):
        calls += 1
        assert calls < 10
    assert store.index.load_seen(1, [1, 9], [digest(n) for n in range(61)]) == {}
    assert store.position(1) is None
    assert store.index.load_seen(2, [1], [digest(1)]) == {digest(1): T0}


def test_the_ids_of_a_fenced_checkpoint_are_not_kept(store: Store) -> None:
    writer = Writer(store)
    store.acquire(1, "broker-b", 0)
    seen = SeenIds(1, [digest(1)], [T0])
    part, _ = writer.part(checkpoint=Checkpoint(writer.head, [], [], b"state", seen))
    assert store.commit([part]) == frozenset()
    assert store.index.load_seen(1, [1], [digest(1)]) == {}

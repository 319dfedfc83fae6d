"""R-PIPE-02: reading the change feed beside the writer, in every store."""

import pytest

from postbus.store import batch
from postbus.store.ports.journal_reader import BatchOutline, Extent
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer

ALL = 1 << 60


def written(store: Store, *counts: int) -> Writer:
    """One batch of so many records each, a second apart."""
    writer = Writer(store)
    for index, count in enumerate(counts):
        writer.send(*[b"x" * 50] * count, at=T0 + index * 1_000)
    return writer


def test_a_fragment_that_was_never_used_has_an_empty_journal(store: Store) -> None:
    reader = store.journal_reader()
    assert reader.look(7, 0, ALL, 10) == (Extent(0, 0, None, None, 0), [])
    assert reader.find(7, T0) == 0
    assert reader.time_of(7, 0) is None
    assert reader.read(7, 0, 100) == []
    assert reader.read_raw(7, 0, 100) == (0, b"")
    assert reader.read_part(7, 0, 0, 10) is None


def test_a_commit_is_seen_as_soon_as_it_is_made(store: Store) -> None:
    reader = store.journal_reader()
    writer = written(store, 2, 3)
    extent, batches = reader.look(1, 0, ALL, 10)
    assert (extent.first, extent.next) == (0, 5)
    assert (extent.first_at, extent.last_at) == (T0, T0 + 1_000)
    assert extent.size == sum(each.size for each in batches)
    assert [each[:3] for each in batches] == [(0, 2, T0), (2, 3, T0 + 1_000)]

    writer.send(b"one more", at=T0 + 2_000)
    assert reader.look(1, 5, ALL, 10).batches[0][:3] == (5, 1, T0 + 2_000)


def test_batches_come_untouched(store: Store) -> None:
    reader = store.journal_reader()
    written(store, 2, 3, 1)
    outlines = reader.look(1, 0, ALL, 10).batches
    read = reader.read(1, outlines[0].base, outlines[-1].base)
    assert read == store.read(1, 0, ALL)
    assert reader.read_raw(1, 0, outlines[-1].base) == (3, b"".join(each.data for each in read))
    assert reader.read_raw(1, outlines[1].base, outlines[1].base) == (1, read[1].data)
    for outline, stored in zip(outlines, read, strict=True):
        header = batch.unpack(stored.data)
        assert outline == BatchOutline(
            stored.base, header.record_count, header.at, len(stored.data)
        )


def test_a_batch_is_read_in_parts(store: Store) -> None:
    reader = store.journal_reader()
    writer = Writer(store)
    writer.send(b"before", at=T0)
    writer.send(b"ab" * 50_000, at=T0)
    [whole] = reader.read(1, 1, 1)
    size = len(whole.data)
    for step in (1_000, 8_192, 99_999, size):
        parts = [
            reader.read_part(1, 1, position, min(step, size - position))
            for position in range(0, size, step)
        ]
        assert b"".join([part or b"" for part in parts]) == whole.data
    assert reader.read_part(1, 7, 0, 10) is None
    for position, length in ((size - 5, 6), (size, 1), (size + 1, 0), (-1, 2), (5, -1)):
        with pytest.raises(ValueError, match="outside a batch"):
            reader.read_part(1, 1, position, length)
    assert bytes(reader.read_part(1, 1, size - 5, 5) or b"") == whole.data[-5:], "and it goes on"


def test_a_look_begins_with_the_batch_that_holds_the_offset(store: Store) -> None:
    reader = store.journal_reader()
    written(store, 2, 3, 1)
    assert [each.base for each in reader.look(1, 3, ALL, 10).batches] == [2, 5]
    assert [each.base for each in reader.look(1, 5, ALL, 10).batches] == [5]


def test_a_look_ends_where_its_bytes_or_its_limit_do(store: Store) -> None:
    reader = store.journal_reader()
    written(store, 1, 1, 1, 1)
    size = reader.look(1, 0, ALL, 10).batches[0].size
    assert len(reader.look(1, 0, 2 * size, 10).batches) == 2
    assert len(reader.look(1, 0, 2 * size - 1, 10).batches) == 1
    assert len(reader.look(1, 0, 1, 10).batches) == 1, "one, however large"
    assert len(reader.look(1, 0, ALL, 3).batches) == 3
    assert reader.look(1, 0, 0, 10).batches == []


@pytest.mark.parametrize("start", [-1, 4, 5, 99])
def test_outside_the_extent_there_is_nothing_to_read(store: Store, start: int) -> None:
    reader = store.journal_reader()
    written(store, 1, 3)
    extent, batches = reader.look(1, start, ALL, 10)
    assert (extent.first, extent.next, batches) == (0, 4, [])


def test_what_is_trimmed_is_gone_from_the_feed_at_once(store: Store) -> None:
    reader = store.journal_reader()
    writer = written(store, 1, 2, 1)
    writer.checkpoint()
    store.trim(1, T0 + 1_500, ALL, 100)

    extent, batches = reader.look(1, 0, ALL, 10)
    assert (extent.first, extent.next, extent.first_at, batches) == (3, 4, T0 + 2_000, [])
    assert reader.read(1, 0, 2) == []
    assert reader.read_raw(1, 0, 2) == (0, b"")
    assert reader.read_part(1, 0, 0, 10) is None
    assert reader.find(1, 0) == 3
    assert reader.time_of(1, 0) == T0 + 2_000, "that of the oldest that is left"


def test_a_batch_that_only_a_live_body_holds_is_no_part_of_the_feed(store: Store) -> None:
    reader = store.journal_reader()
    writer = Writer(store)
    rows = [*writer.send(b"kept", at=T0), *writer.send(b"gone", at=T0 + 1_000)]
    writer.checkpoint(rows[:1])
    store.trim(1, T0 + 5_000, 0, 100)
    assert store.read_batch(1, 0) is not None

    extent = reader.look(1, 0, ALL, 10).extent
    assert extent == Extent(2, 2, None, None, 0)
    assert reader.find(1, T0) == 2
    assert reader.time_of(1, 0) is None


def test_when_all_is_trimmed_the_offsets_go_on(store: Store) -> None:
    reader = store.journal_reader()
    writer = written(store, 3, 2)
    writer.checkpoint()
    store.trim(1, ALL, 0, 100)
    assert reader.look(1, 5, ALL, 10) == (Extent(5, 5, None, None, 0), [])
    writer.send(b"next", at=T0 + 9_000)
    assert reader.look(1, 5, ALL, 10).batches[0].base == 5


@pytest.mark.parametrize(
    ("at", "offset"), [(0, 0), (T0, 0), (T0 + 1, 2), (T0 + 2_000, 5), (T0 + 2_001, 6), (ALL, 6)]
)
def test_an_offset_is_found_by_time(store: Store, at: int, offset: int) -> None:
    reader = store.journal_reader()
    written(store, 2, 3, 1)
    assert reader.find(1, at) == offset


def test_of_batches_of_one_moment_the_first_is_found(store: Store) -> None:
    reader = store.journal_reader()
    writer = Writer(store)
    for at in (T0, T0 + 5, T0 + 5, T0 + 5, T0 + 9):
        writer.send(b"a", b"b", at=at)
    assert reader.find(1, T0 + 1) == reader.find(1, T0 + 5) == 2


def test_the_time_of_a_record_is_that_of_its_commit(store: Store) -> None:
    reader = store.journal_reader()
    written(store, 2, 3)
    assert [reader.time_of(1, offset) for offset in (0, 1, 2, 4)] == [
        *(T0, T0),
        *(T0 + 1_000, T0 + 1_000),
    ]
    assert reader.time_of(1, 5) is None


def test_fragments_are_kept_apart(store: Store) -> None:
    reader = store.journal_reader()
    written(store, 2)
    other = Writer(store, fragment=2)
    other.send(b"other", at=T0 + 7)
    assert reader.look(1, 0, ALL, 10).extent.next == 2
    assert [each.base for each in reader.look(2, 0, ALL, 10).batches] == [0]
    assert reader.find(1, T0 + 1) == 2

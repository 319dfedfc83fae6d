"""R-PIPE-02: reading the change feed beside the writer, in every store."""

from pathlib import Path

import apsw
import pytest

from postbus.errors import StoreFailed
from postbus.store import batch
from postbus.store.ports import BatchOutline, Extent, MessageStore
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer

ALL = 1 << 60


def written(store: MessageStore, *counts: int) -> Writer:
    """One batch of so many records each, a second apart."""
    writer = Writer(store)
    for index, count in enumerate(counts):
        writer.send(*[b"x" * 50] * count, at=T0 + index * 1_000)
    return writer


def test_a_fragment_that_was_never_used_has_an_empty_journal(store: MessageStore) -> None:
    reader = store.journal_reader()
    assert reader.look(7, 0, ALL, 10) == (Extent(0, 0, None, None, 0), [])
    assert reader.find(7, T0) == 0
    assert reader.time_of(7, 0) is None
    assert reader.read(7, 0, 100) == []
    assert reader.read_raw(7, 0, 100) == (0, b"")
    assert reader.read_part(7, 0, 0, 10) is None


def test_a_commit_is_seen_as_soon_as_it_is_made(store: MessageStore) -> None:
    reader = store.journal_reader()
    writer = written(store, 2, 3)
    extent, batches = reader.look(1, 0, ALL, 10)
    assert (extent.first, extent.next) == (0, 5)
    assert (extent.first_at, extent.last_at) == (T0, T0 + 1_000)
    assert extent.size == sum(each.size for each in batches)
    assert [each[:3] for each in batches] == [(0, 2, T0), (2, 3, T0 + 1_000)]

    writer.send(b"one more", at=T0 + 2_000)
    assert reader.look(1, 5, ALL, 10).batches[0][:3] == (5, 1, T0 + 2_000)


def test_batches_come_untouched(store: MessageStore) -> None:
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


def test_a_batch_is_read_in_parts(store: MessageStore) -> None:
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


def test_a_look_begins_with_the_batch_that_holds_the_offset(store: MessageStore) -> None:
    reader = store.journal_reader()
    written(store, 2, 3, 1)
    assert [each.base for each in reader.look(1, 3, ALL, 10).batches] == [2, 5]
    assert [each.base for each in reader.look(1, 5, ALL, 10).batches] == [5]


def test_a_look_ends_where_its_bytes_or_its_limit_do(store: MessageStore) -> None:
    reader = store.journal_reader()
    written(store, 1, 1, 1, 1)
    size = reader.look(1, 0, ALL, 10).batches[0].size
    assert len(reader.look(1, 0, 2 * size, 10).batches) == 2
    assert len(reader.look(1, 0, 2 * size - 1, 10).batches) == 1
    assert len(reader.look(1, 0, 1, 10).batches) == 1, "one, however large"
    assert len(reader.look(1, 0, ALL, 3).batches) == 3
    assert reader.look(1, 0, 0, 10).batches == []


@pytest.mark.parametrize("start", [-1, 4, 5, 99])
def test_outside_the_extent_there_is_nothing_to_read(store: MessageStore, start: int) -> None:
    reader = store.journal_reader()
    written(store, 1, 3)
    extent, batches = reader.look(1, start, ALL, 10)
    assert (extent.first, extent.next, batches) == (0, 4, [])


def test_what_is_trimmed_is_gone_from_the_feed_at_once(store: MessageStore) -> None:
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


def test_a_batch_that_only_a_live_body_holds_is_no_part_of_the_feed(store: MessageStore) -> None:
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


def test_when_all_is_trimmed_the_offsets_go_on(store: MessageStore) -> None:
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
def test_an_offset_is_found_by_time(store: MessageStore, at: int, offset: int) -> None:
    reader = store.journal_reader()
    written(store, 2, 3, 1)
    assert reader.find(1, at) == offset


def test_of_batches_of_one_moment_the_first_is_found(store: MessageStore) -> None:
    reader = store.journal_reader()
    writer = Writer(store)
    for at in (T0, T0 + 5, T0 + 5, T0 + 5, T0 + 9):
        writer.send(b"a", b"b", at=at)
    assert reader.find(1, T0 + 1) == reader.find(1, T0 + 5) == 2


def test_the_time_of_a_record_is_that_of_its_commit(store: MessageStore) -> None:
    reader = store.journal_reader()
    written(store, 2, 3)
    assert [reader.time_of(1, offset) for offset in (0, 1, 2, 4)] == [
        *(T0, T0),
        *(T0 + 1_000, T0 + 1_000),
    ]
    assert reader.time_of(1, 5) is None


def test_fragments_are_kept_apart(store: MessageStore) -> None:
    reader = store.journal_reader()
    written(store, 2)
    other = Writer(store, fragment=2)
    other.send(b"other", at=T0 + 7)
    assert reader.look(1, 0, ALL, 10).extent.next == 2
    assert [each.base for each in reader.look(2, 0, ALL, 10).batches] == [0]
    assert reader.find(1, T0 + 1) == 2


def test_a_reader_never_holds_the_log_back(tmp_path: Path) -> None:
    # given a store that moves its log into the file every 50 pages, and a reader that looks at
    # every commit
    store = SqliteStore(str(tmp_path / "store.db"), wal_pages_max=50)
    reader = store.journal_reader()
    writer = Writer(store)
    for _ in range(400):
        writer.send(b"x" * 20_000)
        extent, batches = reader.look(1, max(0, writer.head - 5), ALL, 10)
        assert extent.next == writer.head
        reader.read(1, batches[0].base, batches[-1].base)
    # then the log has not grown past what one round of it takes
    assert (tmp_path / "store.db-wal").stat().st_size < 200 * 8_192
    store.close()


def test_a_damaged_batch_is_refused_and_not_handed_out(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    reader = store.journal_reader()
    writer = Writer(store)
    writer.send(b"x" * 100)
    store._database.run("UPDATE journal SET data = zeroblob(length(data))")
    with pytest.raises(StoreFailed):
        reader.read(1, 0, 0)
    with pytest.raises(StoreFailed):
        reader.read_raw(1, 0, 0)
    with pytest.raises(StoreFailed):
        reader.read_part(1, 0, 50, 10)
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        "id = id + 1",
        "count = 2",
        "data = substr(data, 1, 20)",
        "data = substr(data, 1, length(data) - 1)",
        "data = CAST(data || x'00' AS BLOB)",
        "data = 7",
        "data = 'text'",
        "data = x''",
    ],
)
def test_raw_bytes_are_those_of_the_batch_that_was_written_there(
    tmp_path: Path, change: str
) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    reader = store.journal_reader()
    Writer(store).send(b"x" * 100)
    store._database.run(f"UPDATE journal SET {change}")
    with pytest.raises(StoreFailed):
        reader.read_raw(1, 0, 5)
    for position in (0, 10):
        with pytest.raises(StoreFailed):
            reader.read_part(1, 1 if change.startswith("id") else 0, position, 10)
    store.close()


def test_a_checksum_goes_out_with_the_bytes_that_it_does_not_fit(tmp_path: Path) -> None:
    """Whoever decodes them finds out, whatever happened to them, and wherever."""
    store = SqliteStore(str(tmp_path / "store.db"))
    reader = store.journal_reader()
    Writer(store).send(b"x" * 100)
    [stored] = reader.read(1, 0, 0)
    broken = stored.data[:-1] + b"y"
    store._database.run("UPDATE journal SET data = ?", (broken,))
    assert reader.read_raw(1, 0, 0) == (1, broken)
    with pytest.raises(batch.BatchCorrupt, match="checksum"):
        batch.unpack(broken)
    store.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    reader = store.journal_reader()
    written(store, 1)
    with pytest.raises(apsw.ReadOnlyError):
        reader._run("DELETE FROM journal")
    store.close()

"""R-PIPE-02: reading the change feed beside the writer, in every store."""

from pathlib import Path

import apsw
import pytest

from postbus.errors import StoreFailed
from postbus.store import batch
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import Writer

ALL = 1 << 60


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
    Writer(store).send(b"one")
    with pytest.raises(apsw.ReadOnlyError):
        reader._run("DELETE FROM journal")
    store.close()

"""What only a store in a file can show: a new start, the log, the space, the copy."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from postbus.store.ports.namespace_data import BackupFailed
from postbus.store.sqlite import retention
from postbus.store.sqlite import store as sqlite
from postbus.store.sqlite.store import SqliteStore
from tests.contract.disk import SYNC, disk, no_fault
from tests.contract.fragments import T0, Writer, body_of, change, dump

ALL = 1 << 60


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as made:
        yield made


def test_a_new_start_finds_everything_as_it_was(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        rows = writer.send(b"one", b"two")
        writer.checkpoint(rows, state=b"both")
        writer.send(b"three")
        epoch = writer.lease.epoch

    with closing(SqliteStore(path)) as store:
        lease = store.acquire(1, "broker-b", 0)
        assert (lease.head, lease.checkpoint, lease.state) == (3, 2, b"both")
        assert lease.epoch > epoch
        assert store.index.load_lane(1, 0, 0, 0, 10) == rows
        assert [b.base for b in store.read(1, lease.checkpoint, ALL)] == [2]


def test_a_store_that_was_opened_twice_is_written_by_the_last_to_take_over(path: str) -> None:
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second:
        late = Writer(first)
        late.send(b"one")
        taken = Writer(second)

        assert first.commit([late.part(b"late")[0]]) == set()
        taken.send(b"two")
        assert dump(first, 1).head == 2


def test_a_lease_holds_in_a_store_that_has_just_been_opened(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        writer.send(b"one")
    with closing(SqliteStore(path)) as store:
        assert store.commit([writer.part(b"two")[0]]) == {1}


def test_the_file_has_the_layout_that_cannot_be_changed_later(
    store: SqliteStore, path: str
) -> None:
    with closing(apsw.Connection(path)) as file:
        assert file.pragma("page_size") == 8192
        assert file.pragma("auto_vacuum") == 2
        assert file.pragma("journal_mode") == "wal"
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(path + "-wal").st_mode & 0o777 == 0o600


def test_every_commit_ends_with_a_sync_of_the_log(path: str) -> None:
    with disk(no_fault) as watched, closing(SqliteStore(path, vfs=watched.name)) as store:
        writer = Writer(store)
        for call in (
            lambda: writer.send(b"one"),
            lambda: writer.checkpoint(state=b"s"),
            lambda: store.probe(T0),
        ):
            watched.performed.clear()
            call()
            assert watched.performed[-1] == (SYNC, "store.db-wal")
            assert sum(operation.kind == SYNC for operation in watched.performed) == 1


def test_a_read_leaves_no_snapshot_behind(path: str) -> None:
    # given reads of every kind between commits
    with closing(SqliteStore(path, wal_pages_max=50)) as store:
        writer = Writer(store)
        rows = writer.send(*[b"body %d" % i for i in range(50)])
        writer.checkpoint([row._replace(wake_at=T0 + row.number) for row in rows])
        for i in range(200):
            writer.send(bytes(9_000))
            store.index.load_lane(1, 0, 0, 0, 2)
            store.index.load_due(1, 0, 0, T0 + 9, 2)
            store.index.next_due(1, 0, 0, 0)
            store.read(1, 0, 10)
            store.read_slice(1, i + 50, 0, 10)
            store.load_pinned(1, 10, 1.0, 1)
            store.trim(1, T0, ALL, 1)

        # then the log was begun anew all the time and never grew
        assert os.stat(path + "-wal").st_size < 100 * 8192


def test_a_log_larger_than_wanted_is_cut_back(path: str) -> None:
    with closing(SqliteStore(path, wal_pages_max=10)) as store:
        writer = Writer(store)
        # given somebody who reads the file for long while it is written
        reader = apsw.Connection(path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM fragment").fetchall()
        for _ in range(75):
            writer.send(bytes(1_000_000))
        assert os.stat(path + "-wal").st_size > 70 << 20

        # when he is gone
        reader.close()
        writer.send(b"moves the log into the file")
        writer.send(b"begins it anew")

        assert os.stat(path + "-wal").st_size <= 65 << 20


def test_space_that_was_let_go_is_given_back_in_slices(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "FREE_PAGES_KEPT", 10)
    monkeypatch.setattr(retention, "SHRINK_PAGES", 50)
    with closing(SqliteStore(path, wal_pages_max=1)) as store:
        keep = Writer(store, 2)
        writer = Writer(store)
        for _ in range(30):
            writer.send(bytes(100_000))
        keep.send(b"kept")
        full = os.stat(path).st_size
        writer.checkpoint()

        sizes = []
        for _ in range(30):
            store.trim(1, ALL, 0, 5)
            sizes.append(os.stat(path).st_size)

        assert sizes[-1] < full / 5
        assert max(a - b for a, b in zip([full, *sizes], sizes, strict=False)) <= 60 * 8192
        assert dump(store, 2).head == 1


def test_a_file_comes_back_to_its_retention_after_a_backlog_and_stays_there(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention and a fifth, whatever was there before: free pages count too."""
    monkeypatch.setattr(retention, "FREE_PAGES_KEPT", 32)
    bytes_max = 4 << 20
    with closing(SqliteStore(path, wal_pages_max=1)) as store:
        writer = Writer(store)
        for _ in range(200):
            writer.send(bytes(65_536))
        backlog = os.stat(path).st_size

        sizes = []
        for _ in range(90):
            writer.send(bytes(65_536))
            writer.checkpoint()
            while store.trim(1, 0, bytes_max, 256).more:
                pass
            sizes.append(os.stat(path).st_size)

        assert backlog > 3 * bytes_max
        assert max(sizes[50:]) <= bytes_max * 1.2


def test_a_trim_lets_go_of_so_many_bytes_at_a_time(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE_BYTES_MAX", 2_500)
    writer = Writer(store)
    for _ in range(6):
        writer.send(bytes(1_000))
    writer.checkpoint()

    assert store.trim(1, ALL, 0, 100)[::2] == (3, True)
    assert store.trim(1, ALL, 0, 100)[::2] == (3, False)

    for _ in range(6):
        writer.send(bytes(1_000))
    assert not store.drop(1, 100)
    assert store.drop(1, 100)


def test_what_was_pinned_before_a_new_start_is_trimmed_after_it(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        rows = [writer.send(b"body %d" % i)[0] for i in range(5)]
        writer.checkpoint(rows)
        store.trim(1, ALL, 0, 100)
        writer.checkpoint([], rows[:3])

    with closing(SqliteStore(path)) as store:
        assert store.tail(1) == 5
        assert store.trim(1, ALL, 0, 100).batches == 3
        assert store.tail(1) == 5


def test_the_bytes_of_the_journal_are_known_after_a_new_start(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        for _ in range(3):
            writer.send(bytes(1_000))
        size = len(store.read_batch(1, 0) or b"")

    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        for _ in range(3):
            writer.send(bytes(1_000))
        writer.checkpoint()
        store.trim(1, 0, 4 * size, 100)
        assert [b.base for b in store.read(1, 0, ALL)] == [2, 3, 4, 5]


def test_a_search_for_copy_forward_goes_on_where_the_last_one_stopped(store: SqliteStore) -> None:
    writer = Writer(store)
    pinned = [writer.send(*[bytes(100)] * 10)[3] for _ in range(6)]
    writer.checkpoint(pinned)

    offered = [store.load_pinned(1, writer.head, 0.5, 1) for _ in range(8)]

    # round and round, with one empty answer where the search is through
    assert [row for page in offered for row in page] == [*pinned, pinned[0]]


def test_a_search_for_copy_forward_looks_at_so_many_rows(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PINNED_ROWS_MAX", 20)
    writer = Writer(store)
    rows = [writer.send(*[bytes(100)] * 10) for _ in range(4)]
    writer.checkpoint([*rows[0], *rows[1], *rows[2], rows[3][0]])

    assert store.load_pinned(1, writer.head, 0.5, 100) == []
    assert store.load_pinned(1, writer.head, 0.5, 100) == [rows[3][0]]


def test_a_fragment_and_an_offset_beyond_the_row_id_are_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.acquire((1 << 23) - 1, "broker-a", 0)
    with pytest.raises(ValueError, match="no journal has room"):
        store.acquire(1 << 23, "broker-a", 0)

    monkeypatch.setattr(sqlite, "OFFSET_MAX", 2)
    writer = Writer(store)
    writer.send(b"one", b"two")
    with pytest.raises(ValueError, match="no offset left"):
        writer.send(b"three")


def test_a_copy_taken_while_in_use_opens_with_what_was_committed_meanwhile(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a store that takes several steps to copy
    monkeypatch.setattr("postbus.store.sqlite.files.BACKUP_PAGES", 7)
    writer = Writer(store)
    rows = [writer.send(b"body %d" % i * 2_000)[0] for i in range(30)]
    writer.checkpoint(rows)

    # when it goes on living between the steps: commits, checkpoints, trims, and space given back
    copied = tmp_path / "copy.db"
    steps = 0
    for _ in store.backup_steps(str(copied)):
        (row,) = writer.send(b"meanwhile %d" % steps)
        writer.checkpoint([row], rows[steps : steps + 1], b"step %d" % steps)
        store.trim(1, ALL, 0, 1)
        steps += 1
    assert steps > 5
    writer_head = writer.head
    now = dump(store, 1)

    # then the copy is the store as of the last step
    with closing(SqliteStore(str(copied))) as copy:
        assert dump(copy, 1) == now
        assert now.head == writer_head
        assert [body_of(copy, 1, row) for row in now.rows] == [
            body_of(store, 1, row) for row in now.rows
        ]
        Writer(copy).send(b"a life of its own")
    assert dump(store, 1) == now
    assert os.stat(copied).st_mode & 0o777 == 0o600


def test_a_copy_that_was_given_up_leaves_no_file(store: SqliteStore, tmp_path: Path) -> None:
    writer = Writer(store)
    for _ in range(10):
        writer.send(bytes(1_000_000))
    copied = tmp_path / "copy.db"

    steps = store.backup_steps(str(copied))
    next(steps)
    assert copied.exists()
    steps.close()  # type: ignore[attr-defined]

    assert not copied.exists()
    writer.send(b"and the store goes on")


def test_a_copy_does_not_replace_a_file(store: SqliteStore, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")

    with pytest.raises(BackupFailed, match="is there already"):
        list(store.backup_steps(str(taken)))
    assert taken.read_text() == "mine"


def test_a_copy_that_cannot_be_written_does_not_stop_the_store(
    store: SqliteStore, tmp_path: Path
) -> None:
    with pytest.raises(BackupFailed, match=r"copying store\.db"):
        list(store.backup_steps(str(tmp_path / "missing" / "copy.db")))

    Writer(store).send(b"unharmed")


def test_a_part_with_a_checkpoint_only_keeps_the_head_where_it_is(store: SqliteStore) -> None:
    a, b = Writer(store, 1), Writer(store, 2)
    a.send(b"one")

    parts = [a.part(checkpoint=change(1, state=b"a"))[0], b.part(b"two")[0]]

    assert store.commit(parts) == {1, 2}
    assert (dump(store, 1).head, dump(store, 1).state) == (1, b"a")
    assert dump(store, 2).head == 1

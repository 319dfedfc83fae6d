"""Power cuts, full disks and failed syncs, at every single write of a store's life."""

import errno
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull, StoreUnavailable
from postbus.store.ports.journal import Lease, Part
from postbus.store.sqlite.store import SqliteStore
from tests.contract.disk import (
    DELETE,
    SYNC,
    TRUNCATE,
    WRITE,
    Operation,
    PowerCut,
    at,
    disk,
    no_fault,
    sqlite_error,
)
from tests.contract.fragments import T0, Dump, Writer
from tests.contract.history import Life, as_seen, expected, seen, taken_over

ANY = frozenset({WRITE, SYNC, TRUNCATE, DELETE})
WRITES = frozenset({WRITE})
SYNCS = frozenset({SYNC})
WAL_PAGES = 20
"""Few, so that the log is moved into the file several times in the history."""

Make = Callable[[str, str], SqliteStore]
States = list[list[Dump]]


def make(path: str, vfs: str) -> SqliteStore:
    return SqliteStore(path, vfs=vfs, wal_pages_max=WAL_PAGES)


@pytest.fixture(scope="module")
def states() -> States:
    return expected()


def count(folder: Path, kinds: frozenset[str], with_close: bool = True) -> int:
    """Operations of these kinds in a life without faults."""
    folder.mkdir()
    with disk(no_fault) as counted:
        with closing(make(str(folder / "store.db"), counted.name)) as store:
            for step in Life(store).steps():
                step()
            living = len(counted.performed)
        performed = counted.performed if with_close else counted.performed[:living]
        return sum(operation.kind in kinds for operation in performed)


def integrity(path: str) -> list[tuple[object, ...]]:
    with closing(apsw.Connection(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall()


def assert_kept(folder: Path, done: int, states: States, ends: int = 2) -> None:
    """What was answered is there; of the step in progress there is all or nothing, or nothing
    where it was refused (`ends` is 1)."""
    after = folder / "after"
    # Without the shared index of the log, which is memory: so it is after a new start.
    shutil.copytree(folder, after, ignore=shutil.ignore_patterns("*-shm"))
    path = str(after / "store.db")
    with disk(no_fault) as sound, closing(SqliteStore(path, vfs=sound.name)) as store:
        life = Life(store)
        if life.steps().index(life.drop_the_other) == done:
            life.drop_the_other()
        assert taken_over(store) in states[done : done + ends], f"after {done} steps"
        Writer(store).send(b"life goes on")
        assert integrity(path) == [("ok",)]
    shutil.rmtree(folder)


def cut_at(point: int, tears: bool, folder: Path, states: States, make: Make = make) -> None:
    """Run until the power is cut, start again, and look."""
    folder.mkdir()
    done = 0
    with disk(at(point, PowerCut, ANY), tears) as broken:
        store: SqliteStore | None = None
        try:
            with suppress(PowerCut):
                store = make(str(folder / "store.db"), broken.name)
                for step in Life(store).steps():
                    step()
                    done += 1
                store.close()
            assert broken.is_dead, f"there is no operation {point}"
            assert_kept(folder, done, states)
        finally:
            with suppress(PowerCut, apsw.ConnectionClosedError):
                if store is not None:
                    store.close()


@pytest.mark.parametrize("tears", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("share", range(4))
def test_a_power_cut_at_any_write_loses_nothing_that_was_answered(
    tmp_path: Path, states: States, share: int, tears: bool
) -> None:
    points = count(tmp_path / "counted", ANY)
    assert points > 200
    for point in range(share, points, 4):
        cut_at(point, tears, tmp_path / f"cut-{point}", states)


class TwoTransactions(SqliteStore):
    """A planted fault: the checkpoint is not written together with its batch."""

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        for part in parts:
            super().commit([part._replace(checkpoint=None)])
        for part in parts:
            if part.checkpoint is not None:
                after = part._replace(base=part.base + part.count, count=0, batch=b"")
                super().commit([after])
        return frozenset(part.lease.fragment for part in parts)


def test_the_power_cuts_find_a_store_that_writes_a_commit_in_two_steps(
    tmp_path: Path, states: States
) -> None:
    def make_faulty(path: str, vfs: str) -> SqliteStore:
        return TwoTransactions(path, vfs=vfs, wal_pages_max=WAL_PAGES)

    def cut_everywhere() -> None:
        for point in range(count(tmp_path / "counted", ANY)):
            cut_at(point, False, tmp_path / f"cut-{point}", states, make_faulty)

    with pytest.raises(AssertionError, match=r"after \d+ steps"):
        cut_everywhere()


def test_a_full_disk_at_any_write_refuses_that_call_and_no_later_one(
    tmp_path: Path, states: States
) -> None:
    refusals: list[StoreUnavailable] = []
    for point in range(count(tmp_path / "counted", WRITES, with_close=False)):
        folder = tmp_path / f"full-{point}"
        folder.mkdir()
        path = str(folder / "store.db")
        with disk(at(point, sqlite_error(apsw.SQLITE_FULL), WRITES)) as full:
            try:
                store = make(path, full.name)
            except StoreUnavailable as refusal:
                refusals.append(refusal)
                store = make(path, full.name)
            life = Life(store)
            for done, step in enumerate(life.steps()):
                try:
                    step()
                except StoreUnavailable as refusal:
                    # then nothing of it is there, and once there is space it works
                    refusals.append(refusal)
                    if step != life.drop_the_other:
                        assert seen(store) == [as_seen(dump) for dump in states[done]]
                    step()
            assert taken_over(store) == states[-1]
            store.close()
        shutil.rmtree(folder)
    assert len(refusals) > 100
    assert {type(refusal) for refusal in refusals} == {StoreFull}


def test_a_failed_sync_stops_the_store_for_good_and_only_what_is_unknown_may_be_there(
    tmp_path: Path, states: States
) -> None:
    unknown = 0
    for point in range(count(tmp_path / "counted", SYNCS)):
        folder = tmp_path / f"sync-{point}"
        folder.mkdir()
        fault = at(point, sqlite_error(apsw.SQLITE_IOERR_FSYNC), SYNCS)
        with disk(fault) as failing:
            done = 0
            try:
                store = make(str(folder / "store.db"), failing.name)
            except (StoreFailed, OutcomeUnknown):
                assert_kept(folder, 0, states)
                continue
            life = Life(store)
            steps = life.steps()
            told: Exception | None = None
            try:
                for step in steps:
                    step()
                    done += 1
            except (StoreFailed, OutcomeUnknown) as error:
                told = error
                unknown += isinstance(error, OutcomeUnknown)
                assert_refuses_everything(store)
            with suppress(apsw.IOError):  # the last syncs are those of the closing store
                store.close()
            # A refusal says that nothing of it was stored. What drops in slices has done some.
            refused = isinstance(told, StoreFailed) and step != life.drop_the_other
            assert_kept(folder, done, states, ends=1 if refused else 2)
    assert unknown > 10, "most syncs are those of commits"


def assert_refuses_everything(store: SqliteStore) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.acquire(1, "broker-a", 0),
        lambda: store.commit([]),
        lambda: store.index.load_lane(1, 0, 0, 0, 1),
        lambda: store.index.load_due(1, 0, 0, 0, 1),
        lambda: store.index.next_due(1, 0, 0, 0),
        lambda: store.index.load_rows(1, []),
        lambda: store.load_pinned(1, 1, 1.0, 1),
        lambda: store.read(1, 0, 1),
        lambda: store.read_batch(1, 0),
        lambda: store.read_slice(1, 0, 0, 1),
        lambda: store.tail(1),
        lambda: store.trim(1, 0, 0, 1),
        lambda: store.drop(1, 1),
        lambda: store.release(Lease(1, 1, 0, 0, b"")),
        lambda: store.probe(T0),
        lambda: list(store.backup_steps("nowhere.db")),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match="is stopped"):
            call()


def test_a_failing_write_that_is_not_for_lack_of_space_stops_the_store(tmp_path: Path) -> None:
    armed = False

    def fault(operation: Operation) -> None:
        if armed and operation.kind == WRITE:
            raise apsw.exception_for(apsw.SQLITE_IOERR_WRITE)

    with disk(fault) as failing, closing(make(str(tmp_path / "s.db"), failing.name)) as store:
        writer = Writer(store)
        armed = True
        with pytest.raises(OutcomeUnknown, match="may have the write, or not"):
            writer.send(b"one")
        armed = False
        assert_refuses_everything(store)


def test_a_quota_is_a_full_disk_by_another_name(tmp_path: Path) -> None:
    armed = False

    def fault(operation: Operation) -> None:
        if armed and operation.kind == WRITE:
            raise apsw.exception_for(apsw.SQLITE_IOERR_WRITE)

    with disk(fault) as failing, closing(make(str(tmp_path / "s.db"), failing.name)) as store:
        failing.last_errno = errno.EDQUOT
        writer = Writer(store)
        armed = True
        with pytest.raises(StoreUnavailable) as refused:
            writer.send(b"one")
        assert not isinstance(refused.value, StoreFailed)
        armed = False
        writer.send(b"one")


def test_a_failed_read_stops_the_store(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    with closing(SqliteStore(path)) as store:
        Writer(store).send(bytes(100_000))

    def fault() -> None:
        raise apsw.exception_for(apsw.SQLITE_IOERR_READ)

    with disk(no_fault) as failing, closing(make(path, failing.name)) as store:
        failing.read_fault = fault
        with pytest.raises(StoreFailed):
            store.read(1, 0, 1 << 20)
        assert_refuses_everything(store)


def test_a_damaged_file_stops_the_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with closing(SqliteStore(str(path))) as store:
        writer = Writer(store)
        for _ in range(50):
            writer.send(bytes(3_000))
    # The schema is in the first page, the tables' own pages follow; the rest are batches.
    with path.open("r+b") as file:
        file.seek(8192 * 10)
        file.write(b"\xa5" * 8192 * 8)

    with closing(SqliteStore(str(path))) as store:
        with pytest.raises(StoreFailed):
            store.read(1, 0, 1 << 20)
        assert_refuses_everything(store)

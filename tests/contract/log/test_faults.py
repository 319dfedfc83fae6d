"""Full disks, failed writes and failed syncs, at every operation of a life, of the log and of its
index."""

import errno
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull, StoreUnavailable
from postbus.store.log.store import LogStore
from postbus.store.ports.journal import Lease
from tests.contract.disk import (
    DELETE,
    SYNC,
    TRUNCATE,
    WRITE,
    Fault,
    Operation,
    PowerCut,
    disk,
    no_fault,
)
from tests.contract.forgetting import CREATE
from tests.contract.fragments import T0, Dump, Writer
from tests.contract.history import Life, as_seen, expected, seen, taken_over
from tests.contract.log.stories import is_found, open_log
from tests.support.fault_files import ALLOCATE, RENAME

ANY = frozenset({WRITE, SYNC, TRUNCATE, DELETE, CREATE, ALLOCATE, RENAME})
SYNCS = frozenset({SYNC})
WRITES = frozenset({WRITE})
States = list[list[Dump]]


@pytest.fixture(scope="module")
def states() -> States:
    return expected()


def fails_at(count: int, number: int, wanted: Callable[[Operation], bool]) -> Fault:
    """The operation with so many wanted ones before it fails with this error."""
    left = count

    def fault(operation: Operation) -> None:
        nonlocal left
        if not wanted(operation):
            return
        left -= 1
        if left == -1:
            if operation.file.endswith(".pbl"):
                raise OSError(number, "planted")
            is_full = number == errno.ENOSPC
            failed_sync = operation.kind == SYNC
            code = apsw.SQLITE_FULL if is_full else apsw.SQLITE_IOERR_WRITE
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC if failed_sync else code)

    return fault


def count(folder: Path, wanted: Callable[[Operation], bool], with_close: bool = True) -> int:
    """Wanted operations in a life without faults."""
    folder.mkdir()
    with disk(no_fault) as counted:
        with closing(open_log(folder, counted.name)) as store:
            for step in Life(store).steps():
                step()
            living = len(counted.performed)
        performed = counted.performed if with_close else counted.performed[:living]
        return sum(map(wanted, performed))


def dumps_fit(found: list[Dump], states: States, done: int) -> bool:
    """As `is_found` has it, without epochs."""
    with_epochs = [[(0, dump) for dump in state] for state in states]
    return is_found([(0, dump) for dump in found], with_epochs, done)


def assert_kept(folder: Path, done: int, states: States, what: str) -> None:
    """A new start, on the files as they are."""
    after = folder / "after"
    shutil.copytree(folder, after, ignore=shutil.ignore_patterns("*-shm"))
    with disk(no_fault) as sound, closing(open_log(after, sound.name)) as store:
        life = Life(store)
        if life.steps().index(life.drop_the_other) == done:
            life.drop_the_other()
        assert dumps_fit(taken_over(store), states, done), f"{what}, after {done} steps"
        Writer(store).send(b"life goes on")
    shutil.rmtree(folder)


def live(store: LogStore) -> tuple[int, Exception | None]:
    """How many steps were done, and what ended them."""
    done = 0
    try:
        for step in Life(store).steps():
            step()
            done += 1
    except (StoreUnavailable, OutcomeUnknown) as error:
        return done, error
    return done, None


def close(store: LogStore) -> None:
    with suppress(PowerCut, apsw.Error):  # the last operations are those of the closing store
        store.close()


@pytest.mark.parametrize("tears", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("share", range(2))
def test_a_process_that_ends_at_any_operation_loses_nothing_that_was_answered(
    tmp_path: Path, states: States, share: int, tears: bool
) -> None:
    points = count(tmp_path / "counted", lambda operation: operation.kind in ANY)
    assert points > 200
    for point in range(share, points, 2):
        folder = tmp_path / f"cut-{point}"
        folder.mkdir()
        left = point

        def fault(operation: Operation) -> None:
            nonlocal left
            if operation.kind in ANY:
                left -= 1
                if left == -1:
                    raise PowerCut

        done = 0
        with disk(fault, tears) as broken:
            store: LogStore | None = None
            with suppress(PowerCut):
                store = open_log(folder, broken.name)
                for step in Life(store).steps():
                    step()
                    done += 1
                store.close()
            assert broken.is_dead
            assert_kept(folder, done, states, f"cut at {point}")
            if store is not None:
                close(store)


@pytest.mark.parametrize("kinds", [SYNCS, WRITES], ids=["sync", "write"])
def test_a_failed_write_or_sync_stops_the_store_and_only_what_is_unknown_may_be_there(
    tmp_path: Path, states: States, kinds: frozenset[str]
) -> None:
    def wanted(operation: Operation) -> bool:
        return operation.kind in kinds

    unknown = stopped = 0
    for point in range(count(tmp_path / "counted", wanted)):
        folder = tmp_path / f"failed-{point}"
        folder.mkdir()
        with disk(fails_at(point, errno.EIO, wanted)) as failing:
            try:
                store = open_log(folder, failing.name)
            except (StoreFailed, OutcomeUnknown):
                assert_kept(folder, 0, states, f"failed at {point}")
                continue
            done, told = live(store)
            if told is not None:
                assert isinstance(told, StoreFailed | OutcomeUnknown)
                unknown += isinstance(told, OutcomeUnknown)
                stopped += 1
                assert_refuses_everything(store)
            close(store)
            assert_kept(folder, done, states, f"failed at {point}")
    assert unknown > 10 and stopped > unknown / 2


def assert_refuses_everything(store: LogStore) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.acquire(1, "broker-a", 0),
        lambda: store.commit([]),
        lambda: store.begin([]),
        lambda: store.index.load_lane(1, 0, 0, 0, 1),
        lambda: store.load_pinned(1, 1, 1.0, 1),
        lambda: store.position(1),
        store.newest,
        lambda: store.read(1, 0, 1),
        lambda: store.read_batch(1, 0),
        lambda: store.read_slice(1, 0, 0, 1),
        lambda: store.tail(1),
        lambda: store.trim(1, 0, 0, 1),
        lambda: store.drop(1, 1),
        lambda: store.release(Lease(1, 1, 0, 0, b"")),
        lambda: store.probe(T0),
    ]
    for call in calls:
        with pytest.raises(StoreFailed, match="is stopped"):
            call()


def takes_room(operation: Operation) -> bool:
    """Frames are written where room was set aside, so a write of a segment takes none."""
    if operation.file.endswith(".pbl"):
        return operation.kind in (CREATE, ALLOCATE)
    return operation.kind == WRITE


def test_a_full_disk_at_any_operation_refuses_that_call_and_no_later_one(
    tmp_path: Path, states: States
) -> None:
    refused = unknown = 0
    for point in range(count(tmp_path / "counted", takes_room, with_close=False)):
        folder = tmp_path / f"full-{point}"
        folder.mkdir()
        with disk(fails_at(point, errno.ENOSPC, takes_room)) as full:
            try:
                store = open_log(folder, full.name)
            except StoreFull:
                refused += 1
                store = open_log(folder, full.name)
            life = Life(store)
            for done, step in enumerate(life.steps()):
                try:
                    step()
                except StoreFull:
                    # then nothing of it is there, and once there is space it works
                    refused += 1
                    if step != life.drop_the_other:
                        assert seen(store) == [as_seen(dump) for dump in states[done]]
                    step()
                except OutcomeUnknown:
                    # the records are there, and the checkpoint comes with the repetition
                    unknown += 1
                    step()
            assert taken_over(store) == states[-1]
            close(store)
            assert_kept(folder, len(states) - 1, states, f"full at {point}")
    assert refused > 20
    assert unknown, "records that are durable, and a checkpoint that found no room"


def test_a_frame_that_finds_no_room_where_nothing_could_be_set_aside_stops_the_store(
    tmp_path: Path, states: States
) -> None:
    """On a file system that allocates nothing ahead, as those that copy on write."""

    def fault_at(point: int) -> Fault:
        return fails_at(point, errno.ENOSPC, is_frame)

    def is_frame(operation: Operation) -> bool:
        return operation.kind == WRITE and operation.file.endswith(".pbl")

    stopped = 0
    for point in range(40):
        folder = tmp_path / f"frame-{point}"
        folder.mkdir()
        fault = fault_at(point)

        def both(operation: Operation, fault: Fault = fault) -> None:
            if operation.kind == ALLOCATE:
                raise OSError(errno.EOPNOTSUPP, "planted")
            fault(operation)

        with disk(both) as full:
            store = open_log(folder, full.name)
            done, told = live(store)
            stopped += isinstance(told, OutcomeUnknown)
            close(store)
            assert_kept(folder, done, states, f"no room for frame {point}")
    assert stopped > 10

"""A store on a full disk: what makes room gets through on the reserve, all else can be read."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from postbus.errors import StoreFailed, StoreFull
from postbus.store.ports.journal import Lease
from postbus.store.sqlite import reserve as reserves
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.folder import DataFolder
from postbus.store.sqlite.reserve import STEPS, Reserve
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer
from tests.contract.quota import QuotaDisk, quota_disk

SIZE = 8 << 20
RESERVE = 1 << 20
ALL = 1 << 60


@contextmanager
def opened(disk: QuotaDisk, folder: Path) -> Iterator[tuple[SqliteStore, Reserve]]:
    path = str(folder / "store.db")
    with closing(disk.reserve(RESERVE)) as reserve:
        store = SqliteStore(path, vfs=disk.name, wal_pages_max=20, reserve=reserve)
        try:
            yield store, reserve
        finally:
            with suppress(apsw.FullError):  # the log stays where it is, for the next start
                store.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[QuotaDisk]:
    with quota_disk(tmp_path, SIZE) as disk:
        yield disk


def fill(store: SqliteStore, writer: Writer) -> list[list[object]]:
    """As senders do that are refused when there is no room left for them."""
    sent: list[list[object]] = []
    while store.has_room:
        sent.append([*writer.send(bytes(20_000))])
        store.look_for_room()
    return sent


def send_on(disk: QuotaDisk, writer: Writer, size: int) -> None:
    """While somebody else takes whatever is given up of the reserve."""
    for _ in range(1_000):
        disk.fill()
        writer.send(bytes(size))


def test_what_fills_the_disk_can_be_taken_out_again_and_then_there_is_room(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        assert store.look_for_room() and reserve.held == RESERVE
        writer = Writer(store)
        for _ in range(3):
            sent = fill(store, writer)
            assert len(sent) > 50, "most of the disk is for messages"
            assert full.refused == 0, "it is noticed before a write fails"
            # Settled, without room for anything but by the reserve; then trimmed, in slices.
            for _ in sent:
                writer.send(b"settled")
            writer.checkpoint()
            while store.trim(1, ALL, 0, 16).more:
                pass
            store.trim(1, ALL, 0, 16)
            assert store.look_for_room(), "the file was made smaller, and the reserve whole again"
            assert reserve.held == RESERVE


def test_a_write_that_finds_no_room_is_tried_again_with_a_step_of_the_reserve(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        writer = Writer(store)
        writer.send(b"before")
        full.fill()
        writer.send(bytes(100_000))
        assert full.refused
        assert reserve.held < RESERVE and not store.has_room
        other = Writer(store, 2)
        other.send(b"in a fragment that is taken over on a full disk")
        store.probe(T0)
        full.clean()
        assert store.look_for_room(), "by itself"


def test_what_is_stored_can_be_read_where_nothing_is_left_of_the_reserve(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        writer = Writer(store)
        writer.send(b"one", b"two")
        # Small ones, too: the log has room for these where a large one did not fit.
        for size in (RESERVE // STEPS, 10):
            with pytest.raises(StoreFull):
                send_on(full, writer, size)
        assert reserve.held == 0
        # Neither this broker nor the next needs to write to give out what is there.
        lease = store.acquire(1, "broker-a", 0)
        assert lease.epoch == writer.lease.epoch, "there was no room for another"
        assert len(store.read(1, 0, ALL)) >= 1
        with pytest.raises(StoreFull):
            store.acquire(7, "broker-a", 0)  # one that nobody has ever used

    with opened(full, tmp_path) as (store, _):
        assert not store.has_room
        assert store.acquire(1, "broker-b", 0).head == lease.head
        full.clean()
        assert store.look_for_room()
        assert store.acquire(1, "broker-b", 0).epoch > lease.epoch


def test_a_dropped_fragment_makes_room_on_a_full_disk(full: QuotaDisk, tmp_path: Path) -> None:
    with opened(full, tmp_path) as (store, _):
        fill(store, Writer(store))
        full.fill()
        while not store.drop(1, 50):
            pass
        full.clean()
        for _ in range(3):
            store.trim(2, ALL, 0, 1)
        store.drop(1, 50)
        assert store.look_for_room()


def test_a_reserve_is_really_there_and_no_larger_than_fits(tmp_path: Path) -> None:
    left = 10 << 20
    with closing(Reserve(tmp_path / "reserve", 1 << 20, lambda: left)) as reserve:
        found = (tmp_path / "reserve").stat()
        assert found.st_size == reserve.held == 1 << 20
        assert found.st_blocks * 512 >= 1 << 20, "no holes"
        left = 0
        while reserve.give_up():
            pass
        assert (reserve.held, reserve.has_room) == (0, False)
        left = reserve.step * 2
        assert not reserve.look(), "what is free is for writes that are under way"
        assert reserve.held == 0
        left = reserve.step * 3
        assert not reserve.look() and reserve.held == reserve.step


def test_a_disk_that_goes_up_and_down_at_its_edge_does_not_flap(tmp_path: Path) -> None:
    left = 10 << 20
    with closing(Reserve(tmp_path / "reserve", 1 << 20, lambda: left)) as reserve:
        left = reserve.step
        assert reserve.look()
        left = reserve.step - 1
        assert not reserve.look()
        left = reserve.step + 1
        assert not reserve.look(), "not at once"
        left = 10 << 20
        assert reserve.look()


def test_what_was_committed_is_answered_whatever_the_look_for_room_finds(
    full: QuotaDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Database) -> None:
        raise StoreFailed("a sync failed, while the log was moved")

    with opened(full, tmp_path) as (store, _):
        writer = Writer(store)
        monkeypatch.setattr(Database, "move_log", broken)
        monkeypatch.setattr(Reserve, "is_pledged", True)
        monkeypatch.setattr(reserves, "LOOK_BYTES", 1)
        writer.send(b"durable")
        found = store.position(1)
        assert found is not None and found.head == 1


def test_a_reserve_that_a_copy_has_made_holes_of_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    with path.open("wb") as sparse:
        sparse.truncate(RESERVE)  # as `cp --sparse` or `rsync --sparse` leave it
    assert path.stat().st_blocks == 0
    with closing(Reserve(path, RESERVE, lambda: SIZE)) as reserve:
        assert reserve.held == RESERVE
        assert path.stat().st_blocks * 512 >= RESERVE


def test_a_reserve_is_written_where_nothing_can_be_allocated_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    path = tmp_path / "reserve"
    with closing(Reserve(path, RESERVE, lambda: SIZE)) as reserve:
        assert (reserve.held, reserve.has_room) == (RESERVE, True)
        assert path.stat().st_blocks * 512 >= RESERVE
        reserve.give_up()
        assert path.stat().st_size == reserve.held == RESERVE - reserve.step
        assert reserve.look() and reserve.held == RESERVE


def test_a_file_system_that_does_not_know_its_size_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = os.statvfs(tmp_path)
    unknown = SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=known.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda _: unknown)
    with closing(DataFolder(tmp_path / "data", T0, reserve_bytes=RESERVE)) as folder:
        store = folder.stores[0]
        assert store.look_for_room()
        Writer(store).send(b"taken")
        assert store.look_for_room()


@pytest.mark.parametrize(
    "call",
    [
        lambda store, lease: store.release(lease),
        lambda store, lease: store.trim(1, ALL, 0, 16),
        lambda store, lease: store.drop(1, 100),
        lambda store, lease: store.probe(T0),
        lambda store, lease: store.acquire(2, "broker-b", 0),
    ],
    ids=["release", "trim", "drop", "probe", "acquire"],
)
def test_all_that_makes_room_has_the_reserve_where_a_quota_does_not_show(
    full: QuotaDisk, tmp_path: Path, call: Callable[[SqliteStore, Lease], object]
) -> None:
    """Of a user's quota a file system says nothing: only a write that fails does."""
    with closing(Reserve(tmp_path / "reserve", RESERVE, lambda: SIZE)) as reserve:
        store = SqliteStore(str(tmp_path / "store.db"), vfs=full.name, reserve=reserve)
        try:
            writer = Writer(store)
            for _ in range(20):
                writer.send(bytes(20_000))
            writer.checkpoint()
            full.fill()
            call(store, writer.lease)
            assert full.refused and reserve.held < RESERVE
        finally:
            full.clean()
            store.close()


def test_what_the_logs_have_yet_to_move_counts_as_taken(tmp_path: Path) -> None:
    with closing(Reserve(tmp_path / "reserve", RESERVE, lambda: SIZE)) as reserve:
        reserve.pledge("store-0.db", SIZE - reserve.step)
        assert reserve.look()
        reserve.pledge("store-1.db", 1)
        assert not reserve.look()
        reserve.pledge("store-0.db", 0)
        assert reserve.look()

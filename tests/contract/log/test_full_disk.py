"""A store with a commit log on a full disk: what makes room gets through on the reserve, all else
can be read."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from postbus.errors import StoreFull
from postbus.store.log.store import LogStore
from postbus.store.ports.journal import Lease
from postbus.store.sqlite.reserve import Reserve
from tests.contract.fragments import T0, Writer
from tests.contract.quota import QuotaDisk, QuotaFiles, quota_disk
from tests.support.fault_files import InlineWriter

SIZE = 8 << 20
RESERVE = 1 << 20
SEGMENT = 512 << 10
ALL = 1 << 60


@contextmanager
def opened(
    disk: QuotaDisk, folder: Path, free: Callable[[], int] | None = None
) -> Iterator[tuple[LogStore, Reserve]]:
    with closing(Reserve(folder / "reserve", RESERVE, free or disk.free)) as reserve:
        store = LogStore(
            folder,
            files=QuotaFiles(folder, disk),
            vfs=disk.name,
            wal_pages_max=20,
            reserve=reserve,
            segment_bytes=SEGMENT,
            make_writer=InlineWriter,
            spares_on_thread=False,
        )
        try:
            yield store, reserve
        finally:
            with suppress(apsw.FullError):  # the log of the index stays where it is
                store.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[QuotaDisk]:
    with quota_disk(tmp_path, SIZE) as disk:
        yield disk


def fill(store: LogStore, writer: Writer) -> int:
    """As senders do that are refused when there is no room left for them."""
    sent = 0
    while store.has_room:
        writer.send(bytes(20_000))
        store.look_for_room()
        sent += 1
    return sent


def test_what_fills_the_disk_can_be_taken_out_again_and_then_there_is_room(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        assert store.look_for_room() and reserve.held == RESERVE
        writer = Writer(store)
        for _ in range(3):
            sent = fill(store, writer)
            assert sent > 150, "most of the disk is for messages"
            assert full.refused == 0, "it is noticed before a write fails"
            for _ in range(sent):
                writer.send(b"settled")
            writer.checkpoint()
            while store.trim(1, ALL, 0, 16).more:
                pass
            store.trim(1, ALL, 0, 16)
            assert store.look_for_room(), "segments are gone, and the reserve whole again"
            assert reserve.held == RESERVE


def test_a_commit_that_finds_no_room_is_tried_again_with_a_step_of_the_reserve(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        writer = Writer(store)
        writer.send(b"before")
        full.fill()
        for _ in range(20):  # more than the current segment has
            writer.send(bytes(40_000))
        assert full.refused
        assert reserve.held < RESERVE and not store.has_room
        other = Writer(store, 2)
        other.send(b"in a fragment that is taken over on a full disk")
        store.probe(T0)
        full.clean()
        assert store.look_for_room(), "by itself"


def send_on(disk: QuotaDisk, writer: Writer, size: int) -> None:
    """While somebody else takes whatever is given up of the reserve."""
    for _ in range(1_000):
        disk.fill()
        writer.send(bytes(size))


def test_what_is_stored_can_be_read_where_nothing_is_left_of_the_reserve(
    full: QuotaDisk, tmp_path: Path
) -> None:
    with opened(full, tmp_path) as (store, reserve):
        writer = Writer(store)
        writer.send(b"one", b"two")
        for size in (200_000, 10_000):
            with pytest.raises(StoreFull):
                send_on(full, writer, size)
        assert reserve.held == 0 and store.is_spent
        head = writer.head
        lease = store.acquire(1, "broker-a", 0)
        assert lease.head == head
        assert len(store.read(1, 0, ALL)) >= 1

    with opened(full, tmp_path) as (store, _):
        assert not store.has_room
        assert store.acquire(1, "broker-b", 0).head == head
        assert store.read(1, 0, ALL)[0].base == 0
        full.clean()
        assert store.look_for_room()
        epoch = store.acquire(1, "broker-b", 0).epoch
        assert epoch > lease.epoch
        Writer(store).send(b"goes on")


def test_a_dropped_fragment_makes_room_on_a_full_disk(full: QuotaDisk, tmp_path: Path) -> None:
    with opened(full, tmp_path) as (store, _):
        fill(store, Writer(store))
        full.fill()
        while not store.drop(1, 50):
            pass
        full.clean()
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
    full: QuotaDisk, tmp_path: Path, call: Callable[[LogStore, Lease], object]
) -> None:
    with opened(full, tmp_path, free=lambda: SIZE) as (store, reserve):
        writer = Writer(store)
        for _ in range(20):
            writer.send(bytes(20_000))
        writer.checkpoint()
        for _ in range(30):  # until the log of the index has to grow
            full.fill()
            call(store, writer.lease)
            if full.refused and reserve.held < RESERVE:
                break
            writer = Writer(store)
        assert full.refused and reserve.held < RESERVE
        full.clean()

"""What is particular to a store with a commit log: two halves of a commit, segments that fill, are
sealed and go, readers beside them, and a start that finds it all."""

from __future__ import annotations

import errno
import select
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull
from postbus.store.log.commit_log import CommitLog
from postbus.store.log.segment_writer import WriteFailed
from postbus.store.log.segments import Segments
from postbus.store.log.store import LogStore
from postbus.store.ports.journal import FragmentPosition, Part
from tests.contract.disk import disk, no_fault
from tests.contract.fragments import T0, Writer, body_of, change, dump
from tests.support.fault_files import FaultFiles, InlineWriter

ALL = 1 << 60
SEGMENT = 16_384


def open_store(folder: Path, **options: Any) -> LogStore:
    options.setdefault("segment_bytes", SEGMENT)
    options.setdefault("make_writer", InlineWriter)
    return LogStore(folder, spares_on_thread=False, **options)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with closing(open_store(tmp_path)) as made:
        yield made


def segments(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("log-")) for path in folder.glob("log-*.pbl"))


def spares(folder: Path) -> int:
    return len(list(folder.glob("spare-*.pbl")))


def assert_unseen_until_durable(store: LogStore) -> None:
    """Invariant 6: what is not durable is shown to nobody."""
    reader = store.journal_reader()
    writer = Writer(store)
    writer.send(b"before")
    begun = store.begin([writer.part(b"under way")[0]])
    assert reader.look(1, 0, ALL, 10).extent.next == 1
    assert reader.read(1, 1, 1) == [] and reader.time_of(1, 1) is None
    assert [each.base for each in store.read(1, 0, ALL)] == [0]
    assert store.read_batch(1, 1) is None
    assert store.position(1) == FragmentPosition(1, 0, b"")
    assert store.finish(begun) == {1}
    assert reader.look(1, 0, ALL, 10).extent.next == 2
    assert [each.base for each in store.read(1, 0, ALL)] == [0, 1]


def test_a_commit_under_way_is_shown_to_nobody(store: LogStore) -> None:
    assert_unseen_until_durable(store)


def test_a_location_that_is_published_early_is_found_out(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = CommitLog.append

    def hasty(self: CommitLog, parts: list[Part]) -> int:
        sequence = append(self, parts)
        self.publish(sequence)
        return sequence

    monkeypatch.setattr(CommitLog, "append", hasty)
    with pytest.raises(AssertionError):
        assert_unseen_until_durable(store)


def test_commits_begin_before_those_before_them_are_durable(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        one, two = Writer(store, 1), Writer(store, 2)
        begun = []
        for index in range(20):
            parts = [one.part(bytes(3_000))[0], two.part(b"%d" % index)[0]]
            begun.append(store.begin(parts))
            one.head += 1
            two.head += 1
        assert [each.sequence for each in begun] == list(range(1, 21))
        assert all(store.finish(each) == {1, 2} for each in begun)
        before = dump(store, 1), dump(store, 2)
        assert len(segments(tmp_path)) > 3
    with closing(open_store(tmp_path)) as store:
        assert (dump(store, 1), dump(store, 2)) == before


def test_a_part_that_is_repeated_while_it_is_under_way_is_not_written_twice(
    store: LogStore,
) -> None:
    writer = Writer(store)
    part = writer.part(b"one")[0]
    first = store.begin([part])
    again = store.begin([part])
    assert store.finish(again) == store.finish(first) == {1}
    assert len(store.read(1, 0, ALL)) == 1


def test_a_lease_that_ends_while_its_commit_is_under_way_has_it_in_its_head(
    store: LogStore,
) -> None:
    writer = Writer(store)
    begun = store.begin([writer.part(b"one")[0]])
    assert store.acquire(1, "broker-b", 0).head == 1
    assert store.finish(begun) == {1}
    assert store.begin([writer.part(b"late")[0]]).fragments == set()


def test_a_failed_frame_takes_all_behind_it_along(tmp_path: Path) -> None:
    class Failing(InlineWriter):
        def wait(self, sequence: int) -> None:
            raise WriteFailed("sync", errno.EIO)

    with closing(open_store(tmp_path, make_writer=Failing)) as store:
        writer = Writer(store)
        begun = [store.begin([writer.part(b"one")[0]])]
        writer.head += 1
        begun.append(store.begin([writer.part(b"two")[0]]))
        for each in begun:
            with pytest.raises(OutcomeUnknown, match="sync of the log failed: Input/output error"):
                store.finish(each)
        with pytest.raises(StoreFailed, match="is stopped"):
            store.begin([])


def test_a_checkpoint_is_not_written_once_its_fragment_was_taken_over_or_dropped(
    store: LogStore,
) -> None:
    one, two = Writer(store, 1), Writer(store, 2)
    begun = []
    for writer in (one, two):
        part, rows = writer.part(b"body")
        begun.append(store.begin([part._replace(checkpoint=change(1, rows, state=b"late"))]))
    taken = store.acquire(1, "broker-b", 0)
    assert (taken.head, taken.checkpoint) == (1, 0)
    while not store.drop(2, 10):
        pass
    for each in begun:
        store.finish(each)
    assert store.position(1) == FragmentPosition(1, 0, b"")
    assert store.index.load_lane(1, 0, 0, 0, 9) == [] == store.index.load_lane(2, 0, 0, 0, 9)
    assert store.position(2) is None


def test_no_checkpoint_is_written_on_top_of_one_that_was_refused(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says what changed since the one before it."""
    writer = Writer(store)
    begun = []
    for name in (b"one", b"two"):
        part, rows = writer.part(name)
        writer.head += 1
        checkpoint = change(writer.head, rows, state=name)
        begun.append((part, store.begin([part._replace(checkpoint=checkpoint)]), checkpoint))
    with monkeypatch.context() as full:
        full.setattr(store.index, "apply", _no_room)
        with pytest.raises(OutcomeUnknown, match="but not the checkpoint"):
            store.finish(begun[0][1])
    with pytest.raises(OutcomeUnknown, match="an earlier checkpoint was refused"):
        store.finish(begun[1][1])
    assert store.position(1) == FragmentPosition(2, 0, b"")
    taken = Writer(store)
    taken.checkpoint(state=b"replayed")
    assert store.position(1) == FragmentPosition(2, 2, b"replayed")


def _no_room(*_: object) -> None:
    raise StoreFull("planted")


def fill(writer: Writer, count: int, size: int = 3_000) -> list[Any]:
    return [writer.send(bytes([i % 256]) * size, at=T0 + i)[0] for i in range(count)]


def test_segments_go_when_nothing_in_them_can_be_read_and_are_used_again(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        most = 0
        for _ in range(6):
            rows = fill(writer, 20)
            writer.checkpoint(rows)
            writer.checkpoint([], rows)
            while store.trim(1, ALL, 0, 7).more:
                pass
            most = max(most, len(segments(tmp_path)) + spares(tmp_path))
            assert len(segments(tmp_path)) <= 2
        assert most <= 5, "what is let go is used again, and not kept without bound"
        assert max(segments(tmp_path)) > 20
    with closing(open_store(tmp_path)) as store:
        assert store.acquire(1, "broker-b", 0).head == 120
        assert store.read(1, 0, ALL) == []


def test_a_live_body_keeps_its_segment_and_copy_forward_finds_it(tmp_path: Path) -> None:
    """However much of its batch is alive: the segment goes as a whole or not at all."""
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        live = writer.send(b"alive")
        writer.checkpoint([*live, *fill(writer, 20)])
        writer.checkpoint([], list(store.index.load_lane(1, 0, 0, 1, 100)))
        store.trim(1, ALL, 0, 1_000)
        assert segments(tmp_path)[0] == 1 and len(segments(tmp_path)) <= 3
        found = store.load_pinned(1, store.tail(1), 0.25, 10)
        assert found == live
        [copy] = writer.send(b"alive")
        writer.checkpoint([copy._replace(number=live[0].number)])
        assert store.trim(1, ALL, 0, 1_000).batches == 1
        assert segments(tmp_path)[0] > 1
        assert body_of(store, 1, copy) == b"alive"


def test_a_segment_stays_while_somebody_reads_it(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        rows = fill(writer, 12)
        writer.checkpoint([], rows)
        [place] = [store._locations.find(1, 0)]
        assert place is not None
        with store._segments.reading(place.segment):
            store.trim(1, ALL, 0, 1_000)
            assert place.segment in segments(tmp_path)
        fill(writer, 1)
        writer.checkpoint()
        store.trim(1, ALL, 0, 1_000)
        assert place.segment not in segments(tmp_path)


def test_sealed_segments_are_read_by_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(tmp_path)) as store:
        writers = [Writer(store, fragment) for fragment in (1, 2, 3)]
        for index in range(30):
            for writer in writers:
                writer.send(b"%d" % index * 100, at=T0 + index)
        before = [dump(store, fragment) for fragment in (1, 2, 3)]
    read: list[int] = []
    whole = Segments.read

    def counted(self: Segments, number: int, position: int, size: int) -> bytes:
        read.append(number)
        return whole(self, number, position, size)

    monkeypatch.setattr(Segments, "read", counted)
    with closing(open_store(tmp_path)) as store:
        per_sealed = [read.count(number) for number in segments(tmp_path)[:-1]]
        assert set(per_sealed) == {2}, "the head of the directory and its summaries"
        assert [dump(store, fragment) for fragment in (1, 2, 3)] == before
        reader = store.journal_reader()
        assert reader.find(2, T0 + 17) == 17
        assert reader.time_of(3, 29) == T0 + 29


def damage(folder: Path, number: int, position: int) -> None:
    path = folder / f"log-{number:010}.pbl"
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def test_a_damaged_directory_is_made_anew_from_the_frames(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        fill(writer, 12)
        before = dump(store, 1)
        end = store._segments.by_number[1].end
    damage(tmp_path, 1, end + 20)
    for _ in range(2):
        with closing(open_store(tmp_path)) as store:
            assert dump(store, 1) == before
    damage(tmp_path, 1, end + 20)
    damage(tmp_path, 1, 5_000)
    with pytest.raises(StoreFailed, match="neither its directory nor all of its frames"):
        open_store(tmp_path)


def test_a_damaged_block_of_a_directory_is_made_anew_when_it_is_read(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writers = [Writer(store, fragment) for fragment in (1, 2)]
        for writer in writers:
            fill(writer, 3, size=1_000)
        fill(writers[0], 9)
        before = dump(store, 1), dump(store, 2)
        block = store._locations.fragments[2].runs[0].block_position
    assert block, "the segment is sealed"
    damage(tmp_path, 1, block + 5)
    with closing(open_store(tmp_path)) as store:
        assert store.journal_reader().look(2, 0, ALL, 10).extent.next == 3
        assert (dump(store, 1), dump(store, 2)) == before
    damage(tmp_path, 1, 5_000)
    with (
        closing(open_store(tmp_path)) as store,
        pytest.raises(StoreFailed, match="neither its directory nor all of its frames"),
    ):
        store.read(2, 0, ALL)


def test_a_damaged_batch_is_found_when_it_is_read_and_named(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        fill(Writer(store), 12)
    damage(tmp_path, 1, 5_000)
    with closing(open_store(tmp_path)) as store:
        reader = store.journal_reader()
        with pytest.raises(StoreFailed, match="the batch at 0 of fragment 1"):
            reader.read(1, 0, 0)
        with pytest.raises(StoreFailed, match="the batch at 0 of fragment 1"):
            store.read_batch(1, 0)
        with pytest.raises(StoreFailed, match="is stopped"):
            store.position(1)


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_segment_that_is_missing_is_named(tmp_path: Path, gone: int) -> None:
    with closing(open_store(tmp_path)) as store:
        rows = fill(Writer(store), 16)
        writer = Writer(store)
        writer.checkpoint(rows)
    (tmp_path / f"log-{gone:010}.pbl").unlink()
    with pytest.raises(StoreFailed, match="the journal of fragment 1 lacks offsets"):
        open_store(tmp_path)


def test_a_pinned_batch_whose_segment_is_missing_is_damage(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        rows = fill(writer, 16)
        writer.checkpoint(rows)
        store.trim(1, ALL, 0, 1_000)
    (tmp_path / "log-0000000002.pbl").unlink()
    with pytest.raises(StoreFailed, match="segment 2 is missing, and live bodies with it"):
        open_store(tmp_path)


def test_a_log_that_is_missing_is_damage(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        Writer(store)
    for path in tmp_path.glob("*.pbl"):
        path.unlink()
    with pytest.raises(StoreFailed, match="the log is missing"):
        open_store(tmp_path)


def test_a_fragment_of_a_dropped_name_begins_anew_after_a_start(tmp_path: Path) -> None:
    """Its old batches may lie in segments that are there still."""
    with closing(open_store(tmp_path)) as store:
        other = Writer(store, 2)
        for size in (10, 9_000, 9_000, 10):
            Writer(store, 1).send(bytes(size))
            other.send(b"kept")
        while not store.drop(1, 2):
            pass
        Writer(store, 1).send(b"anew")
    for _ in range(2):
        with closing(open_store(tmp_path)) as store:
            kept = dump(store, 1)
            assert (kept.head, len(kept.batches)) == (1, 1)
            assert b"anew" in kept.batches[0].data
            assert dump(store, 2).head == 4


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_a_write_that_takes_fewer_bytes_goes_on(tmp_path: Path, at_once: int) -> None:
    with disk(no_fault) as sound:
        files = FaultFiles(tmp_path, sound, written_at_once=at_once)
        with closing(open_store(tmp_path, files=files, segment_bytes=8_192)) as store:
            writer = Writer(store)
            rows = writer.send(b"some", b"bodies") + writer.send(b"more")
            assert [body_of(store, 1, row) for row in rows] == [b"some", b"bodies", b"more"]
    with closing(open_store(tmp_path)) as store:
        assert dump(store, 1).head == 3


def test_a_commit_larger_than_a_segment_has_a_segment_of_its_own(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        writer = Writer(store)
        [row] = writer.send(bytes(range(256)) * 400)
        writer.send(b"small")
        assert body_of(store, 1, row) == bytes(range(256)) * 400
    with closing(open_store(tmp_path)) as store:
        assert body_of(store, 1, row) == bytes(range(256)) * 400
        assert store.journal_reader().look(1, 0, ALL, 9).extent.next == 2


def test_many_starts_leave_no_files_behind(tmp_path: Path) -> None:
    for _ in range(10):
        with closing(open_store(tmp_path)) as store:
            assert store.probe(T0) is None
    assert len(list(tmp_path.glob("*.pbl"))) <= 6
    for _ in range(10):
        with closing(open_store(tmp_path)) as store:
            writer = Writer(store)
            writer.send(b"one")
            writer.send(checkpoint=change(writer.head))
            store.trim(1, ALL, 0, 100)
    assert len(list(tmp_path.glob("*.pbl"))) <= 6


def test_where_nothing_can_be_set_aside_segments_grow(tmp_path: Path) -> None:
    def refuse(operation: Any) -> None:
        if operation.kind == "allocate":
            raise OSError(errno.EOPNOTSUPP, "planted")

    with disk(refuse) as growing:
        files = FaultFiles(tmp_path, growing)
        with closing(open_store(tmp_path, files=files)) as store:
            assert len(segments(tmp_path)) == 1
            assert (tmp_path / "log-0000000001.pbl").stat().st_size == 4096
            fill(Writer(store), 12)
            before = dump(store, 1)
            assert len(segments(tmp_path)) > 2 and spares(tmp_path) == 0
    with closing(open_store(tmp_path)) as store:
        assert dump(store, 1) == before


def test_a_loop_is_told_when_a_commit_is_durable(tmp_path: Path) -> None:
    with closing(LogStore(tmp_path, segment_bytes=1 << 20)) as store:
        reader = store.journal_reader()
        writer = Writer(store)
        begun = []
        for index in range(20):
            checkpoint = change(index, state=b"%d" % index) if index % 7 == 0 else None
            begun.append(store.begin([writer.part(b"body", checkpoint=checkpoint)[0]]))
            writer.head += 1
        durable = 0
        while durable < begun[-1].sequence:
            readable, _, _ = select.select([store.fileno()], [], [], 60)
            assert readable, "nothing came"
            durable = store.collect()
            assert reader.look(1, 0, ALL, 100).extent.next == durable
        assert all(store.finish(each) == {1} for each in begun)
        assert store.position(1) == FragmentPosition(20, 14, b"14")


def test_a_loop_is_told_of_a_failure(tmp_path: Path) -> None:
    class Failing(InlineWriter):
        def collect(self) -> int:
            raise WriteFailed("write", errno.EIO)

    with closing(open_store(tmp_path, make_writer=Failing)) as store:
        with pytest.raises(OutcomeUnknown, match="write of the log failed: Input/output error"):
            store.collect()
        with pytest.raises(StoreFailed, match="is stopped"):
            store.begin([])


def test_threads_for_frames_and_spares(tmp_path: Path) -> None:
    """As a server would open it: nothing here is done in a line."""
    with closing(LogStore(tmp_path, segment_bytes=1 << 20)) as store:
        reader = store.journal_reader()
        writer = Writer(store)
        begun = []
        for _ in range(300):
            begun.append(store.begin([writer.part(bytes(20_000))[0]]))
            writer.head += 1
        assert all(store.finish(each) == {1} for each in begun)
        assert reader.look(1, 0, ALL, 1_000).extent.next == 300
        assert len(segments(tmp_path)) >= 6
        before = dump(store, 1)
    with closing(LogStore(tmp_path, segment_bytes=1 << 20)) as store:
        assert dump(store, 1) == before

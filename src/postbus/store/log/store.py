"""A store with a commit log: the records in segments, the index beside them in SQLite."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull, StoreUnavailable
from postbus.model.index_rows import Row
from postbus.model.times import Instant
from postbus.store.batch import StoredBatch
from postbus.store.log import index_file
from postbus.store.log.commit_log import CommitLog
from postbus.store.log.commits import Begun, Commits
from postbus.store.log.failures import LogFailures
from postbus.store.log.files import DiskFiles, Files
from postbus.store.log.journal_reader import LogReader
from postbus.store.log.locations import Fragment
from postbus.store.log.reading import JournalReading
from postbus.store.log.retention import Retention
from postbus.store.log.sealing import Sealing
from postbus.store.log.segment_writer import SegmentWriter, choose_writer
from postbus.store.log.segments import Segments
from postbus.store.log.spares import Spares, SpareThread
from postbus.store.log.start import Start
from postbus.store.ports.journal import FragmentPosition, Lease, Part, Trimmed
from postbus.store.sqlite.damage import check_blob, check_numbers
from postbus.store.sqlite.database import WAL_PAGES_MAX, Database
from postbus.store.sqlite.index import SqliteIndex
from postbus.store.sqlite.reserve import Reserve
from postbus.store.sqlite.schema import first_id

SEGMENT_BYTES: Final = 64 << 20
SMALL_BYTES: Final = 1 << 20
"""A segment on a disk that has no room for a whole one."""

_ACQUIRE: Final = """
INSERT INTO fragment (id, epoch, broker, checkpoint, tail, born, state)
VALUES (?, ?, ?, 0, 0, ?, x'')
ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, broker = excluded.broker"""
_STATE: Final = "SELECT checkpoint, state FROM fragment WHERE id = ?"
_RELEASE: Final = "UPDATE fragment SET epoch = epoch + 1, broker = '' WHERE id = ? AND epoch = ?"

MakeWriter = Callable[[Files, int], SegmentWriter]
"""Makes a writer whose first frame follows this sequence."""


def disk_writer(files: Files, durable: int) -> SegmentWriter:
    """A writer for the files of the operating system, whatever names them."""
    return choose_writer(durable)


class LogStore:
    """A Store in a folder of its own. See `postbus.store.ports` for what the methods promise.

    A commit has two halves. `begin` checks its parts in memory and submits its frame. `finish`
    waits until the frame is durable, and brings the index up to date.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        files: Files | None = None,
        vfs: str | None = None,
        wal_pages_max: int = WAL_PAGES_MAX,
        data_folder: str = "",
        reserve: Reserve | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        make_writer: MakeWriter = disk_writer,
        spares_on_thread: bool = True,
    ) -> None:
        """In the data folder of this id. The folder is the store's own, and must exist."""
        files = DiskFiles(Path(folder)) if files is None else files
        path = str(Path(folder) / index_file.FILE)
        self._database = Database(
            path, index_file.LOG_INDEX, vfs, wal_pages_max, data_folder, reserve
        )
        self._reserve = reserve
        self._failures = LogFailures(self._database, reserve)
        self.index = SqliteIndex(self._database)
        self._is_open = False
        self._closers: list[Callable[[], None]] = [self._database.close]
        try:
            store = self._database.with_reserve(partial(index_file.store_id, self._database))
            with self._failures.reading():
                # A rename that only the kernel knows of must not be lost once it was seen.
                files.sync_names()
                spares = Spares(files, segment_bytes, self._small_bytes(), self._has_room_for)
                self._segments = Segments(files, store, spares)
                self._closers.append(self._segments.close)
                start = Start(self._database, files, store, self._segments)
            self._locations = start.locations
            want_spare = spares.prepare
            if spares_on_thread:
                thread = SpareThread(spares)
                self._closers.append(thread.close)
                want_spare = thread.want
            writer = make_writer(files, start.recovery.end_sequence - 1)
            self._closers.append(writer.close)
            self._log = CommitLog(
                self._segments, self._locations, start.recovery, writer, want_spare
            )
            self._sealing = Sealing(self._database, self._log, self._segments, self._failures)
            self._journal = JournalReading(self._database, self._locations, self._segments)
            self._retention = Retention(
                self._database, self.index, self._journal, self._locations, self._segments
            )
            self._commits = Commits(
                self._database,
                self.index,
                self._locations,
                self._log,
                self._journal,
                self._retention,
                self._failures,
                start.newest,
            )
            self._begin_generation()
            self._is_open = True
        except BaseException:
            self.close()
            raise

    def _begin_generation(self) -> None:
        """Write into a new segment from now on. Without room the first commit tries again."""
        with suppress(StoreFull):
            self._failures.making_room(self._log.begin_segment)
            self._sealing.seal()
            self._database.with_reserve(self._note_generation)
            # All that the index says is synced with that.
            self._sealing.recycle()

    def _note_generation(self) -> None:
        with self._database.transaction():
            self._database.set_meta("generation", self._log.generation)

    @property
    def has_room(self) -> bool:
        return self._reserve is None or self._reserve.has_room

    @property
    def is_spent(self) -> bool:
        return self._reserve is not None and self._reserve.is_spent

    def look_for_room(self) -> bool:
        if self._reserve is None:
            return True
        with suppress(StoreUnavailable):
            if self._reserve.is_pledged:
                self._database.move_log()
            self._sealing.try_again()
            self._sealing.seal()
        return self._reserve.look()

    def _small_bytes(self) -> int:
        """The size of a segment that a step of the reserve has room for, several times."""
        return SMALL_BYTES if self._reserve is None else min(SMALL_BYTES, self._reserve.step // 4)

    def _has_room_for(self, size: int) -> bool:
        return self._reserve is None or self._reserve.has_room_for(size)

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        first_id(fragment)  # refuses a number that is too large
        self._commits.settle()
        try:
            epoch = self._database.with_reserve(
                partial(self._take_over, fragment, broker, seen_epoch)
            )
        except StoreFull:
            known = None if self._reserve is None else self._locations.fragments.get(fragment)
            if known is None or known.epoch <= seen_epoch:
                raise
            # Nobody else can hold the folder, so its messages can be read and delivered, although
            # nothing can be written.
            epoch = known.epoch
        self._commits.settle()
        position = self.position(fragment)
        assert position is not None
        return Lease(fragment, epoch, *position)

    def _take_over(self, number: int, broker: str, seen_epoch: int) -> int:
        known = self._locations.fragments.get(number)
        epoch = max(0 if known is None else known.epoch, seen_epoch) + 1
        born = self._log.next_sequence if known is None else known.born
        with self._database.transaction():
            self._database.run(_ACQUIRE, (number, epoch, broker, born))
        with self._locations.lock:
            if known is None:
                known = self._locations.fragments[number] = Fragment(epoch, 0, 0, born)
            known.epoch = epoch
            known.unwritten = None
        return epoch

    def position(self, fragment: int) -> FragmentPosition | None:
        with self._failures.reading():
            known = self._locations.fragments.get(fragment)
            if known is None:
                return None
            [(checkpoint, state)] = self._database.run(_STATE, (fragment,))
            check_numbers((checkpoint,), f"fragment {fragment}")
            check_blob(state, f"the state of fragment {fragment}")
        return FragmentPosition(known.head, checkpoint, state)

    def release(self, lease: Lease) -> None:
        self._commits.settle()
        self._database.with_reserve(partial(self._give_up, lease))
        with self._locations.lock:
            known = self._locations.fragments.get(lease.fragment)
            if known is not None and known.epoch == lease.epoch:
                known.epoch += 1

    def _give_up(self, lease: Lease) -> None:
        with self._database.transaction():
            self._database.run(_RELEASE, (lease.fragment, lease.epoch))

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        return self.finish(self.begin(parts))

    def begin(self, parts: Sequence[Part]) -> Begun:
        """The first half of a commit, for any thread: see `Commits.begin`."""
        return self._commits.begin(parts)

    def finish(self, begun: Begun) -> frozenset[int]:
        """The second half, on the thread of the store: see `Commits.finish`."""
        self._commits.finish(begun)
        self._sealing.seal()
        if self._reserve is not None and begun.size and self._reserve.wrote(begun.size):
            self.look_for_room()
        return begun.fragments

    def fileno(self) -> int:
        """Readable while `collect` has news."""
        return self._log.fileno()

    def collect(self) -> int:
        """The highest sequence that is durable, for any thread: commits up to there can be
        answered, and their batches read, before they are finished. OutcomeUnknown."""
        with self._failures.waiting():
            return self._log.collect()

    def newest(self) -> Instant:
        self._database.refuse()
        return self._commits.newest

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        with self._failures.reading():
            return self._journal.read(fragment, start, bytes_max)

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        with self._failures.reading():
            return self._journal.read_batch(fragment, base)

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        with self._failures.reading():
            return self._journal.read_slice(fragment, base, position, length)

    def tail(self, fragment: int) -> int:
        self._database.refuse()
        known = self._locations.fragments.get(fragment)
        return 0 if known is None else known.tail

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        with self._failures.reading():
            trim = partial(self._retention.trim, fragment, older_than, bytes_max, limit)
            trimmed, is_synced = self._database.with_reserve(trim)
        if is_synced:
            self._sealing.recycle()
        return trimmed

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        with self._failures.reading():
            return self._retention.load_pinned(fragment, below, live_share_max, limit)

    def drop(self, fragment: int, limit: int) -> bool:
        with self._locations.lock:
            known = self._locations.fragments.get(fragment)
            if known is not None:
                known.epoch += 1
        self._commits.settle()
        with self._failures.reading():
            is_done = self._database.with_reserve(partial(self._retention.drop, fragment, limit))
        self._sealing.recycle()
        return is_done

    def probe(self, now: int) -> None:
        with self._locations.lock:
            self._database.refuse()
            sequence = self._failures.making_room(partial(self._log.append, ()))
        self._commits.wait(sequence)
        self._database.with_reserve(partial(self._write_probe, now))
        with self._failures.reading():
            if self._database.get_meta("probe") != now:
                raise StoreFailed(f"{self._database.name} did not keep what was written to it")

    def _write_probe(self, now: int) -> None:
        with self._database.transaction():
            self._database.set_meta("probe", now)

    def journal_reader(self) -> LogReader:
        return LogReader(self._locations, self._segments)

    def close(self) -> None:
        with ExitStack() as closing:
            for close in self._closers:
                closing.callback(close)
            self._closers.clear()
            if self._is_open:
                self._is_open = False
                with suppress(StoreUnavailable, OutcomeUnknown):
                    # A start reads its directory, and need not scan it.
                    self._commits.settle()
                    self._log.end_segment()
                    self._sealing.seal()

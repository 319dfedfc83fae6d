"""A second, read-only connection to a store's file, for the change feed.

A read snapshot keeps the write-ahead log from being reset: a snapshot held over 6,000 commits left
a log of 665 MB. So each call reads a short range, and its snapshot ends when it returns. A commit
becomes visible to other connections when SQLite has synced it. So a reader sees nothing that a
crash could take back.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import apsw

from postbus.errors import StoreFailed, StoreUnavailable
from postbus.model.times import Instant
from postbus.store.batch import HEADER_SIZE, StoredBatch
from postbus.store.checks import check_within
from postbus.store.ports.journal import OFFSET_MAX
from postbus.store.ports.journal_reader import (
    RAW_MAX,
    BatchOutline,
    Extent,
    JournalView,
)
from postbus.store.sqlite.damage import Damaged, check_batch, check_header, check_numbers
from postbus.store.sqlite.database import BUSY_MS
from postbus.store.sqlite.schema import first_id
from postbus.store.sqlite.spare_buffers import SpareBuffers

CACHE_KIB: Final = 2_048
"""Pages of a journal are read once, so a large cache would only hold them longer."""
SPARE_BUFFERS: Final = 4
"""Enough for the two slices of each of two readers, as many as two cores can serve."""

_POSITION: Final = "SELECT checkpoint, tail FROM fragment WHERE id = ?"
_OUTLINE: Final = "SELECT id, count, at, total, length(data) FROM journal WHERE id BETWEEN ? AND ?"
_OLDEST: Final = f"{_OUTLINE} ORDER BY id LIMIT 1"
_NEWEST: Final = f"{_OUTLINE} ORDER BY id DESC LIMIT 1"
_IN_ORDER: Final = f"{_OUTLINE} ORDER BY id LIMIT ?"
_SIZES: Final = "SELECT id, count, length(data) FROM journal WHERE id BETWEEN ? AND ? ORDER BY id"
_RANGE: Final = "SELECT id, count, data FROM journal WHERE id BETWEEN ? AND ? ORDER BY id"


class SqliteReader:
    """A JournalReader of one store file. See `postbus.store.ports.journal_reader`."""

    own_thread = True

    def __init__(self, path: str, vfs: str | None = None) -> None:
        self._spare = SpareBuffers(RAW_MAX, SPARE_BUFFERS)
        with _translated():
            self._connection = apsw.Connection(path, apsw.SQLITE_OPEN_READONLY, vfs=vfs)
            self._connection.set_busy_timeout(BUSY_MS)
            self._run("PRAGMA mmap_size=0")
            self._run(f"PRAGMA cache_size=-{CACHE_KIB}")

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        with self._snapshot():
            extent = self._extent(fragment)
            found: list[BatchOutline] = []
            if not (extent.first <= start < extent.next and bytes_max):
                return JournalView(extent, found)
            first = first_id(fragment)
            room = bytes_max
            begin = self._holding(fragment, start)
            cursor = self._connection.execute(_IN_ORDER, (first + begin, first + OFFSET_MAX, limit))
            for row in cursor:
                base, count, at, _, size = _checked(row, first)
                if found and size > room:
                    cursor.close()
                    break
                found.append(BatchOutline(base, count, at, size))
                room -= size
        return JournalView(extent, found)

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        zero = first_id(fragment)
        with _translated():
            batches = self._run(_RANGE, (zero + first, zero + last))
            for row_id, count, data in batches:
                check_batch(fragment, row_id - zero, count, data)
        return [StoredBatch(row_id - zero, data) for row_id, _, data in batches]

    def read_raw(self, fragment: int, first: int, last: int) -> tuple[int, bytes | memoryview]:
        zero = first_id(fragment)
        with self._snapshot():
            sizes = self._run(_SIZES, (zero + first, zero + last))
            check_numbers([size for _, _, size in sizes], f"a batch of fragment {fragment}")
            if not sizes:
                return 0, b""
            # Straight into the buffer that is sent: values of rows would be copied twice before.
            data = self._spare.take(sum([size for _, _, size in sizes]))
            at = 0
            with self._connection.blob_open("main", "journal", "data", sizes[0][0], False) as blob:
                for row_id, count, size in sizes:
                    if at:
                        blob.reopen(row_id)
                    blob.read_into(data, at, size)
                    header = bytes(data[at : at + HEADER_SIZE])
                    check_header(fragment, row_id - zero, count, header, size)
                    at += size
        return len(sizes), data

    def read_part(
        self, fragment: int, base: int, position: int, size: int
    ) -> bytes | memoryview | None:
        row_id = first_id(fragment) + base
        with self._snapshot():
            row = self._one(_SIZES, row_id, row_id)
            if row is None:
                return None
            _, count, there = row
            check_numbers((there,), f"the batch at {base} of fragment {fragment}")
            with self._connection.blob_open("main", "journal", "data", row_id, False) as blob:
                header = blob.read(HEADER_SIZE)
                check_header(fragment, base, count, header, there)
                check_within(position, size, there)
                data = self._spare.take(size)
                blob.seek(position)
                blob.read_into(data, 0, size)
        return data

    def find(self, fragment: int, at: Instant) -> int:
        first = first_id(fragment)
        with self._snapshot():
            extent = self._extent(fragment)
            # Offsets from `low` on may be the answer; all from `high` on are late enough. The time
            # of a commit never goes back (`postbus.runtime.clock`).
            low, high = extent.first, extent.next
            while low < high:
                middle = (low + high) // 2
                row = self._one(_OLDEST, first + middle, first + OFFSET_MAX)
                if row is None or _checked(row, first)[2] >= at:
                    high = middle
                else:
                    base, count, *_ = _checked(row, first)
                    low = base + count
            row = self._one(_OLDEST, first + low, first + OFFSET_MAX)
        return extent.next if row is None else int(row[0]) - first

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        first = first_id(fragment)
        with self._snapshot():
            extent = self._extent(fragment)
            begin = self._holding(fragment, max(offset, extent.first))
            row = self._one(_OLDEST, first + begin, first + OFFSET_MAX)
            return None if row is None else _checked(row, first)[2]

    def close(self) -> None:
        self._connection.close()

    def _extent(self, fragment: int) -> Extent:
        position = self._run(_POSITION, (fragment,))
        if not position:
            return Extent(0, 0, None, None, 0)
        [(checkpoint, tail)] = position
        check_numbers((checkpoint, tail), f"fragment {fragment}")
        first = first_id(fragment)
        newest = self._one(_NEWEST, first, first + OFFSET_MAX)
        if newest is None:
            return Extent(tail, checkpoint, None, None, 0)
        base, count, last_at, total, _ = _checked(newest, first)
        # The newest batches may be trimmed while an older batch is pinned.
        end = max(checkpoint, base + count)
        oldest = self._one(_OLDEST, first + tail, first + OFFSET_MAX)
        if oldest is None:
            return Extent(tail, end, None, None, 0)
        _, _, first_at, before, size = _checked(oldest, first)
        return Extent(tail, end, first_at, last_at, total - before + size)

    def _holding(self, fragment: int, offset: int) -> int:
        """The base of the batch that holds an offset, or the offset itself."""
        first = first_id(fragment)
        row = self._one(_NEWEST, first, first + offset)
        if row is not None:
            base, count, *_ = _checked(row, first)
            if base + count > offset:
                return base
        return offset

    def _one(self, statement: str, *values: int) -> tuple[Any, ...] | None:
        rows = self._run(statement, values)
        return rows[0] if rows else None

    def _run(self, statement: str, values: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several statements that see the same moment."""
        with _translated():
            self._run("BEGIN")
            try:
                yield
            finally:
                with suppress(apsw.Error):
                    self._run("ROLLBACK")


def _checked(row: tuple[Any, ...], first: int) -> tuple[int, int, Instant, int, int]:
    """Base, count, time, total and size."""
    row_id, *numbers = row
    check_numbers(numbers, f"the batch at {row_id - first}")
    count, at, total, size = numbers
    return row_id - first, count, at, total, size


@contextmanager
def _translated() -> Iterator[None]:
    """The writer of a file finds damage, and stops. A reader only refuses the question."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(f"The journal cannot be read now: {error}") from error
    except (apsw.Error, Damaged) as error:
        raise StoreFailed(f"The journal cannot be read: {error}") from error

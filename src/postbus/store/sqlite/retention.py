"""Removal from a SQLite store: trimmed batches, dropped fragments, and the space they took."""

from array import array
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NamedTuple

import apsw

from postbus.model.index_rows import Checkpoint, Row, RowKey
from postbus.store.ports.journal import OFFSET_MAX, Trimmed
from postbus.store.sqlite import rows
from postbus.store.sqlite.damage import check_numbers
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.index import SqliteIndex
from postbus.store.sqlite.schema import first_id
from postbus.store.trim import TrimCursor, TrimRule

SLICE_BYTES_MAX: Final = 64 << 20
"""Journal bytes that one call lets go at most, for any limit: freeing each page costs time."""
PINNED_ROWS_MAX: Final = 4_096
"""Index entries that one search for copy-forward looks at."""
SHRINK_PAGES: Final = 1_024
FREE_PAGES_KEPT: Final = 2_048

_POSITION: Final = "SELECT checkpoint, tail FROM fragment WHERE id = ?"
_NEWEST: Final = "SELECT total FROM journal WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
_PINNED: Final = """
EXISTS (SELECT 1 FROM message INDEXED BY message_body
    WHERE fragment = journal.id >> 40 AND base = journal.id - ?1)"""
_SCAN: Final = f"""
SELECT id, at, count, total, length(data), {_PINNED}
FROM journal WHERE id BETWEEN ?1 + ?2 AND ?3 ORDER BY id"""
_AGAIN: Final = f"""
SELECT id, length(data) FROM journal
WHERE id IN (SELECT value FROM carray(?2)) AND NOT {_PINNED} ORDER BY id"""
_DELETE: Final = "DELETE FROM journal WHERE id IN (SELECT value FROM carray(?))"
_SET_TAIL: Final = "UPDATE fragment SET tail = ? WHERE id = ?"

_LIVE: Final = """
SELECT base, count(*), sum(length),
    (SELECT length(data) FROM journal WHERE id = ?1 + message.base)
FROM message INDEXED BY message_body WHERE fragment = ?2 AND base >= ?3 AND base < ?4
GROUP BY base ORDER BY base"""
_IN_BATCH: Final = rows.page_of("""
SELECT * FROM message INDEXED BY message_body WHERE fragment = ? AND base = ?
ORDER BY subqueue, lane, number LIMIT ?""")

_FENCE: Final = "UPDATE fragment SET epoch = epoch + 1 WHERE id = ?"
_SIZES: Final = "SELECT id, length(data) FROM journal WHERE id BETWEEN ? AND ? ORDER BY id"
_DROP_FRAGMENT: Final = "DELETE FROM fragment WHERE id = ?"


class _Slice(NamedTuple):
    """The batches that a trim may drop, and how far its scan came."""

    dropped: list[int]
    bytes: int
    pinned: int
    scanned: int
    more: bool


class Retention:
    def __init__(self, database: Database, index: SqliteIndex) -> None:
        self._database = database
        self._index = index
        self._cursors: dict[int, TrimCursor] = {}
        self._searched: dict[int, int] = {}
        """Where the next search for copy-forward starts, for each fragment."""

    def tail(self, fragment: int) -> int:
        with self._database.reading():
            for _, tail in self._database.run(_POSITION, (fragment,)):
                check_numbers((tail,), f"fragment {fragment}")
                return int(tail)
        return 0

    def released_by(self, fragment: int, checkpoint: Checkpoint) -> list[int]:
        """The batches behind the scan that lose a body with this checkpoint, not yet written."""
        cursor = self._cursor(fragment)
        if not cursor.pinned:
            return []
        # A row that is put with a body from before the scan keeps its body. A row with a newer body
        # may be a message whose body was copied forward.
        put = (RowKey(*row[:3]) for row in checkpoint.rows if row.base >= cursor.scanned)
        keys = [*checkpoint.removed, *put]
        return rows.bases_of(self._database, fragment, keys, cursor.scanned)

    def checkpoint_written(self, fragment: int, released: Sequence[int]) -> None:
        self._cursor(fragment).release(released)

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        cursor = self._cursor(fragment)
        first = first_id(fragment)
        with self._database.reading():
            position = self._database.run(_POSITION, (fragment,))
            if not position:
                return Trimmed(0, 0, False)
            [(checkpoint, tail)] = position
            check_numbers((checkpoint, tail), f"fragment {fragment}")
            candidates, again = self._look_again(first, cursor.candidates(limit))
            room = limit - len(candidates)
            freed = sum(size for _, size in again)
            rule = TrimRule(checkpoint, tail, older_than, bytes_max)
            ahead = self._scan(first, cursor.scanned, rule, room, freed)
        dropped = [base for base, _ in again] + ahead.dropped
        tail_moved = ahead.scanned > tail
        if dropped or tail_moved:
            with self._database.transaction():
                self._delete([first + base for base in dropped])
                if tail_moved:
                    self._database.run(_SET_TAIL, (ahead.scanned, fragment))
        cursor.looked_again(candidates, len(again))
        cursor.advance(ahead.scanned, ahead.pinned)
        self._database.shrink(SHRINK_PAGES, FREE_PAGES_KEPT)
        return Trimmed(len(dropped), ahead.bytes, ahead.more or cursor.has_candidates())

    def _look_again(
        self, first: int, candidates: Sequence[int]
    ) -> tuple[Sequence[int], list[tuple[int, int]]]:
        """The candidates that were looked at, and base and size of the candidates that nothing pins
        any longer. If batches are large, the rest wait for the next call."""
        if not candidates:
            return candidates, []
        ids = array("q", [first + base for base in candidates])
        found = self._database.run(_AGAIN, (first, apsw.carray(ids)))
        check_numbers((size for _, size in found), "a batch")
        freed = 0
        for place, (row_id, size) in enumerate(found, 1):
            freed += size
            if freed >= SLICE_BYTES_MAX:
                found = found[:place]
                candidates = [base for base in candidates if base <= row_id - first]
                break
        return candidates, [(row_id - first, size) for row_id, size in found]

    def _scan(self, first: int, start: int, rule: TrimRule, room: int, freed: int) -> _Slice:
        """Go on from `start` to the first batch that is kept; `freed` bytes are let go already."""
        dropped: list[int] = []
        pinned_count = 0
        newest = self._database.run(_NEWEST, (first, first + OFFSET_MAX))
        check_numbers((total for (total,) in newest), "the last batch")
        values = (first, start, first + OFFSET_MAX)
        with closing(self._database.scan(_SCAN, values)) as batches:
            for row_id, at, count, total, size, pinned in batches:
                base = row_id - first
                check_numbers((at, count, total, size), f"the batch at {base}")
                if rule.keeps(base, base + count, at, newest[0][0] - total + size):
                    break
                if room <= 0 or freed >= SLICE_BYTES_MAX:
                    return _Slice(dropped, freed, pinned_count, start, True)
                room -= 1
                start = base + count
                if pinned:
                    pinned_count += 1
                else:
                    dropped.append(base)
                    freed += size
        return _Slice(dropped, freed, pinned_count, start, False)

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        first = first_id(fragment)
        start = self._searched.get(fragment, 0)
        chosen: list[int] = []
        looked_at = wanted = 0
        with self._database.reading():
            values = (first, fragment, start, below)
            with closing(self._database.scan(_LIVE, values)) as batches:
                for base, count, live, size in batches:
                    check_numbers((base, live, size), "a batch that the index points to")
                    start = base + 1
                    looked_at += count
                    if live <= live_share_max * size:
                        chosen.append(base)
                        wanted += count
                    if wanted >= limit or looked_at >= PINNED_ROWS_MAX:
                        break
                else:
                    start = 0
            found: list[Row] = []
            for base in chosen:
                room = limit - len(found)
                found += rows.find(self._database, _IN_BATCH, (fragment, base, room))
        # Round and round: a search goes on where the last search stopped.
        self._searched[fragment] = start
        return found

    def drop(self, fragment: int, limit: int) -> bool:
        first = first_id(fragment)
        done = False
        with self._database.transaction():
            self._database.run(_FENCE, (fragment,))
            room = limit - self._index.drop(fragment, limit)
            if room > 0:
                self._delete(self._oldest(first, room))
                [(left,)] = self._database.run(
                    "SELECT EXISTS (SELECT 1 FROM journal WHERE id BETWEEN ? AND ?)",
                    (first, first + OFFSET_MAX),
                )
                if not left:
                    self._database.run(_DROP_FRAGMENT, (fragment,))
                    done = True
        self._cursors.pop(fragment, None)
        self._searched.pop(fragment, None)
        self._database.shrink(SHRINK_PAGES, FREE_PAGES_KEPT)
        return done

    def _delete(self, ids: Sequence[int]) -> None:
        if ids:
            self._database.run(_DELETE, (apsw.carray(array("q", ids)),))

    def _oldest(self, first: int, limit: int) -> list[int]:
        ids: list[int] = []
        freed = 0
        with closing(self._database.scan(_SIZES, (first, first + OFFSET_MAX))) as batches:
            for row_id, size in batches:
                check_numbers((size,), f"the batch at {row_id - first}")
                ids.append(row_id)
                freed += size
                if len(ids) >= limit or freed >= SLICE_BYTES_MAX:
                    break
        return ids

    def _cursor(self, fragment: int) -> TrimCursor:
        cursor = self._cursors.get(fragment)
        if cursor is None:
            cursor = self._cursors[fragment] = TrimCursor()
        return cursor

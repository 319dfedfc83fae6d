"""What leaves a log: trimmed batches and dropped fragments.

A trim moves the tail of a fragment past batches, and writes down those that live bodies hold in
place. The bytes go with their segment, when nothing in it can be read any more.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from postbus.model.index_rows import Checkpoint, Row, RowKey
from postbus.store.log import index_file
from postbus.store.log.blocks import Place
from postbus.store.log.locations import Locations
from postbus.store.log.reading import JournalReading
from postbus.store.log.segments import Segments
from postbus.store.ports.journal import Trimmed
from postbus.store.sqlite import rows
from postbus.store.sqlite.damage import Damaged, check_numbers
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.index import SqliteIndex
from postbus.store.trim import TrimCursor, TrimRule

SLICE_BYTES_MAX: Final = 64 << 20
"""Journal bytes that one call lets go at most, for any limit."""
PINNED_ROWS_MAX: Final = 4_096
"""Index entries that one search for copy-forward looks at."""

_WITH_BODIES: Final = """
SELECT json_group_array(DISTINCT base) FROM message INDEXED BY message_body
WHERE fragment = ? AND base IN (SELECT value FROM json_each(?))"""
_SET_TAIL: Final = "UPDATE fragment SET tail = ? WHERE id = ?"
_LIVE: Final = """
SELECT base, count(*), sum(length) FROM message INDEXED BY message_body
WHERE fragment = ? AND base >= ? AND base < ? GROUP BY base ORDER BY base"""
_IN_BATCH: Final = rows.page_of("""
SELECT * FROM message INDEXED BY message_body WHERE fragment = ? AND base = ?
ORDER BY subqueue, lane, number LIMIT ?""")
_FENCE: Final = "UPDATE fragment SET epoch = epoch + 1 WHERE id = ?"
_DROP_FRAGMENT: Final = "DELETE FROM fragment WHERE id = ?"


class _Slice(NamedTuple):
    """The batches that a trim passes, and how far it came."""

    dropped: list[Place]
    pinned: list[Place]
    freed: int
    scanned: int
    more: bool


class Retention:
    def __init__(
        self,
        database: Database,
        index: SqliteIndex,
        journal: JournalReading,
        locations: Locations,
        segments: Segments,
    ) -> None:
        self._database = database
        self._index = index
        self._journal = journal
        self._locations = locations
        self._segments = segments
        self._cursors: dict[int, TrimCursor] = {}
        self._searched: dict[int, int] = {}
        """Where the next search for copy-forward starts, for each fragment."""

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

    def trim(
        self, number: int, older_than: int, bytes_max: int, limit: int
    ) -> tuple[Trimmed, bool]:
        """True with it when something was written: it is durable, and so is all before it."""
        fragment = self._locations.fragments.get(number)
        if fragment is None:
            return Trimmed(0, 0, False), False
        cursor = self._cursor(number)
        with self._database.reading():
            candidates, again = self._look_again(number, cursor.candidates(limit))
            freed = sum(place.length for place in again)
            rule = TrimRule(fragment.checkpoint, fragment.tail, older_than, bytes_max)
            room = limit - len(candidates)
            ahead = self._scan(number, cursor.scanned, rule, room, freed)
        tail = max(fragment.tail, ahead.scanned)
        passed = [place for place in ahead.dropped if place.base >= fragment.tail]
        newly_pinned = [place for place in ahead.pinned if place.base >= fragment.tail]
        let_go = again + [place for place in ahead.dropped if place.base < fragment.tail]
        is_written = bool(passed or newly_pinned or let_go)
        if is_written:
            with self._database.transaction():
                index_file.unpin(self._database, number, let_go)
                index_file.pin(self._database, number, newly_pinned)
                self._database.run(_SET_TAIL, (tail, number))
            self._move(number, tail, passed, newly_pinned, let_go)
        cursor.looked_again(candidates, len(again))
        cursor.advance(ahead.scanned, len(ahead.pinned))
        count = len(again) + len(ahead.dropped)
        more = ahead.more or cursor.has_candidates()
        return Trimmed(count, ahead.freed, more), is_written

    def _move(
        self,
        number: int,
        tail: int,
        passed: list[Place],
        newly_pinned: list[Place],
        let_go: list[Place],
    ) -> None:
        """As the index has it by now."""
        with self._locations.lock:
            for place in passed:
                self._locations.hide(place.segment, place.length)
            for place in newly_pinned:
                self._locations.pin(place.segment, place.length)
            for place in let_go:
                self._locations.hide(place.segment, place.length)
                self._locations.pin(place.segment, -place.length)
            size = sum(place.length for place in passed + newly_pinned)
            self._locations.set_tail(number, tail, size)

    def _look_again(
        self, number: int, candidates: Sequence[int]
    ) -> tuple[Sequence[int], list[Place]]:
        """The candidates that were looked at, and those that nothing pins any longer. If batches
        are large, the rest wait for the next call."""
        if not candidates:
            return candidates, []
        with_bodies = self._with_bodies(number, candidates)
        free: list[Place] = []
        freed = 0
        for base in candidates:
            place = None
            if base not in with_bodies:
                place = index_file.pinned_at(self._database, number, base)
            if place is not None:
                free.append(place)
                freed += place.length
                if freed >= SLICE_BYTES_MAX:
                    return [each for each in candidates if each <= base], free
        return candidates, free

    def _scan(self, number: int, start: int, rule: TrimRule, room: int, freed: int) -> _Slice:
        """Go on from `start` to the first batch that is kept; `freed` bytes are let go already."""
        dropped: list[Place] = []
        pinned: list[Place] = []
        # One more than there is room for: it tells that there is more.
        ahead = list(self._ahead(number, start, rule, max(room, 0) + 1))
        with_bodies = self._with_bodies(number, [place.base for place in ahead])
        for place in ahead:
            if room <= 0 or freed >= SLICE_BYTES_MAX:
                return _Slice(dropped, pinned, freed, start, True)
            room -= 1
            start = place.end
            if place.base in with_bodies:
                pinned.append(place)
            else:
                dropped.append(place)
                freed += place.length
        return _Slice(dropped, pinned, freed, start, False)

    def _ahead(self, number: int, start: int, rule: TrimRule, limit: int) -> Iterator[Place]:
        """Batches from `start` on up to the first that is kept."""
        fragment = self._locations.fragments[number]
        if start < fragment.tail:
            found = index_file.pinned_from(self._database, number, start, limit)
            yield from found
            limit -= len(found)
        left = fragment.size
        for place in self._locations.places(number, start):
            if limit <= 0 or rule.keeps(place.base, place.end, place.at, left):
                return
            yield place
            limit -= 1
            left -= place.length

    def _with_bodies(self, number: int, bases: Sequence[int]) -> set[int]:
        """Those of the batches that hold bodies of rows."""
        [(found,)] = self._database.run(_WITH_BODIES, (number, json.dumps(list(bases))))
        return set(json.loads(found))

    def load_pinned(self, number: int, below: int, live_share_max: float, limit: int) -> list[Row]:
        start = self._searched.get(number, 0)
        chosen: list[int] = []
        looked_at = wanted = 0
        with self._database.reading():
            with closing(self._database.scan(_LIVE, (number, start, below))) as batches:
                for base, count, live in batches:
                    check_numbers((base, live), "a batch that the index points to")
                    start = base + 1
                    looked_at += count
                    place = self._journal.place_of(number, base)
                    if place is None:
                        raise Damaged(f"the batch at {base} of fragment {number} is missing")
                    if live <= live_share_max * place.length or self._is_sparse(
                        place.segment, live_share_max
                    ):
                        chosen.append(base)
                        wanted += count
                    if wanted >= limit or looked_at >= PINNED_ROWS_MAX:
                        break
                else:
                    start = 0
            found: list[Row] = []
            for base in chosen:
                room = limit - len(found)
                found += rows.find(self._database, _IN_BATCH, (number, base, room))
        # Round and round: a search goes on where the last search stopped.
        self._searched[number] = start
        return found

    def _is_sparse(self, number: int, live_share_max: float) -> bool:
        """Is a segment held by a few live bodies only? It goes as a whole or not at all, however
        much of each batch is alive."""
        segment = self._segments.by_number[number]
        held = segment.pinned_bytes
        return (
            segment.is_sealed
            and held == segment.visible_bytes
            and held <= live_share_max * segment.capacity
        )

    def drop(self, number: int, limit: int) -> bool:
        fragment = self._locations.fragments.get(number)
        tail = 0 if fragment is None else fragment.tail
        with self._database.transaction():
            self._database.run(_FENCE, (number,))
            room = limit - self._index.drop(number, limit)
            oldest = self._oldest(number, room)
            let_go = [place for place in oldest if place.base < tail]
            passed = [place for place in oldest if place.base >= tail]
            index_file.unpin(self._database, number, let_go)
            if passed:
                tail = passed[-1].end
                self._database.run(_SET_TAIL, (tail, number))
            is_done = room > 0 and not self._is_left(number, tail)
            if is_done:
                self._database.run(_DROP_FRAGMENT, (number,))
        if fragment is not None:
            self._move(number, tail, passed, [], let_go)
        if is_done:
            self._locations.forget(number)
        self._cursors.pop(number, None)
        self._searched.pop(number, None)
        return is_done

    def _oldest(self, number: int, room: int) -> list[Place]:
        if room <= 0:
            return []
        found: list[Place] = []
        freed = 0
        pinned = index_file.pinned_from(self._database, number, 0, room)
        for place in (*pinned, *self._first_places(number, room)):
            found.append(place)
            freed += place.length
            if len(found) >= room or freed >= SLICE_BYTES_MAX:
                break
        return found

    def _first_places(self, number: int, limit: int) -> Iterator[Place]:
        for place, _ in zip(self._locations.places(number, 0), range(limit), strict=False):
            yield place

    def _is_left(self, number: int, tail: int) -> bool:
        if index_file.pinned_from(self._database, number, 0, 1):
            return True
        return next(self._locations.places(number, tail), None) is not None

    def _cursor(self, fragment: int) -> TrimCursor:
        cursor = self._cursors.get(fragment)
        if cursor is None:
            cursor = self._cursors[fragment] = TrimCursor()
        return cursor

"""The store without a disk, for tests and ephemeral namespaces: all of it is gone at the end."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple, NoReturn

from postbus.errors import NotSupported
from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.ports import (
    BatchOutline,
    Checkpoint,
    Extent,
    FragmentPosition,
    JournalView,
    Lease,
    Part,
    Row,
    RowKey,
    SeenIds,
    StoredBatch,
    Trimmed,
)
from postbus.store.trim import TrimCursor, TrimRule

_BEHIND_ALL: Final = 1 << 63
"""A number that no row has."""


class _Batch(NamedTuple):
    epoch: int
    at: int
    end: int
    """Offset after its last record."""
    total: int
    """Bytes written to the fragment up to this batch."""
    data: bytes


class _Sorted:
    """A sorted list that takes and gives many items at a time, most of them near one end."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, new: Iterable[Any]) -> None:
        ordered = sorted(new)
        if ordered:
            start = bisect_left(self.items, ordered[0])
            self.items[start:] = sorted(self.items[start:] + ordered)

    def remove(self, gone: set[Any]) -> None:
        if gone:
            start = bisect_left(self.items, min(gone))
            end = bisect_right(self.items, max(gone))
            self.items[start:end] = [item for item in self.items[start:end] if item not in gone]

    def since(self, start: Any) -> Iterator[Any]:
        for index in range(bisect_left(self.items, start), len(self.items)):
            yield self.items[index]


class _Lane:
    """The rows of one lane, by number and by the time they want to be looked at."""

    __slots__ = ("due", "groups", "numbers", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.numbers = _Sorted()
        self.due = _Sorted()
        self.groups = _Sorted()

    def take(self, numbers: Iterable[int]) -> list[Row]:
        """Remove rows and return those that were there."""
        taken = [self.rows.pop(number) for number in numbers if number in self.rows]
        self.numbers.remove({row.number for row in taken})
        self.due.remove({(row.wake_at, row.number) for row in taken if row.wake_at is not None})
        self.groups.remove({(row.group, row.number) for row in taken if row.group is not None})
        return taken

    def put(self, rows: dict[int, Row]) -> None:
        self.rows.update(rows)
        self.numbers.add(rows)
        self.due.add((row.wake_at, row.number) for row in rows.values() if row.wake_at is not None)
        self.groups.add((row.group, row.number) for row in rows.values() if row.group is not None)


class _Fragment:
    def __init__(self) -> None:
        self.epoch = 0
        self.head = 0
        self.checkpoint = 0
        self.tail = 0
        self.state = b""
        self.written = 0
        self.batches: dict[int, _Batch] = {}
        self.bases: list[int] = []
        """The keys of `batches`, in order."""
        self.lanes: dict[tuple[int, int], _Lane] = {}
        self.bodies: dict[int, set[RowKey]] = {}
        """The live bodies in each batch."""
        self.cursor = TrimCursor()
        self.seen: dict[int, dict[bytes, Instant]] = {}
        """Ids that were seen, by part."""

    def append(self, part: Part) -> None:
        if part.batch:
            self.head += part.count
            self.written += len(part.batch)
            self.bases.append(part.base)
            self.batches[part.base] = _Batch(
                part.lease.epoch, part.at, self.head, self.written, part.batch
            )
        if part.checkpoint is not None:
            self.checkpoint = part.checkpoint.offset
            self.state = part.checkpoint.state
            self.cursor.release(self._bring_up(part.checkpoint))
            self._see(part.checkpoint.seen)

    def _see(self, ids: SeenIds | None) -> None:
        if ids is not None:
            part = self.seen.setdefault(ids.part, {})
            part.update(zip(ids.digests, ids.times, strict=True))

    def _bring_up(self, checkpoint: Checkpoint) -> list[int]:
        """Change the index; return the batches in which bodies were let go."""
        changed: dict[tuple[int, int], dict[int, Row]] = {}
        for row in checkpoint.rows:
            changed.setdefault((row.subqueue, row.lane), {})[row.number] = row
        gone: dict[tuple[int, int], list[int]] = {key: list(rows) for key, rows in changed.items()}
        for key in checkpoint.removed:
            gone.setdefault((key.subqueue, key.lane), []).append(key.number)
        released: list[int] = []
        for lane_key, numbers in gone.items():
            for row in self.lanes.setdefault(lane_key, _Lane()).take(numbers):
                self._unpin(row)
                released.append(row.base)
        for lane_key, rows in changed.items():
            self.lanes[lane_key].put(rows)
            for row in rows.values():
                self.bodies.setdefault(row.base, set()).add(RowKey(*row[:3]))
        return released

    def _unpin(self, row: Row) -> None:
        keys = self.bodies[row.base]
        keys.discard(RowKey(*row[:3]))
        if not keys:
            del self.bodies[row.base]

    def row(self, key: RowKey) -> Row | None:
        lane = self.lanes.get((key.subqueue, key.lane))
        return lane.rows.get(key.number) if lane else None

    def rows_in(self, base: int) -> list[Row]:
        return [self.lanes[key[:2]].rows[key.number] for key in sorted(self.bodies[base])]

    def discard(self, bases: Iterable[int]) -> int:
        """Drop batches; return their bytes."""
        doomed = set(bases)
        freed = sum(len(self.batches.pop(base).data) for base in doomed)
        if doomed:
            start = bisect_left(self.bases, min(doomed))
            end = bisect_right(self.bases, max(doomed))
            self.bases[start:end] = [b for b in self.bases[start:end] if b not in doomed]
        return freed


class MemoryStore:
    """A MessageStore in dicts. See `postbus.store.ports` for what the methods promise."""

    def __init__(self) -> None:
        self._fragments: dict[int, _Fragment] = {}
        self._newest: Instant = 0

    has_room: Final = True
    is_spent: Final = False

    def look_for_room(self) -> bool:
        return True

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        kept = self._fragments.setdefault(fragment, _Fragment())
        kept.epoch = max(kept.epoch, seen_epoch) + 1
        return Lease(fragment, kept.epoch, kept.head, kept.checkpoint, kept.state)

    def standing(self, fragment: int) -> FragmentPosition | None:
        kept = self._fragments.get(fragment)
        return None if kept is None else FragmentPosition(kept.head, kept.checkpoint, kept.state)

    def release(self, lease: Lease) -> None:
        kept = self._fragments.get(lease.fragment)
        if kept is not None and kept.epoch == lease.epoch:
            kept.epoch += 1

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        passed: set[int] = set()
        fresh: list[Part] = []
        for part in parts:
            kept = self._fragments.get(part.lease.fragment)
            if kept is None or kept.epoch != part.lease.epoch:
                continue
            if part.lease.fragment in passed:
                raise ValueError(f"fragment {part.lease.fragment} has two parts in one commit")
            passed.add(part.lease.fragment)
            stored = kept.batches.get(part.base) if part.batch else None
            if stored is None or (stored.epoch, stored.data) != (part.lease.epoch, part.batch):
                rules.check(part, kept.head, kept.checkpoint)
                fresh.append(part)
        for part in fresh:
            self._fragments[part.lease.fragment].append(part)
            self._newest = max(self._newest, part.at)
        return frozenset(passed)

    def newest(self) -> Instant:
        return self._newest

    def load_lane(
        self, fragment: int, subqueue: int, lane: int, start: int, limit: int
    ) -> list[Row]:
        kept = self._lane(fragment, subqueue, lane)
        return [kept.rows[number] for number in islice(kept.numbers.since(start), limit)]

    def load_due(
        self, fragment: int, subqueue: int, lane: int, until: int, limit: int
    ) -> list[Row]:
        kept = self._lane(fragment, subqueue, lane)
        end = bisect_left(kept.due.items, (until + 1,))
        return [kept.rows[number] for _, number in kept.due.items[: min(end, limit)]]

    def load_group(
        self, fragment: int, subqueue: int, lane: int, group: bytes, start: int, limit: int
    ) -> list[Row]:
        kept = self._lane(fragment, subqueue, lane)
        within = takewhile(lambda item: item[0] == group, kept.groups.since((group, start)))
        return [kept.rows[number] for _, number in islice(within, limit)]

    def load_groups(
        self, fragment: int, subqueue: int, lane: int, after: bytes | None, limit: int
    ) -> list[bytes]:
        items = self._lane(fragment, subqueue, lane).groups.items
        found: list[bytes] = []
        at = 0 if after is None else bisect_right(items, (after, _BEHIND_ALL))
        while at < len(items) and len(found) < limit:
            found.append(items[at][0])
            at = bisect_right(items, (items[at][0], _BEHIND_ALL))
        return found

    def next_due(self, fragment: int, subqueue: int, lane: int, after: int) -> int | None:
        kept = self._lane(fragment, subqueue, lane)
        for wake_at, _ in kept.due.since((after + 1,)):
            return int(wake_at)
        return None

    def load_rows(self, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
        kept = self._find(fragment)
        return [row for key in keys if (row := kept.row(key)) is not None]

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        kept = self._find(fragment)
        found: list[Row] = []
        for base in sorted(base for base in kept.bodies if base < below):
            if len(found) >= limit:
                break
            rows = kept.rows_in(base)
            live = sum(row.length for row in rows)
            if live <= live_share_max * len(kept.batches[base].data):
                found += rows[: limit - len(found)]
        return found

    def load_seen(
        self, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        kept = self._find(fragment).seen
        found: dict[bytes, Instant] = {}
        for part in parts:
            ids = kept.get(part, {})
            for digest in digests:
                if digest in ids:
                    found[digest] = max(ids[digest], found.get(digest, 0))
        return found

    def load_seen_digests(self, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
        ids = self._find(fragment).seen.get(part, {})
        return sorted(digest for digest in ids if digest > after)[:limit]

    def drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        kept = self._find(fragment).seen
        for part in [each for each in kept if each < below]:
            del kept[part]
        return True

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        kept = self._find(fragment)
        found: list[StoredBatch] = []
        room = bytes_max
        for position in range(_holding(kept, start), len(kept.bases)):
            base = kept.bases[position]
            data = kept.batches[base].data
            if found and len(data) > room:
                break
            found.append(StoredBatch(base, data))
            room -= len(data)
        return found

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        kept = self._find(fragment)
        batch = kept.batches.get(base)
        return None if batch is None else batch.data

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        data = self.read_batch(fragment, base)
        if data is None:
            return None
        rules.check_within(position, length, len(data))
        return data[position : position + length]

    def tail(self, fragment: int) -> int:
        return self._find(fragment).tail

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        kept = self._find(fragment)
        cursor = kept.cursor
        candidates = cursor.candidates(limit)
        again = [base for base in candidates if base not in kept.bodies]
        freed = kept.discard(again)
        cursor.looked_again(candidates, len(again))
        room, pinned, more = limit - len(candidates), 0, False
        scanned, dropped = cursor.scanned, []
        rule = TrimRule(kept.checkpoint, kept.tail, older_than, bytes_max)
        for index in range(bisect_left(kept.bases, scanned), len(kept.bases)):
            base = kept.bases[index]
            batch = kept.batches[base]
            bytes_since = kept.written - batch.total + len(batch.data)
            if rule.keeps(base, batch.end, batch.at, bytes_since):
                break
            if room <= 0:
                more = True
                break
            room -= 1
            scanned = batch.end
            if base in kept.bodies:
                pinned += 1
            else:
                dropped.append(base)
        freed += kept.discard(dropped)
        cursor.advance(scanned, pinned)
        kept.tail = max(kept.tail, scanned)
        return Trimmed(len(again) + len(dropped), freed, more or cursor.has_candidates())

    def drop(self, fragment: int, limit: int) -> bool:
        self._fragments.pop(fragment, None)
        return True

    def probe(self, now: int) -> None:
        """There is nothing that could fail."""

    def journal_reader(self) -> "MemoryReader":
        return MemoryReader(self._find)

    def backup(self, target: str) -> NoReturn:
        raise NotSupported("An ephemeral namespace keeps nothing that could be backed up.")

    def close(self) -> None:
        self._fragments.clear()

    def _find(self, fragment: int) -> _Fragment:
        kept = self._fragments.get(fragment)
        return _Fragment() if kept is None else kept

    def _lane(self, fragment: int, subqueue: int, lane: int) -> _Lane:
        found = self._find(fragment).lanes.get((subqueue, lane))
        return _Lane() if found is None else found


class MemoryReader:
    """A JournalReader of what another object holds in dicts: for the thread of that one."""

    own_thread = False

    def __init__(self, find: Callable[[int], _Fragment]) -> None:
        self._find = find

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        kept = self._find(fragment)
        extent = self._extent(kept)
        found: list[BatchOutline] = []
        room = bytes_max
        if not (extent.first <= start < extent.next and bytes_max):
            return JournalView(extent, found)
        for base in kept.bases[_holding(kept, start) :]:
            batch = kept.batches[base]
            if found and (len(batch.data) > room or len(found) >= limit):
                break
            found.append(BatchOutline(base, batch.end - base, batch.at, len(batch.data)))
            room -= len(batch.data)
        return JournalView(extent, found)

    def _extent(self, kept: _Fragment) -> Extent:
        within = kept.bases[bisect_left(kept.bases, kept.tail) :]
        if not within:
            return Extent(kept.tail, kept.head, None, None, 0)
        oldest, newest = kept.batches[within[0]], kept.batches[within[-1]]
        size = newest.total - oldest.total + len(oldest.data)
        return Extent(kept.tail, kept.head, oldest.at, newest.at, size)

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        kept = self._find(fragment)
        bases = kept.bases[bisect_left(kept.bases, first) : bisect_right(kept.bases, last)]
        return [StoredBatch(base, kept.batches[base].data) for base in bases]

    def read_raw(self, fragment: int, first: int, last: int) -> tuple[int, bytes | memoryview]:
        found = self.read(fragment, first, last)
        return len(found), b"".join([each.data for each in found])

    def read_part(
        self, fragment: int, base: int, position: int, size: int
    ) -> bytes | memoryview | None:
        for each in self.read(fragment, base, base):
            rules.check_within(position, size, len(each.data))
            return memoryview(each.data)[position : position + size]
        return None

    def find(self, fragment: int, at: Instant) -> int:
        kept = self._find(fragment)
        within = kept.bases[bisect_left(kept.bases, kept.tail) :]
        index = bisect_left(within, at, key=lambda base: kept.batches[base].at)
        return within[index] if index < len(within) else kept.head

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        kept = self._find(fragment)
        index = _holding(kept, max(offset, kept.tail))
        return kept.batches[kept.bases[index]].at if index < len(kept.bases) else None

    def close(self) -> None:
        """There is nothing of its own."""


def _holding(kept: _Fragment, offset: int) -> int:
    """The place of the batch that holds an offset, or of the next one."""
    index = bisect_right(kept.bases, offset)
    return index - 1 if index and kept.batches[kept.bases[index - 1]].end > offset else index

"""The index in dicts and sorted lists."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Final

from postbus.model.index_rows import Checkpoint, Row, RowKey, SeenIds
from postbus.model.times import Instant

_BEHIND_ALL: Final = 1 << 63
"""A number that no row has."""


class _Sorted:
    """A sorted list that takes and gives many items at a time, most of them near the same end."""

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
    """The rows of one lane, by number, by group and by `wake_at`."""

    __slots__ = ("due", "groups", "numbers", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.numbers = _Sorted()
        self.due = _Sorted()
        self.groups = _Sorted()

    def take(self, numbers: Iterable[int]) -> list[Row]:
        """Remove rows and return the rows that were there."""
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


class FragmentIndex:
    """The rows of one fragment, the bodies they hold in the journal, and the ids it has seen."""

    __slots__ = ("bodies", "checkpoint", "lanes", "seen", "state")

    def __init__(self) -> None:
        self.checkpoint = 0
        self.state = b""
        self.lanes: dict[tuple[int, int], _Lane] = {}
        self.bodies: dict[int, set[RowKey]] = {}
        """The live bodies in each batch."""
        self.seen: dict[int, dict[bytes, Instant]] = {}
        """Ids that were seen, by part."""

    def apply(self, checkpoint: Checkpoint) -> list[int]:
        """Go on to a checkpoint; return the batches in which bodies were let go."""
        self.checkpoint = checkpoint.offset
        self.state = checkpoint.state
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
        self._see(checkpoint.seen)
        return released

    def _see(self, ids: SeenIds | None) -> None:
        if ids is not None:
            part = self.seen.setdefault(ids.part, {})
            part.update(zip(ids.digests, ids.times, strict=True))

    def _unpin(self, row: Row) -> None:
        keys = self.bodies[row.base]
        keys.discard(RowKey(*row[:3]))
        if not keys:
            del self.bodies[row.base]

    def row(self, key: RowKey) -> Row | None:
        lane = self.lanes.get((key.subqueue, key.lane))
        return lane.rows.get(key.number) if lane else None

    def rows_in(self, base: int) -> list[Row]:
        """The rows whose bodies are in one batch."""
        return [self.lanes[key[:2]].rows[key.number] for key in sorted(self.bodies[base])]


class MemoryIndex:
    """An Index in dicts. See `postbus.store.ports.index` for what the methods promise."""

    def __init__(self) -> None:
        self._fragments: dict[int, FragmentIndex] = {}

    def of(self, fragment: int) -> FragmentIndex:
        """The index of a fragment. An unknown fragment has an empty one, which is not kept."""
        kept = self._fragments.get(fragment)
        return FragmentIndex() if kept is None else kept

    def add(self, fragment: int) -> FragmentIndex:
        """The index of a fragment, from now on kept."""
        return self._fragments.setdefault(fragment, FragmentIndex())

    def drop(self, fragment: int) -> None:
        self._fragments.pop(fragment, None)

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

    def next_due(self, fragment: int, subqueue: int, lane: int, after: int) -> int | None:
        kept = self._lane(fragment, subqueue, lane)
        for wake_at, _ in kept.due.since((after + 1,)):
            return int(wake_at)
        return None

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

    def load_rows(self, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
        kept = self.of(fragment)
        return [row for key in keys if (row := kept.row(key)) is not None]

    def load_seen(
        self, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        kept = self.of(fragment).seen
        found: dict[bytes, Instant] = {}
        for part in parts:
            ids = kept.get(part, {})
            for digest in digests:
                if digest in ids:
                    found[digest] = max(ids[digest], found.get(digest, 0))
        return found

    def load_seen_digests(self, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
        ids = self.of(fragment).seen.get(part, {})
        return sorted(digest for digest in ids if digest > after)[:limit]

    def drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        kept = self.of(fragment).seen
        for part in [each for each in kept if each < below]:
            del kept[part]
        return True

    def _lane(self, fragment: int, subqueue: int, lane: int) -> _Lane:
        found = self.of(fragment).lanes.get((subqueue, lane))
        return _Lane() if found is None else found

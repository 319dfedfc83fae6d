"""The store without a disk, for tests and ephemeral namespaces: all of it is gone at the end."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from postbus.model.index_rows import Row
from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.batch import StoredBatch
from postbus.store.memory.batches import FragmentBatches
from postbus.store.memory.index import FragmentIndex, MemoryIndex
from postbus.store.memory.journal_reader import MemoryReader
from postbus.store.ports.journal import FragmentPosition, Lease, Part, Trimmed
from postbus.store.trim import TrimCursor, TrimRule


class _Fragment:
    """One fragment: who may write it, its batches, and its index."""

    __slots__ = ("batches", "cursor", "epoch", "index")

    def __init__(self, index: FragmentIndex) -> None:
        self.epoch = 0
        self.batches = FragmentBatches()
        self.index = index
        self.cursor = TrimCursor()

    def write(self, part: Part) -> None:
        if part.batch:
            self.batches.append(part)
        if part.checkpoint is not None:
            self.cursor.release(self.index.apply(part.checkpoint))


class MemoryStore:
    """A Store in dicts. See `postbus.store.ports` for what the methods promise."""

    def __init__(self) -> None:
        self.index = MemoryIndex()
        self._fragments: dict[int, _Fragment] = {}
        self._newest: Instant = 0

    has_room: Final = True
    is_spent: Final = False

    def look_for_room(self) -> bool:
        return True

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        kept = self._fragments.get(fragment)
        if kept is None:
            kept = self._fragments[fragment] = _Fragment(self.index.add(fragment))
        kept.epoch = max(kept.epoch, seen_epoch) + 1
        head, checkpoint, state = _position(kept)
        return Lease(fragment, kept.epoch, head, checkpoint, state)

    def position(self, fragment: int) -> FragmentPosition | None:
        kept = self._fragments.get(fragment)
        return None if kept is None else _position(kept)

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
            if not kept.batches.has(part):
                rules.check(part, kept.batches.head, kept.index.checkpoint)
                fresh.append(part)
        for part in fresh:
            self._fragments[part.lease.fragment].write(part)
            self._newest = max(self._newest, part.at)
        return frozenset(passed)

    def newest(self) -> Instant:
        return self._newest

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        kept = self._batches(fragment)
        found: list[StoredBatch] = []
        room = bytes_max
        for position in range(kept.holding(start), len(kept.bases)):
            base = kept.bases[position]
            data = kept.by_base[base].data
            if found and len(data) > room:
                break
            found.append(StoredBatch(base, data))
            room -= len(data)
        return found

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        batch = self._batches(fragment).by_base.get(base)
        return None if batch is None else batch.data

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        data = self.read_batch(fragment, base)
        if data is None:
            return None
        rules.check_within(position, length, len(data))
        return data[position : position + length]

    def tail(self, fragment: int) -> int:
        return self._batches(fragment).tail

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        kept = self._fragments.get(fragment)
        if kept is None:
            return Trimmed(0, 0, False)
        batches, cursor, bodies = kept.batches, kept.cursor, kept.index.bodies
        candidates = cursor.candidates(limit)
        again = [base for base in candidates if base not in bodies]
        freed = batches.discard(again)
        cursor.looked_again(candidates, len(again))
        room, pinned, more = limit - len(candidates), 0, False
        scanned, dropped = cursor.scanned, []
        rule = TrimRule(kept.index.checkpoint, batches.tail, older_than, bytes_max)
        for index in range(bisect_left(batches.bases, scanned), len(batches.bases)):
            base = batches.bases[index]
            batch = batches.by_base[base]
            bytes_since = batches.written - batch.total + len(batch.data)
            if rule.keeps(base, batch.end, batch.at, bytes_since):
                break
            if room <= 0:
                more = True
                break
            room -= 1
            scanned = batch.end
            if base in bodies:
                pinned += 1
            else:
                dropped.append(base)
        freed += batches.discard(dropped)
        cursor.advance(scanned, pinned)
        batches.tail = max(batches.tail, scanned)
        return Trimmed(len(again) + len(dropped), freed, more or cursor.has_candidates())

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        index = self.index.of(fragment)
        batches = self._batches(fragment)
        found: list[Row] = []
        for base in sorted(base for base in index.bodies if base < below):
            if len(found) >= limit:
                break
            rows = index.rows_in(base)
            live = sum(row.length for row in rows)
            if live <= live_share_max * len(batches.by_base[base].data):
                found += rows[: limit - len(found)]
        return found

    def drop(self, fragment: int, limit: int) -> bool:
        self._fragments.pop(fragment, None)
        self.index.drop(fragment)
        return True

    def probe(self, now: int) -> None:
        """There is nothing that could fail."""

    def journal_reader(self) -> MemoryReader:
        return MemoryReader(self._batches)

    def close(self) -> None:
        for fragment in list(self._fragments):
            self.drop(fragment, 0)

    def _batches(self, fragment: int) -> FragmentBatches:
        kept = self._fragments.get(fragment)
        return FragmentBatches() if kept is None else kept.batches


def _position(kept: _Fragment) -> FragmentPosition:
    return FragmentPosition(kept.batches.head, kept.index.checkpoint, kept.index.state)

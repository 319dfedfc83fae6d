"""The change feed of journals in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.batch import StoredBatch
from postbus.store.memory.batches import FragmentBatches
from postbus.store.ports.journal_reader import BatchOutline, Extent, JournalView


class MemoryReader:
    """A JournalReader of the dicts of a MemoryStore: for the thread of that store."""

    own_thread = False

    def __init__(self, find: Callable[[int], FragmentBatches]) -> None:
        self._find = find

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        kept = self._find(fragment)
        extent = self._extent(kept)
        found: list[BatchOutline] = []
        room = bytes_max
        if not (extent.first <= start < extent.next and bytes_max):
            return JournalView(extent, found)
        for base in kept.bases[kept.holding(start) :]:
            batch = kept.by_base[base]
            if found and (len(batch.data) > room or len(found) >= limit):
                break
            found.append(BatchOutline(base, batch.end - base, batch.at, len(batch.data)))
            room -= len(batch.data)
        return JournalView(extent, found)

    def _extent(self, kept: FragmentBatches) -> Extent:
        within = kept.kept()
        if not within:
            return Extent(kept.tail, kept.head, None, None, 0)
        oldest, newest = kept.by_base[within[0]], kept.by_base[within[-1]]
        size = newest.total - oldest.total + len(oldest.data)
        return Extent(kept.tail, kept.head, oldest.at, newest.at, size)

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        kept = self._find(fragment)
        bases = kept.bases[bisect_left(kept.bases, first) : bisect_right(kept.bases, last)]
        return [StoredBatch(base, kept.by_base[base].data) for base in bases]

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
        within = kept.kept()
        index = bisect_left(within, at, key=lambda base: kept.by_base[base].at)
        return within[index] if index < len(within) else kept.head

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        kept = self._find(fragment)
        index = kept.holding(max(offset, kept.tail))
        return kept.by_base[kept.bases[index]].at if index < len(kept.bases) else None

    def close(self) -> None:
        """It holds nothing of its own."""

"""The journal of one fragment in a dict."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from postbus.store.ports.journal import Part


class Batch(NamedTuple):
    epoch: int
    at: int
    end: int
    """Offset after its last record."""
    total: int
    """Bytes written to the fragment up to this batch."""
    data: bytes


class FragmentBatches:
    """The record batches of a fragment, by their bases."""

    __slots__ = ("bases", "by_base", "head", "tail", "written")

    def __init__(self) -> None:
        self.head = 0
        self.tail = 0
        self.written = 0
        """Bytes of all batches so far, including trimmed batches."""
        self.by_base: dict[int, Batch] = {}
        self.bases: list[int] = []
        """The keys of `by_base`, in order."""

    def has(self, part: Part) -> bool:
        """Was this part written before? Then its answer got lost, and it is tried again."""
        stored = self.by_base.get(part.base) if part.batch else None
        return stored is not None and (stored.epoch, stored.data) == (part.lease.epoch, part.batch)

    def append(self, part: Part) -> None:
        self.head += part.count
        self.written += len(part.batch)
        self.bases.append(part.base)
        self.by_base[part.base] = Batch(
            part.lease.epoch, part.at, self.head, self.written, part.batch
        )

    def discard(self, bases: Iterable[int]) -> int:
        """Drop batches; return their bytes."""
        dropped = set(bases)
        freed = sum(len(self.by_base.pop(base).data) for base in dropped)
        if dropped:
            start = bisect_left(self.bases, min(dropped))
            end = bisect_right(self.bases, max(dropped))
            self.bases[start:end] = [b for b in self.bases[start:end] if b not in dropped]
        return freed

    def holding(self, offset: int) -> int:
        """The place in `bases` of the batch that holds an offset, or of the next batch."""
        index = bisect_right(self.bases, offset)
        return index - 1 if index and self.by_base[self.bases[index - 1]].end > offset else index

    def kept(self) -> list[int]:
        """The bases within retention."""
        return self.bases[bisect_left(self.bases, self.tail) :]

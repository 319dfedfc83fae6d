"""Which batches a trim lets go of, and which it looks at again. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

CANDIDATES_MAX: Final = 65_536


class TrimRule(NamedTuple):
    """Where a trim ends."""

    checkpoint: int
    """Records from here on are replayed after a crash."""
    tail: int
    """Batches below it left retention before, and stay out when retention gets longer."""
    older_than: int
    bytes_max: int

    def keeps(self, base: int, end: int, at: int, bytes_since: int) -> bool:
        """Is a batch needed, or within retention? `bytes_since` is its size and all that follow."""
        if end > self.checkpoint:
            return True
        return base >= self.tail and at >= self.older_than and bytes_since <= self.bytes_max


class TrimCursor:
    """Spares each trim a look at every batch that a live body holds in place.

    Batches below `scanned` were looked at, and were gone or pinned then. A pinned batch is worth
    another look once a body in it was let go. Held in memory only: after a start the scan begins at
    the oldest batch again, in slices.
    """

    __slots__ = ("_candidates", "pinned", "scanned")

    def __init__(self) -> None:
        self.scanned = 0
        """Every batch below this offset has been looked at."""
        self.pinned = 0
        """Batches below `scanned` that are still there."""
        self._candidates: set[int] = set()

    def release(self, bases: Iterable[int]) -> None:
        """A checkpoint let go of bodies in these batches."""
        self._candidates.update(base for base in bases if base < self.scanned)
        if len(self._candidates) > CANDIDATES_MAX:
            # Looking at every batch once more costs less than remembering without bound.
            self._candidates.clear()
            self.scanned = 0
            self.pinned = 0

    def candidates(self, limit: int) -> list[int]:
        """Batches to look at again, oldest first."""
        return sorted(self._candidates)[:limit]

    def has_candidates(self) -> bool:
        return bool(self._candidates)

    def looked_again(self, candidates: Sequence[int], dropped: int) -> None:
        """The candidates were checked, and `dropped` of them are gone."""
        self._candidates.difference_update(candidates)
        self.pinned -= dropped

    def advance(self, scanned: int, pinned: int) -> None:
        """The scan went on to the offset `scanned`, past `pinned` batches that stay."""
        self.scanned = scanned
        self.pinned += pinned

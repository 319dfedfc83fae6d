"""Which old batches to look at again when a journal is trimmed. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

CANDIDATES_MAX: Final = 65_536


class TrimCursor:
    """Keeps a trim from looking at every batch that a live body holds in place, every time.

    Batches below `scanned` were looked at and were gone or pinned then. A pinned one is worth
    another look once a body in it was let go, or when it was being copied forward and a checkpoint
    has been written since. Held in memory only: after a start the scan begins at the oldest batch
    again, in slices.
    """

    __slots__ = ("_candidates", "_watched", "pinned", "scanned")

    def __init__(self) -> None:
        self.scanned = 0
        """Every batch below this offset has been looked at."""
        self.pinned = 0
        """Batches below `scanned` that are still there."""
        self._candidates: set[int] = set()
        self._watched: set[int] = set()

    def watch(self, bases: Iterable[int]) -> None:
        """Bodies in these batches are about to be copied forward."""
        self._watched.update(bases)
        self._bound()

    def checkpoint_written(self, released: Iterable[int]) -> None:
        """A checkpoint removed the rows of some bodies in the batches `released`."""
        self._candidates.update(base for base in released if base < self.scanned)
        self._candidates.update(base for base in self._watched if base < self.scanned)
        self._bound()

    def candidates(self, limit: int) -> list[int]:
        """Batches to look at again, oldest first."""
        return sorted(self._candidates)[:limit]

    def looked_again(self, candidates: Sequence[int], dropped: Sequence[int]) -> None:
        """The candidates were checked, and some of them dropped."""
        self._candidates.difference_update(candidates)
        self._watched.difference_update(dropped)
        self.pinned -= len(dropped)

    def advance(self, scanned: int, pinned: int, dropped: Sequence[int]) -> None:
        """The scan went on to an offset, past so many pinned batches."""
        self._watched.difference_update(dropped)
        self.scanned = scanned
        self.pinned += pinned

    def has_candidates(self) -> bool:
        return bool(self._candidates)

    def _bound(self) -> None:
        if len(self._candidates) + len(self._watched) > CANDIDATES_MAX:
            # Looking at every batch once more costs less than remembering without bound.
            self._candidates.clear()
            self._watched.clear()
            self.scanned = 0
            self.pinned = 0

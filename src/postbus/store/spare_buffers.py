"""Memory that is read into again and again.

A buffer of some hundred kilobytes that is made anew for each read is memory that the system has to
clear first, page by page, and Python once more: a tenth of what it takes to hand a batch on.
"""

from sys import getrefcount
from typing import Final

_OURS: Final = 3
"""References to a buffer that nobody uses: the list of them, the name it is looked at by, and the
argument of who counts."""


class SpareBuffers:
    """Buffers of one size. Who has been given one need not give it back: it is free again when the
    last view of it is gone, also of those that a transport holds until it has sent them."""

    __slots__ = ("_count", "_kept", "_size")

    def __init__(self, size: int, count: int) -> None:
        """`count` are kept; if more are in use at once, the others are made and thrown away."""
        self._size = size
        self._count = count
        self._kept: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Room for this many bytes, with whatever was in it last."""
        if size > self._size:
            return memoryview(bytearray(size))
        for kept in self._kept:
            if getrefcount(kept) == _OURS:
                return memoryview(kept)[:size]
        made = bytearray(self._size)
        if len(self._kept) < self._count:
            self._kept.append(made)
        return memoryview(made)[:size]

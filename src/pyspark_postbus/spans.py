"""Columns of text and bytes taken out of a buffer by the position of each value.

A column of Arrow is a piece of memory with offsets. The values of a column follow each other in a
chunk of the feed, in order, with other bytes between them. Read as an Arrow column, every second
entry is a value, and these entries are copied out at once. Nothing is done for each row in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

BUFFER_MAX: Final = (1 << 31) - 1
"""Offsets of Arrow's text and bytes have 32 bits."""


class Spans(NamedTuple):
    """The positions of the values of a column. Unknown values have a place in the order, too."""

    starts: Positions
    ends: Positions
    known: Flags


class Buffer:
    """The bytes of a chunk, to be looked at from any position on in any width."""

    def __init__(self, data: bytes | pa.Buffer) -> None:
        if len(data) > BUFFER_MAX:
            raise ValueError(f"a chunk of {len(data)} bytes is more than a column can hold")
        self.data = data
        self.size = len(data)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._arrow = pa.py_buffer(data)

    def at(self, positions: Positions) -> npt.NDArray[np.uint8]:
        """The byte at each position; 0 where the chunk has ended by then."""
        last = self.size - 1
        if positions.size and int(positions.max()) > last:
            found = self.bytes[np.minimum(positions, last)]
            found[positions > last] = 0
            return found
        return self.bytes[positions]

    def numbers(self, positions: Positions, dtype: str) -> Positions:
        """The number of this type at each position, aligned or not; 0 past the end."""
        kind = np.dtype(dtype)
        last = self.size - kind.itemsize
        everywhere: npt.NDArray[Any] = np.ndarray(
            (max(last + 1, 0),), kind, buffer=self.data, strides=(1,)
        )
        if last < 0:
            return np.zeros(len(positions), np.int64)
        if positions.size and int(positions.max()) > last:
            found = everywhere[np.minimum(positions, last)].astype(np.int64)
            found[positions > last] = 0
            return found
        return everywhere[positions].astype(np.int64)

    def rows(self, positions: Positions, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The structure at each position; each must lie within the chunk."""
        if not len(positions):
            return np.empty(0, dtype)
        # As bytes first: numpy copies bytes nine times as fast as structures.
        windows = np.lib.stride_tricks.sliding_window_view(self.bytes, dtype.itemsize)
        found: npt.NDArray[Any] = windows[positions].view(dtype)[:, 0]
        return found

    def column(
        self, starts: Positions, ends: Positions, known: Flags | None, kind: pa.DataType
    ) -> pa.Array:
        """A column of `kind`, string or binary, from spans that follow each other; null if not
        `known`. Unknown values have a place in the order, too."""
        count = len(starts)
        if not count:
            return pa.nulls(0, kind)
        edges = np.empty(2 * count, np.int32)
        edges[0::2] = starts
        edges[1::2] = ends
        parts = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(edges), self._arrow])
        chosen = np.arange(0, 2 * count, 2, dtype=np.int32)
        return pc.take(parts, numbers(chosen, pa.int32(), known), boundscheck=False)

    def are_texts(self, starts: Positions, ends: Positions) -> bool:
        """Is each of these spans, that follow each other, UTF-8?"""
        try:
            self.column(starts, ends, None, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            return False
        return True


# Not by `pa.array`, `pa.scalar` or `pa.repeat`: they import pandas if it is installed. That takes a
# worker half a second, and 10 ms after each task to look for garbage in it.


def numbers(values: npt.NDArray[Any], kind: pa.DataType, known: Flags | None = None) -> pa.Array:
    """A column of numbers or times that are in memory as Arrow has them; null where not `known`."""
    valid = None
    if known is not None and not known.all():
        valid = pa.py_buffer(np.packbits(known, bitorder="little").tobytes())
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [valid, data])


def texts(values: Sequence[str | None]) -> pa.Array:
    """A short column of texts."""
    parts = [(value or "").encode() for value in values]
    edges = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    known = np.array([value is not None for value in values], np.bool_)
    valid = pa.py_buffer(np.packbits(known, bitorder="little").tobytes())
    data = pa.py_buffer(b"".join(parts))
    return pa.Array.from_buffers(pa.string(), len(parts), [valid, pa.py_buffer(edges), data])


def merged(usual: pa.Array, odd: pa.Array, where: Positions) -> pa.Array:
    """A column with the values of `odd` put in at these places."""
    order = np.arange(len(usual), dtype=np.int64)
    order[where] = len(usual) + np.arange(len(odd))
    return pa.concat_arrays([usual, odd]).take(numbers(order, pa.int64()))

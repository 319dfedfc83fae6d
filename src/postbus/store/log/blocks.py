"""Where the batches of one fragment lie in one segment.

A block has 28 bytes for each batch, in columns: a million batches are held and searched as five
arrays, not as a million tuples. The same columns are the block's bytes in the segment's directory.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

_SIZES: Final = (8, 8, 4, 4, 4)
ENTRY_SIZE: Final = sum(_SIZES)


class Place(NamedTuple):
    """Where a batch lies, and what is known of it without reading it."""

    base: int
    count: int  # type: ignore[assignment]  # hides tuple.count, of no use here
    at: int
    segment: int
    position: int
    """Of its first byte in the segment."""
    length: int

    @property
    def end(self) -> int:
        """Offset after its last record."""
        return self.base + self.count


class Block:
    """Batches in the order of their offsets."""

    __slots__ = ("ats", "bases", "counts", "lengths", "positions")

    def __init__(self) -> None:
        self.bases, self.ats = array("q"), array("q")
        self.counts, self.positions, self.lengths = array("I"), array("I"), array("I")

    def __len__(self) -> int:
        return len(self.bases)

    def append(self, base: int, count: int, at: int, position: int, length: int) -> None:
        self.bases.append(base)
        self.ats.append(at)
        self.counts.append(count)
        self.positions.append(position)
        self.lengths.append(length)

    def place(self, index: int, segment: int) -> Place:
        return Place(
            self.bases[index],
            self.counts[index],
            self.ats[index],
            segment,
            self.positions[index],
            self.lengths[index],
        )

    def holding(self, offset: int) -> int:
        """The index of the batch that holds an offset, or of the next batch."""
        index = bisect_right(self.bases, offset)
        if index and self.bases[index - 1] + self.counts[index - 1] > offset:
            return index - 1
        return index

    def columns(self) -> "Iterator[array[int]]":
        yield from (self.bases, self.ats, self.counts, self.positions, self.lengths)

    def pack(self) -> bytes:
        """The columns one after another, little-endian."""
        return b"".join([_little(column).tobytes() for column in self.columns()])


def unpack_block(data: bytes) -> Block:
    block = Block()
    count = len(data) // ENTRY_SIZE
    position = 0
    for column, size in zip(block.columns(), _SIZES, strict=True):
        column.frombytes(data[position : position + count * size])
        if sys.byteorder == "big":
            column.byteswap()
        position += count * size
    return block


def _little(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


class Run:
    """The batches of one fragment in one segment, without gaps: a block, or where the directory of
    a sealed segment has it."""

    __slots__ = (
        *("block", "block_checksum", "block_position", "count", "end", "first_at", "first_base"),
        *("fragment", "last_at", "last_sequence", "segment", "size"),
    )

    def __init__(self, fragment: int, segment: int, first_base: int, first_at: int) -> None:
        self.fragment = fragment
        self.segment = segment
        self.first_base = first_base
        self.end = first_base
        """Offset after the last record."""
        self.size = 0
        """Bytes of all batches."""
        self.first_at = first_at
        self.last_at = first_at
        self.last_sequence = 0
        """Of the frame with the last batch."""
        self.count = 0
        """Batches."""
        self.block: Block | None = Block()
        """None once the segment is sealed."""
        self.block_position = 0
        """In the segment, once it is sealed."""
        self.block_checksum = 0

    def append(
        self, sequence: int, base: int, count: int, at: int, position: int, length: int
    ) -> None:
        assert self.block is not None
        self.block.append(base, count, at, position, length)
        self.end = base + count
        self.size += length
        self.last_at = at
        self.last_sequence = sequence
        self.count += 1

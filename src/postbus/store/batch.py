"""The byte form of a record batch: what one fragment adds to its journal in one commit.

    magic    4 bytes  "PBRB"
    version  u32      2
    checksum u32      CRC-32 of every byte that follows
    fragment u64      \\
    epoch    u64       | who wrote it, and where it belongs: a batch that ends up in another
    base     u64       | place than it was written for is found out
    at       i64      /  time of the commit, ms since the Unix epoch
    count    u32      number of records
    length   u32      bytes that follow the header
    then each record: its length (u32) and its bytes

All numbers are big-endian. A batch is one block: it is checked as a whole, and a body inside it
is found by its position from the first byte of the block.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

MAGIC: Final = b"PBRB"
VERSION: Final = 2
LENGTH_MAX: Final = 900_000_000
"""SQLite takes values up to 1,000,000,000 bytes."""

_PREFIX: Final = struct.Struct(">4sII")
_FIELDS: Final = struct.Struct(">QQQqII")
_SIZE: Final = struct.Struct(">I")
HEADER_SIZE: Final = _PREFIX.size + _FIELDS.size
RECORD_PREFIX_SIZE: Final = _SIZE.size
"""Bytes before each record: the engine computes where a body lies when it writes it."""


class BatchCorrupt(Exception):
    """These bytes are not the record batch that was written."""


class Header(NamedTuple):
    fragment: int
    epoch: int
    base: int
    """Offset of the first record."""
    at: int
    """Time of the commit, Instant."""
    record_count: int
    length: int
    """Bytes after the header."""


class StoredBatch(NamedTuple):
    """A batch as a journal gives it back."""

    base: int
    data: bytes


def pack(
    fragment: int, epoch: int, base: int, at: int, records: Sequence[bytes]
) -> tuple[bytes, list[int]]:
    """Return the batch and where each record starts in it."""
    lengths = list(map(len, records))
    count = len(lengths)
    length = sum(lengths) + _SIZE.size * count
    if not 0 < length <= LENGTH_MAX:
        raise ValueError(f"a batch of {count} records and {length} bytes cannot be stored")
    fields = _FIELDS.pack(fragment, epoch, base, at, count, length)
    pieces: list[bytes] = [b""] * (2 * count + 2)
    pieces[1] = fields
    pieces[2::2] = map(_SIZE.pack, lengths)
    pieces[3::2] = records
    # The checksum stands before the bytes it covers, and is summed over the pieces. Joining them
    # first would hold the batch twice. And above 5 KB `crc32` releases the interpreter's lock,
    # which takes longer to get back than summing a record.
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    pieces[0] = _PREFIX.pack(MAGIC, VERSION, checksum)
    positions = list(accumulate(map(_SIZE.size.__add__, lengths), initial=HEADER_SIZE + 4))
    positions.pop()
    return b"".join(pieces), positions


def unpack(data: bytes) -> Header:
    """Check the whole batch and return its header."""
    header = unpack_at(data, 0)
    if header.length != len(data) - HEADER_SIZE:
        raise _wrong_length(header, len(data) - HEADER_SIZE)
    return header


def unpack_at(data: bytes, at: int) -> Header:
    """The same for a batch that begins at a position, with others behind it."""
    header = header_at(data, at)
    there = len(data) - at - HEADER_SIZE
    if header.length > there:
        raise _wrong_length(header, there)
    _, _, checksum = _PREFIX.unpack_from(data, at)
    end = at + HEADER_SIZE + header.length
    if crc32(memoryview(data)[at + _PREFIX.size : end]) != checksum:
        raise BatchCorrupt(f"the record batch at offset {header.base} fails its checksum")
    return header


def header_at(data: bytes, at: int) -> Header:
    """The header alone, of a known format. For code that hands batches on: it does not check that
    all bytes follow, nor their checksum."""
    left = len(data) - at
    if left < HEADER_SIZE:
        raise BatchCorrupt(f"a record batch of {left} bytes is shorter than its header")
    magic, version, _ = _PREFIX.unpack_from(data, at)
    if magic != MAGIC:
        raise BatchCorrupt(f"a record batch starts with {magic!r}")
    if version != VERSION:
        raise BatchCorrupt(f"a record batch has format {version}, known is {VERSION}")
    return Header._make(_FIELDS.unpack_from(data, at + _PREFIX.size))


def _wrong_length(header: Header, there: int) -> BatchCorrupt:
    return BatchCorrupt(f"a record batch was written with {header.length} bytes, {there} are there")


def starts_of(data: bytes, at: int, header: Header) -> list[int]:
    """Where each record of the batch at a position begins. For code that reads many records: it
    copies none, and does not check the checksum."""
    position = at + HEADER_SIZE
    end = position + header.length
    starts: list[int] = []
    # Byte by byte: compiled that takes a quarter of the time of `struct`.
    for _ in range(header.record_count):
        start = position + RECORD_PREFIX_SIZE
        if start > end:
            raise BatchCorrupt("a record batch ends before the last of its records")
        size = data[position] << 24 | data[position + 1] << 16
        size |= data[position + 2] << 8 | data[position + 3]
        starts.append(start)
        position = start + size
    if position != end:
        raise BatchCorrupt(f"the records of the batch at offset {header.base} do not fill it")
    return starts


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The position and the bytes of each record, in order.

    Does not look at the checksum: `unpack` the batch first, once.
    """
    _, _, _, _, count, length = _FIELDS.unpack_from(data, _PREFIX.size)
    end = HEADER_SIZE + length
    position = HEADER_SIZE
    for _ in range(count):
        if position + _SIZE.size > end:
            raise BatchCorrupt(f"a record batch of {count} records ends before the last of them")
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if position + size > end:
            raise BatchCorrupt(f"a record of {size} bytes goes past the end of its batch")
        yield position, data[position : position + size]
        position += size
    if position != end:
        raise BatchCorrupt(f"{end - position} bytes follow the last record of a batch")

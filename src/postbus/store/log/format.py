"""The bytes of a segment of the commit log.

A segment begins with a block of HEADER_BLOCK bytes:

    magic "PBLS" | format u32 | store id 16 bytes | number u64 | generation u64
    | first sequence u64 | checksum u32

Frames follow, each on a boundary of 8 bytes. A frame is one commit:

    magic "PBCF" | parts u32 | sequence u64 | synced u64 | generation u64 | length u64
    | contents u32 | checksum u32
    then the parts: record batches as `postbus.store.batch` packs them

All numbers are big-endian. `synced` is the highest sequence that was known to be durable when the
frame was written. `contents` sums up the checksums of the batches, and `checksum` the header of the
segment and the frame's own header. So a frame fits these batches only, in this use of the file
only: neither a frame nor a batch that an earlier use has left there passes. A batch sums up its own
bytes, so no byte is summed twice.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from postbus.store import batch

SEGMENT_MAGIC: Final = b"PBLS"
FRAME_MAGIC: Final = b"PBCF"
FORMAT: Final = 1
HEADER_BLOCK: Final = 4096
STORE_ID_SIZE: Final = 16
ALIGNMENT: Final = 8

_SEGMENT: Final = struct.Struct(">4sI16sQQQ")
_FRAME: Final = struct.Struct(">4sIQQQQI")
_CHECKSUM: Final = struct.Struct(">I")
SEGMENT_HEADER_SIZE: Final = _SEGMENT.size + _CHECKSUM.size
FRAME_HEADER_SIZE: Final = _FRAME.size + _CHECKSUM.size
_BATCH_CHECKSUM: Final = slice(8, 12)


class NotASegment(Exception):
    """No log wrote this header."""


class SegmentHeader(NamedTuple):
    store: bytes
    """The id of the store, 16 random bytes."""
    number: int
    generation: int
    """Rises whenever the log is opened for writing."""
    first_sequence: int

    @property
    def seed(self) -> int:
        """What the checksums of this segment's frames begin with."""
        return crc32(_SEGMENT.pack(SEGMENT_MAGIC, FORMAT, *self))


class FrameHeader(NamedTuple):
    parts: int
    sequence: int
    synced: int
    generation: int
    length: int
    """Bytes of its batches."""
    contents: int


def pack_segment(header: SegmentHeader) -> bytes:
    fields = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT, *header)
    return (fields + _CHECKSUM.pack(crc32(fields))).ljust(HEADER_BLOCK, b"\0")


def unpack_segment(data: bytes) -> SegmentHeader:
    if len(data) < SEGMENT_HEADER_SIZE:
        raise NotASegment(f"{len(data)} bytes are too few for a header")
    magic, version, *fields = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise NotASegment(f"it begins with {magic!r}")
    if _CHECKSUM.unpack_from(data, _SEGMENT.size) != (crc32(data[: _SEGMENT.size]),):
        raise NotASegment("its header fails its checksum")
    if version != FORMAT:
        raise NotASegment(f"it has format {version}, known is {FORMAT}")
    return SegmentHeader._make(fields)


def pack_frame(
    segment: SegmentHeader, seed: int, sequence: int, synced: int, batches: Sequence[bytes]
) -> list[bytes]:
    """The pieces of a frame, padded to the next boundary."""
    length = sum(map(len, batches))
    contents = crc32(b"".join([each[_BATCH_CHECKSUM] for each in batches]))
    header = (len(batches), sequence, synced, segment.generation, length, contents)
    fields = _FRAME.pack(FRAME_MAGIC, *header)
    pieces = [fields + _CHECKSUM.pack(crc32(fields, seed)), *batches]
    if length % ALIGNMENT:
        pieces.append(bytes(ALIGNMENT - length % ALIGNMENT))
    return pieces


def frame_size(length: int) -> int:
    """Bytes that a frame takes, for batches of this length together."""
    return FRAME_HEADER_SIZE + aligned(length)


def aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def frame_header_at(segment: SegmentHeader, seed: int, data: bytes, at: int) -> FrameHeader | None:
    """The header of a frame that was written into this use of the segment; None where none is."""
    end = at + _FRAME.size
    if len(data) < end + _CHECKSUM.size or data[at : at + 4] != FRAME_MAGIC:
        return None
    if _CHECKSUM.unpack_from(data, end) != (crc32(data[at:end], seed),):
        return None
    header = FrameHeader._make(_FRAME.unpack_from(data, at)[1:])
    return header if header.generation == segment.generation else None


def batches_in(header: FrameHeader, body: bytes) -> list[tuple[int, batch.Header]] | None:
    """The position of each batch in the body of a frame, and its header. None unless the body is
    whole: it has the batches that the frame was written with, and each passes its checksum."""
    found: list[tuple[int, batch.Header]] = []
    checksums: list[bytes] = []
    position = 0
    try:
        for _ in range(header.parts):
            each = batch.unpack_at(body, position)
            found.append((position, each))
            checksums.append(body[position + 8 : position + 12])
            position += batch.HEADER_SIZE + each.length
    except batch.BatchCorrupt:
        return None
    is_whole = position == header.length and crc32(b"".join(checksums)) == header.contents
    return found if is_whole else None

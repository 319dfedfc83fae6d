"""The frames of a segment, one by one, as far as they are whole."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from postbus.store import batch
from postbus.store.log.format import (
    ALIGNMENT,
    FRAME_HEADER_SIZE,
    FRAME_MAGIC,
    HEADER_BLOCK,
    FrameHeader,
    batches_in,
    frame_header_at,
    frame_size,
)
from postbus.store.log.segments import Segment, Segments

CHUNK_BYTES: Final = 4 << 20


class Frame(NamedTuple):
    position: int
    header: FrameHeader
    batches: list[tuple[int, batch.Header]]
    """Each batch and its position in the segment."""

    @property
    def size(self) -> int:
        return frame_size(self.header.length)


def whole_frames(segments: Segments, segment: Segment, limit: int) -> Iterator[Frame]:
    """The frames from the first on, in order of their sequences without a gap: up to the first that
    is not whole, or that has the sequence `limit`."""
    position, sequence = HEADER_BLOCK, segment.header.first_sequence
    while sequence < limit:
        head = segments.read(segment.number, position, FRAME_HEADER_SIZE)
        header = frame_header_at(segment.header, segment.seed, head, 0)
        if header is None or header.sequence != sequence:
            return
        start = position + FRAME_HEADER_SIZE
        found = batches_in(header, segments.read(segment.number, start, header.length))
        if found is None:
            return
        yield Frame(position, header, [(start + at, each) for at, each in found])
        position += frame_size(header.length)
        sequence += 1


def synced_behind(segments: Segments, segment: Segment, position: int) -> int:
    """The highest sequence that any frame from a position on knew to be durable; 0 without any.

    A header is enough: the log wrote it when all of these frames were on the disk.
    """
    highest = 0
    while data := segments.read(segment.number, position, CHUNK_BYTES + FRAME_HEADER_SIZE):
        at = data.find(FRAME_MAGIC)
        while 0 <= at < CHUNK_BYTES:
            if at % ALIGNMENT == 0:
                header = frame_header_at(segment.header, segment.seed, data, at)
                if header is not None:
                    highest = max(highest, header.synced)
            at = data.find(FRAME_MAGIC, at + 1)
        position += CHUNK_BYTES
    return highest

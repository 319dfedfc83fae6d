"""Protocol headers and frames, cut out of the byte stream and made (AMQP 2.2 and 2.3)."""

import struct
from collections.abc import Iterator

from postbus.amqp.codec.types import Encodable
from postbus.amqp.faults import FramingError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
TLS_HEADER = b"AMQP\x02\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

FRAME_AMQP = 0
FRAME_SASL = 1

# AMQP 2.3.1: four bytes of size, the body's offset in words, the kind, the channel.
_FRAME_HEADER = struct.Struct(">IBBH")
FRAME_HEADER_SIZE = 8

# AMQP 2.8.4: every peer must take frames of this size.
FRAME_SIZE_MIN = 512

# AMQP 2.4.5: what an idle connection sends to show that it lives.
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

# The kind, the channel (no meaning in a SASL frame) and the body of a frame.
Frame = tuple[int, int, bytes]


class FrameReader:
    """Cuts what a peer sends into protocol headers and frames, however the bytes were split.

    The caller asks for what the protocol expects next, so a peer may pipeline a protocol header
    and frames in one write. A frame whose header claims more than `max_frame_size` is refused
    before its body is kept. Each byte is copied a bounded number of times: frames are sliced out
    of the chunk they came in, and only one that spans chunks is put together aside.
    """

    __slots__ = ("_chunk", "_fed", "_offset", "_partial", "bound", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self.bound = "agreed"  # what the peer is told of the bound
        self._fed: list[bytes] = []  # chunks not begun
        self._chunk = b""  # the chunk being read
        self._offset = 0  # how far it was read
        self._partial = bytearray()  # the begin of what spans chunks; then nothing before it waits

    def feed(self, data: bytes) -> None:
        """Add bytes that came from the peer."""
        if data:
            self._fed.append(data)

    @property
    def buffered(self) -> int:
        """How many bytes were fed and not yet returned."""
        held = len(self._partial) + len(self._chunk) - self._offset
        return held + sum(map(len, self._fed)) if self._fed else held

    def next_header(self) -> bytes | None:
        """Return the eight bytes of a protocol header, or None until all have come."""
        if not self._gather(FRAME_HEADER_SIZE):
            return None
        header = bytes(self._partial)
        self._partial = bytearray()
        return header

    def next_frame(self) -> Frame | None:
        """Return the next frame, or None until all of it has come."""
        if not self._partial:
            chunk = self._chunk
            offset = self._offset
            left = len(chunk) - offset
            if left >= FRAME_HEADER_SIZE:
                size, words, kind, channel = _FRAME_HEADER.unpack_from(chunk, offset)
                start = words * 4
                if start < FRAME_HEADER_SIZE or not start <= size <= self.max_frame_size:
                    raise self._refusal(size, start)
                if left >= size:
                    self._offset = end = offset + size
                    return kind, channel, chunk[offset + start : end]
            elif left == 0 and self._fed:
                self._next_chunk()
                return self.next_frame()
        return self._next_spanning_frame()

    def __iter__(self) -> Iterator[Frame]:
        """Yield each complete frame; more may be fed in between."""
        while (frame := self.next_frame()) is not None:
            yield frame

    def _next_spanning_frame(self) -> Frame | None:
        if not self._gather(FRAME_HEADER_SIZE):
            return None
        size, words, kind, channel = _FRAME_HEADER.unpack_from(self._partial)
        start = words * 4
        if start < FRAME_HEADER_SIZE or not start <= size <= self.max_frame_size:
            raise self._refusal(size, start)
        if not self._gather(size):
            return None
        body = bytes(self._partial[start:])
        self._partial = bytearray()
        return kind, channel, body

    def _gather(self, size: int) -> bool:
        """Move bytes into _partial until it holds size; say whether it does."""
        partial = self._partial
        while (missing := size - len(partial)) > 0:
            if self._offset == len(self._chunk):
                if not self._fed:
                    self._chunk = b""  # an idle connection holds on to nothing
                    self._offset = 0
                    return False
                self._next_chunk()
            piece = self._chunk[self._offset : self._offset + missing]
            self._offset += len(piece)
            partial += piece
        return True

    def _next_chunk(self) -> None:
        fed = self._fed
        self._chunk = fed[0] if len(fed) == 1 else b"".join(fed)
        self._offset = 0
        fed.clear()

    def _refusal(self, size: int, start: int) -> FramingError:
        if size > self.max_frame_size:
            return FramingError(f"a frame of {size} bytes, {self.max_frame_size} {self.bound}")
        return FramingError(f"a frame of {size} bytes that starts its body at {start}")


def encode_frame(
    channel: int, performative: Encodable, payload: bytes = b"", kind: int = FRAME_AMQP
) -> bytes:
    """Return a whole frame."""
    out = bytearray(FRAME_HEADER_SIZE)
    performative.encode_into(out)
    out += payload
    try:
        _FRAME_HEADER.pack_into(out, 0, len(out), 2, kind, channel)
    except struct.error:
        raise ValueError(f"no frame has kind {kind} and channel {channel}") from None
    return bytes(out)

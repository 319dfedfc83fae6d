"""A WebSocket as the transport of an AMQP connection.

To the TCP or TLS connection below, it is the protocol; to the gateway above, it is the transport.
The `websockets` library reads and writes the frames. Here they become a stream of bytes again,
because a frame may hold many AMQP frames or a part of one. Nothing waits here: the bounds and
pauses of the two neighbours apply as if there were no WebSocket.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol

from postbus.net.budgets import HELD_MIN
from postbus.net.places import Place

# The parser makes an object of every frame, and a frame can be as short as six bytes. So data is
# parsed in pieces, and after very many frames the other connections get their turn.
_PIECE_BYTES: Final = 4_096
_FRAMES_AT_ONCE: Final = 512
# Python's async client refuses frames of more than 4 MiB; Azure sends frames of at most this size.
_FRAME_BYTES: Final = 65_536
STRANGER_BYTES: Final = 65_536
"""The largest frame of a peer that has not proven its identity."""
_HEAD_BYTES: Final = 14  # RFC 6455 5.2: of a frame, with its mask
_REASON_CHARS: Final = 120  # RFC 6455 5.5
LINGER_S: Final = 2.0
CLOSE_ANSWER_S: Final = 2.0
"""How long a peer may take for its side of the closing handshake."""

_log = logging.getLogger("websockets.frames")
_log.setLevel(logging.CRITICAL)

Refused = Callable[[str, str], None]
"""Called with a reason for the meter and the text that the peer was told."""


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """One upgraded connection."""

    def __init__(
        self,
        below: asyncio.Transport,
        above: asyncio.Protocol,
        place: Place,
        frame_max_bytes: int,
        refused: Refused,
    ) -> None:
        super().__init__()
        self._below = below
        self._above = above
        self._place = place
        self._refused = refused
        # A message may have any number of fragments: each is passed on when it comes.
        self._frames = ServerProtocol(
            state=State.OPEN, max_size=(None, frame_max_bytes), logger=_log
        )
        self._rest = b""
        """Bytes that were read and not parsed yet."""
        self._paused = False
        """The gateway above has paused reading."""
        self._closing = False
        self._hung_up = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, rest: bytes) -> None:
        """Take over the connection; `rest` are the bytes right behind the request."""
        self._below.set_protocol(self)
        self._above.connection_made(self)
        if rest:
            self.data_received(rest)

    # Called by the connection below

    def data_received(self, data: bytes) -> None:
        payload: list[Any] = []
        start = frame_count = 0
        while start < len(data) and not self._hung_up:
            self._frames.receive_data(data[start : start + _PIECE_BYTES])
            start += _PIECE_BYTES
            frame_count += self._take(payload)
            self._check_stranger()
            self._write_out()
            if frame_count > _FRAMES_AT_ONCE and start < len(data):
                self._rest = data[start:]
                self._below.pause_reading()
                asyncio.get_running_loop().call_soon(self._go_on)
                break
        # One call, as without frames: if the gateway pauses in this call, it gets nothing more.
        if payload and not self._closing:
            self._above.data_received(b"".join(payload))
        if self._hung_up and not self._closing:
            self._closing = True
            self._above.eof_received()
        self._weigh()

    def _weigh(self) -> None:
        """Bytes that are not passed on yet count on the connection's account."""
        place = self._place
        place.framed_bytes = len(self._frames.reader.buffer) + len(self._rest)
        if place.framed_bytes > HELD_MIN or place.holds:
            place.weigh()

    def _go_on(self) -> None:
        """Parse the rest of the data, then resume reading."""
        if self._paused or self._below.is_closing():
            return
        rest, self._rest = self._rest, b""
        if rest:
            self.data_received(rest)
        if not (self._rest or self._paused or self._below.is_closing()):
            self._below.resume_reading()

    def eof_received(self) -> bool:
        if not self._closing:
            self._closing = True
            self._above.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        self._above.connection_lost(exc)

    def _forget(self) -> None:
        """Drop the rest of the data. Until the parser is closed, it keeps this connection alive."""
        self._hung_up = True
        self._rest = b""
        self._frames.parser.close()
        self._frames.reader.buffer.clear()

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    # Called by the gateway above

    def write(self, data: Any) -> None:
        if self._closing or self._hung_up:
            return
        if len(data) <= _FRAME_BYTES:
            self._frames.send_binary(data)
        else:
            view = memoryview(data)
            for start in range(0, len(view), _FRAME_BYTES):
                self._frames.send_binary(view[start : start + _FRAME_BYTES])
        self._below.write(b"".join(self._frames.data_to_send()))

    def close(self) -> None:
        """Send a close, and wait for the peer's; all other data from the peer is dropped."""
        if self._closing or self._hung_up:
            self._closing = True
            return
        self._frames.send_close(CloseCode.NORMAL_CLOSURE)
        self._below.write(b"".join(self._frames.data_to_send()))
        self._closing = True
        self._paused = False
        self._expect_the_end()
        self._go_on()

    def turn_away(self, text: str) -> None:
        """Close with "try again later", and drop all further data."""
        if not (self._closing or self._hung_up):
            self._frames.send_close(CloseCode.TRY_AGAIN_LATER, text[:_REASON_CHARS])
            self._below.write(b"".join(self._frames.data_to_send()))
        self._closing = True
        self._forget()
        self._below.close()
        self._expect_the_end()

    def abort(self) -> None:
        self._closing = True
        self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._rest:
            asyncio.get_running_loop().call_soon(self._go_on)
        elif not self._below.is_closing():
            self._below.resume_reading()

    def is_reading(self) -> bool:
        return not self._paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def can_write_eof(self) -> bool:
        return False

    # Frames

    def _take(self, payload: list[Any]) -> int:
        """Add the payload of the frames that are whole now; returns how many frames there were."""
        frames = self._frames.events_received()
        for frame in frames:
            assert isinstance(frame, Frame)
            if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
                payload.append(frame.data)
            elif frame.opcode is Opcode.TEXT:
                text = "AMQP travels in binary frames"
                self._frames.fail(CloseCode.UNSUPPORTED_DATA, text)
                self._refused("websocket_text", text)
                return len(frames)
        fault = self._frames.parser_exc
        if fault is not None and not self._closing:
            self._refused("websocket_frame", str(fault))
        return len(frames)

    def _check_stranger(self) -> None:
        # Not by the library's own bound, which it fixes for the next frame before the peer logs in.
        if self._place.known or len(self._frames.reader.buffer) <= STRANGER_BYTES + _HEAD_BYTES:
            return
        text = f"before login a frame may have {STRANGER_BYTES} bytes"
        self._frames.fail(CloseCode.MESSAGE_TOO_BIG, text)
        self._refused("websocket_frame", text)

    def _write_out(self) -> None:
        """Write pongs and closes, and hang up when the closing handshake is over."""
        pieces = self._frames.data_to_send()
        if pieces and not self._closing:
            # After our own close there is nothing to say. Least of all to a peer that sends pings
            # without end and reads nothing.
            self._below.write(b"".join(pieces))
        if SEND_EOF in pieces:
            self._hung_up = True
            self._hang_up()

    def _hang_up(self) -> None:
        # With bytes of the peer unread, close() would reset the connection, and the peer might
        # never see the reason. TLS cannot close one direction alone; there the shutdown of TLS has
        # the same effect.
        if self._below.can_write_eof():
            self._below.write_eof()
        else:
            self._below.close()
        self._expect_the_end()

    def _expect_the_end(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(CLOSE_ANSWER_S, self._below.abort)


def part_from(transport: asyncio.Transport, last_words: bytes, text: str, *, lingers: bool) -> None:
    """Close any connection that the broker gives up.

    With `lingers` the peer has a moment to read the reason. With bytes of the peer unread, close()
    would reset the connection.
    """
    if last_words:
        transport.write(last_words)
    if isinstance(transport, WebSocket):
        transport.turn_away(text)
        return
    if lingers and transport.can_write_eof():
        transport.write_eof()
    else:
        transport.close()
    asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

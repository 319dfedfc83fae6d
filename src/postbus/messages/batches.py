"""The messages of a batch, read as far as a turn of the event loop has time.

Every section but the body is decoded when a message comes in (`postbus.messages.envelope`). A batch
has room for a million bytes of them, which takes longer than everybody else may wait.
"""

from typing import Final

from postbus.amqp.sections import split_batch
from postbus.broker.message import Message
from postbus.errors import InvalidArgument, MessageSizeExceeded
from postbus.messages.envelope import DECODED, HEADER_SIZE_MAX, read_message
from postbus.model.limits import BATCH_SIZE_MAX

BATCH_FORMAT: Final = 0x80013700
BATCH_COUNT_MAX: Final = 4_500
"""Messages in a batch (semantics B §2)."""
DECODED_PER_TURN: Final = 131_072
"""Of `DecodeMeter.units`: some 13 ms, and the message that goes beyond it takes as long at most."""


class BatchReader:
    """Several messages, the first of which have been read. All are taken together, or none."""

    __slots__ = ("_header_size_max", "_parts", "_property_size_max", "messages")

    def __init__(
        self, parts: list[bytes], property_size_max: int, header_size_max: int = HEADER_SIZE_MAX
    ) -> None:
        self._parts = parts
        self._property_size_max = property_size_max
        self._header_size_max = header_size_max
        self.messages: list[Message] = []

    def again(self) -> "BatchReader":
        """The same messages as they came, all read."""
        reader = BatchReader(self._parts, self._property_size_max, self._header_size_max)
        while not reader.read():
            pass
        return reader

    def read(self) -> bool:
        """Read on; says whether that was all. Raises the errors of `read_message`."""
        parts, messages = self._parts, self.messages
        enough = DECODED.units + DECODED_PER_TURN
        while len(messages) < len(parts):
            if DECODED.units > enough:
                return False
            part = parts[len(messages)]
            messages.append(read_message(part, self._property_size_max, self._header_size_max))
        return True


def open_batch(
    payload: bytes,
    message_format: int,
    property_size_max: int,
    header_size_max: int = HEADER_SIZE_MAX,
) -> BatchReader:
    """The messages of a transfer that has several; none has been read."""
    if message_format != BATCH_FORMAT:
        raise InvalidArgument(f"The message format {message_format:#x} is not known.")
    if len(payload) > BATCH_SIZE_MAX:
        raise MessageSizeExceeded(
            f"The batch has {len(payload)} bytes, {BATCH_SIZE_MAX} bytes are allowed. "
            "A larger message is sent by itself."
        )
    parts = split_batch(payload, BATCH_COUNT_MAX)
    if not parts:
        raise InvalidArgument("The batch holds no message.")
    return BatchReader(parts, property_size_max, header_size_max)

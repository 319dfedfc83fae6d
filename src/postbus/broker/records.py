"""Record v2: one durable event of one message, and its byte form.

A record is absolute: it holds the state after the event, never a difference. So replaying it over a
state that has it already changes nothing. Every record describes its message well enough that a
reader of the change feed needs no join. It has number, enqueued time, ids and delivery count, and
an outcome has the time of the delivery (R-PIPE-02).

    kind flags lane from_lane | subqueue from_subqueue | number from_number | delivered_at
    base position length | details (see postbus.broker.message) | body

Only records that bring a body carry a body; the others hold its position.
"""

import struct
from typing import Final

from postbus.broker.message import (
    DETAILS,
    NO_SESSION,
    CorruptRow,
    Message,
    decode_details,
    encode_details,
    has_extras,
)
from postbus.broker.record_kinds import BRINGS_BODY, RecordKind
from postbus.model.times import Instant

_HEAD_FIELDS: Final = "BBBBIIQQqqII"
_HEAD = struct.Struct("<" + _HEAD_FIELDS)
_USUAL = struct.Struct("<" + _HEAD_FIELDS + DETAILS)
"""Head and details of a message that nothing was put on, in one go: each is written twice."""
HEAD_SIZE: Final = _HEAD.size


class Record:
    """A record read back: for replay and for the change feed."""

    __slots__ = ("body_at", "delivered_at", "from_lane", "from_number", "from_subqueue", "kind",
                 "message")  # fmt: skip

    def __init__(
        self,
        kind: RecordKind,
        message: Message,
        from_subqueue: int,
        from_lane: int,
        from_number: int,
        delivered_at: Instant,
        body_at: int,
    ) -> None:
        self.kind = kind
        self.message = message
        """The message as it is after the event; for a removal, as it was before."""
        self.from_subqueue = from_subqueue
        self.from_lane = from_lane
        self.from_number = from_number
        self.delivered_at = delivered_at
        self.body_at = body_at
        """Where the body starts inside the record; -1 when the record brings none."""


def encode(
    kind: RecordKind,
    message: Message,
    from_subqueue: int,
    from_lane: int,
    from_number: int,
) -> bytes:
    """The record of an event that needs no body."""
    if not has_extras(message):
        return _encode_usual(
            kind,
            message,
            from_subqueue,
            from_lane,
            from_number,
            message.base,
            message.position,
            b"",
        )
    return encode_plainly(kind, message, from_subqueue, from_lane, from_number)


def _encode_usual(
    kind: RecordKind,
    message: Message,
    from_subqueue: int,
    from_lane: int,
    from_number: int,
    base: int,
    position: int,
    body: bytes,
) -> bytes:
    message_id = message.message_id.encode()
    session_id, session_length = b"", NO_SESSION
    if message.session_id is not None:
        session_id = message.session_id.encode()
        session_length = len(session_id)
    return b"".join(
        (
            _USUAL.pack(
                kind,
                0,
                message.lane,
                from_lane,
                message.subqueue,
                from_subqueue,
                message.number,
                from_number,
                message.delivered_at,
                base,
                position,
                message.length,
                message.enqueued_at,
                message.ttl,
                message.delivery_count,
                message.enqueue_number,
                message.header_size,
                len(message_id),
                session_length,
                0,
            ),
            message_id,
            session_id,
            body,
        )
    )


def encode_plainly(
    kind: RecordKind,
    message: Message,
    from_subqueue: int,
    from_lane: int,
    from_number: int,
) -> bytes:
    """As `encode`, part by part, for a message with any fields."""
    return _HEAD.pack(
        kind,
        0,
        message.lane,
        from_lane,
        message.subqueue,
        from_subqueue,
        message.number,
        from_number,
        message.delivered_at,
        message.base,
        message.position,
        message.length,
    ) + encode_details(message)


def encode_with_body(kind: RecordKind, message: Message, body: bytes) -> bytes:
    """The record of an event that brings the body; it ends with it."""
    if not has_extras(message):
        subqueue, lane, number = message.subqueue, message.lane, message.number
        return _encode_usual(kind, message, subqueue, lane, number, -1, 0, body)
    return encode_with_body_plainly(kind, message, body)


def encode_with_body_plainly(kind: RecordKind, message: Message, body: bytes) -> bytes:
    """As `encode_with_body`, part by part."""
    return b"".join(
        (
            _HEAD.pack(
                kind,
                0,
                message.lane,
                message.lane,
                message.subqueue,
                message.subqueue,
                message.number,
                message.number,
                message.delivered_at,
                -1,
                0,
                message.length,
            ),
            encode_details(message),
            body,
        )
    )


def subqueue_in(data: bytes) -> int:
    """The subqueue of a record's message, without reading the rest."""
    return int.from_bytes(data[4:8], "little")


def decode(data: bytes) -> Record:
    message = Message(None)
    try:
        (
            number_of_kind,
            flags,
            message.lane,
            from_lane,
            message.subqueue,
            from_subqueue,
            message.number,
            from_number,
            delivered_at,
            message.base,
            message.position,
            message.length,
        ) = _HEAD.unpack_from(data)
        kind = RecordKind(number_of_kind)
        end = decode_details(message, data, HEAD_SIZE)
    except (struct.error, ValueError) as error:
        raise CorruptRow(f"not a record: {error}") from error
    if flags:
        raise CorruptRow(f"record of kind {kind.name} has unknown flags {flags:#x}")
    body_at = end if kind in BRINGS_BODY else -1
    if len(data) != end + (message.length if body_at >= 0 else 0):
        raise CorruptRow(f"record of kind {kind.name} has {len(data)} bytes, not what it says")
    return Record(kind, message, from_subqueue, from_lane, from_number, delivered_at, body_at)

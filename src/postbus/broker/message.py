"""A message as the engine holds it: where its body lies, and the few facts a broker decides by.

The body is kept as received and never re-encoded; the engine does not look into it.
"""

import struct
from typing import Final, NamedTuple

from postbus.broker.subqueue_numbers import MAIN, kind_of, owner_of
from postbus.model.index_rows import Row
from postbus.model.times import Instant

# Lanes: the state a message is in. The numbers are part of the stored format; the first three are
# Azure's `x-opt-message-state` (wire §4.3).
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
OUTBOX: Final = 3
"""On its way to another entity; numbered in the order in which it leaves."""
PUBLISHING: Final = 4
"""In a topic that has not given it to all of its subscriptions yet."""
STATE: Final = 5
"""The state of a session, as the body of a row: not a message. A session has at most one."""
LANES: Final = (ACTIVE, DEFERRED, SCHEDULED, OUTBOX, PUBLISHING, STATE)

NO_TTL: Final = -1

# enqueued_at, ttl, delivery_count, enqueue_number, header size, and the lengths of message id,
# session id and extras
DETAILS: Final = "qqIQIHHI"
_DETAILS = struct.Struct("<" + DETAILS)
_EXTRA = struct.Struct("<BI")
NO_SESSION: Final = 0xFFFF  # the empty string is a legal session id (wire §3.3)

_PROPERTIES: Final = 1
_REASON: Final = 2
_DESCRIPTION: Final = 3
_SOURCE: Final = 4
_TRAIL: Final = 5
_PARTITION_KEY: Final = 6

# hops with _AGAIN and _SCHEDULED, size, cursor or former size, newest, destination, source fragment
# and number, envelope length
_TRAIL_HEAD = struct.Struct("<BIIIqqQI")
_AGAIN: Final = 0x80
_SCHEDULED: Final = 0x40

COPY_BYTES: Final = 128
"""The least that a copy in a subscription counts with, even if its body is small: it has a row."""


class CorruptRow(Exception):
    """Stored bytes that no version of the engine wrote."""


def no_body(message: "Message") -> CorruptRow:
    """The fault of a journal that lacks a body which the index has."""
    return CorruptRow(f"the journal has no body for message {message.number}")


class ForwardingInfo:
    """Facts that a message brings from a topic or from the entities that forwarded it. Most
    messages of a queue have none."""

    __slots__ = (
        "again",
        "annotations",
        "cursor",
        "destination",
        "envelope",
        "former_size",
        "hops",
        "newest",
        "origin",
        "origin_number",
        "scheduled",
        "size",
    )

    def __init__(self, size: int) -> None:
        self.size = size
        """Bytes it counts with: its body, and everything that was written to go with it."""
        self.former_size = 0
        """Bytes it counted with until now, while the record of a change is written or read; 0
        without a change. Stored in place of the cursor, which only a message in publishing has."""
        self.hops = 0
        """How often it was forwarded (semantics B §8)."""
        self.again = False
        """It was a dead letter and is sent again. Its destination may have seen its id, and does
        not take it for a duplicate."""
        self.scheduled = False
        """It was kept until it was due, and Azure's clients go on seeing that."""
        self.cursor = 0
        """The last subscription it was given to, while it is being published."""
        self.newest = 0
        """The last subscription when the topic took it: later subscriptions do not get it."""
        self.destination = -1
        """The fragment it is on its way to; -1 for none."""
        self.origin = -1
        """The outbox that it came here from; -1 for none."""
        self.origin_number = 0
        """Its number there. Without an outbox, its first number here if it has another now."""
        self.envelope = b""
        """The properties section in place of its own, where an action has changed it."""
        self.annotations = b""
        """The message annotations, likewise."""

    def next_leg(self, size: int) -> "ForwardingInfo":
        """The forwarding info for a copy of the message, or for the message in another entity."""
        other = ForwardingInfo(size)
        other.hops, other.again, other.scheduled = self.hops, self.again, self.scheduled
        other.envelope, other.annotations = self.envelope, self.annotations
        return other


class NewProperties(NamedTuple):
    """Application properties that replace the properties of a message."""

    section: bytes
    header_size: int
    """Bytes of everything but the body, with them."""
    values: int = 0
    """Values in the section: reading and writing it takes time with their number."""


class Message:
    """A message in one lane of one subqueue. It is made once, and moves by changing its fields."""

    __slots__ = (
        "base",
        "delivered_at",
        "delivery_count",
        "description",
        "enqueue_number",
        "enqueued_at",
        "header_size",
        "holder",
        "indexed",
        "is_ping",
        "lane",
        "last_base",
        "layout",
        "length",
        "locked_until",
        "message_id",
        "number",
        "partition_key",
        "position",
        "properties",
        "raw",
        "reason",
        "session_id",
        "source",
        "subqueue",
        "token",
        "trail",
        "ttl",
    )

    def __init__(
        self,
        raw: bytes | None,
        message_id: str = "",
        session_id: str | None = None,
        ttl: int = NO_TTL,
        scheduled_at: Instant = 0,
        header_size: int = 0,
    ) -> None:
        self.raw = raw
        self.message_id = message_id
        self.session_id = session_id
        self.partition_key: str | None = None
        """It chooses the fragment of each entity on the way, unless a session id does."""
        self.ttl = ttl
        # In lane SCHEDULED this is when the message will be enqueued.
        self.enqueued_at: Instant = scheduled_at
        self.header_size = header_size
        """Bytes of everything but the body: an entity that it is forwarded to asks again."""
        self.length = len(raw) if raw is not None else 0
        self.subqueue = MAIN
        self.lane = ACTIVE
        self.number = self.enqueue_number = self.delivery_count = 0
        # Where the body lies: offset of its record batch, and place in it.
        self.base = -1
        self.position = 0
        # Put on the message since it was received; None for most messages.
        self.properties: bytes | None = None
        self.reason: str | None = None
        self.description: str | None = None
        self.source: str | None = None
        self.trail: ForwardingInfo | None = None
        # Volatile: the lock, and facts that only the engine's memory has.
        self.token: bytes | None = None
        self.locked_until: Instant = 0
        self.delivered_at: Instant = 0
        self.holder = 0
        self.indexed = False
        # Offset of the batch with its newest record; -1 if it was read from the store.
        self.last_base = -1
        self.is_ping = False  # it only asks whether a message could be stored now
        # The layout of its bytes, noted by the code that made the message, to save a second look.
        self.layout: object = None

    def snapshot(self) -> "Message":
        """The message as it is now, for an answer that is written later. It is in no queue."""
        other = Message(self.raw, self.message_id, self.session_id, self.ttl, self.enqueued_at)
        other.partition_key = self.partition_key
        other.header_size, other.length = self.header_size, self.length
        other.subqueue, other.lane = self.subqueue, self.lane
        other.number, other.enqueue_number = self.number, self.enqueue_number
        other.delivery_count = self.delivery_count
        other.base, other.position, other.last_base = self.base, self.position, self.last_base
        other.properties, other.source = self.properties, self.source
        other.reason, other.description = self.reason, self.description
        other.trail, other.layout = self.trail, self.layout
        other.token, other.holder = self.token, self.holder
        other.locked_until, other.delivered_at = self.locked_until, self.delivered_at
        other.indexed, other.is_ping = self.indexed, self.is_ping
        return other

    @property
    def has_body(self) -> bool:
        """For code that tested `raw` before: a compiler would assume the earlier result."""
        return self.raw is not None

    @property
    def expires_at(self) -> Instant | None:
        return None if self.ttl < 0 else self.enqueued_at + self.ttl

    def expired(self, now: Instant) -> bool:
        """Time to live applies to the main queue only (R-DLQ-02)."""
        return 0 <= self.ttl <= now - self.enqueued_at and kind_of(self.subqueue) == MAIN

    @property
    def charge(self) -> int:
        """Bytes it counts with in the size of its entity, since the ledger weighed it last."""
        return self.length if self.trail is None else self.trail.size

    @property
    def first_number(self) -> int:
        """The number under which it came into this fragment, as in the record with the body. A
        scheduled message, a forwarded dead letter and a subscription's copy get others."""
        trail = self.trail
        if trail is not None and trail.origin < 0 and trail.origin_number:
            return trail.origin_number
        return self.number

    def keep_first_number(self) -> None:
        """Call this before the message gets another number."""
        first = self.first_number
        if self.trail is None:
            self.trail = ForwardingInfo(self.length)
        self.trail.origin, self.trail.origin_number = -1, first

    @property
    def weight(self) -> int:
        """Bytes it has to count with: its body, and everything that was put on it since."""
        size = 0
        if self.properties is not None:
            size += len(self.properties)
        if self.reason is not None:
            size += len(self.reason.encode())
        if self.description is not None:
            size += len(self.description.encode())
        if self.source is not None:
            size += len(self.source.encode())
        trail = self.trail
        if trail is None:
            return size + self.length
        size += len(trail.envelope) + len(trail.annotations)
        # The body of a copy may be kept for this copy alone.
        return size + max(self.length, COPY_BYTES if owner_of(self.subqueue) else 0)

    def weigh(self) -> None:
        """Have it count with its weight from now on."""
        trail = self.trail
        if trail is None and self.weight != self.length:
            trail = self.trail = ForwardingInfo(self.length)
        if trail is not None:
            trail.size = self.weight

    @property
    def wake_at(self) -> Instant | None:
        if self.lane == SCHEDULED:
            return self.enqueued_at
        # A deferred message is looked at when it is asked for, never swept (semantics B §3).
        if self.lane == ACTIVE and kind_of(self.subqueue) == MAIN and self.ttl >= 0:
            return self.enqueued_at + self.ttl
        return None


def encode_extras(message: Message) -> bytes:
    """Fields that only few messages have; empty for the rest."""
    parts: list[bytes] = []
    if message.properties is not None:
        parts += (_EXTRA.pack(_PROPERTIES, len(message.properties)), message.properties)
    for tag, text in (
        (_REASON, message.reason),
        (_DESCRIPTION, message.description),
        (_SOURCE, message.source),
        (_PARTITION_KEY, message.partition_key),
    ):
        if text is not None:
            data = text.encode()
            parts += (_EXTRA.pack(tag, len(data)), data)
    trail = message.trail
    if trail is not None:
        data = trail.envelope + trail.annotations
        parts += (
            _EXTRA.pack(_TRAIL, _TRAIL_HEAD.size + len(data)),
            _TRAIL_HEAD.pack(
                trail.hops
                | (_AGAIN if trail.again else 0)
                | (_SCHEDULED if trail.scheduled else 0),
                trail.size,
                trail.former_size or trail.cursor,
                trail.newest,
                trail.destination,
                trail.origin,
                trail.origin_number,
                len(trail.envelope),
            ),
            data,
        )
    return b"".join(parts)


def _decode_trail(value: bytes, lane: int) -> ForwardingInfo:
    trail = ForwardingInfo(0)
    (
        hops,
        trail.size,
        trail.cursor,
        trail.newest,
        trail.destination,
        trail.origin,
        trail.origin_number,
        length,
    ) = _TRAIL_HEAD.unpack_from(value)
    trail.hops = hops & ~(_AGAIN | _SCHEDULED)
    trail.again, trail.scheduled = hops & _AGAIN != 0, hops & _SCHEDULED != 0
    if lane != PUBLISHING:
        trail.former_size, trail.cursor = trail.cursor, 0
    end = _TRAIL_HEAD.size + length
    trail.envelope, trail.annotations = value[_TRAIL_HEAD.size : end], value[end:]
    return trail


def decode_extras(message: Message, data: bytes) -> None:
    at = 0
    while at < len(data):
        tag, length = _EXTRA.unpack_from(data, at)
        at += _EXTRA.size
        value = data[at : at + length]
        at += length
        if tag == _PROPERTIES:
            message.properties = value
        elif tag == _REASON:
            message.reason = value.decode()
        elif tag == _DESCRIPTION:
            message.description = value.decode()
        elif tag == _SOURCE:
            message.source = value.decode()
        elif tag == _PARTITION_KEY:
            message.partition_key = value.decode()
        elif tag == _TRAIL:
            message.trail = _decode_trail(value, message.lane)
        else:
            raise CorruptRow(f"unknown extra {tag} on message {message.number}")


def has_extras(message: Message) -> bool:
    return (
        message.properties is not None
        or message.reason is not None
        or message.description is not None
        or message.source is not None
        or message.trail is not None
        or message.partition_key is not None
    )


def encode_details(message: Message) -> bytes:
    """The part of a message that both its index row and its records carry."""
    message_id = message.message_id.encode()
    extras = encode_extras(message) if has_extras(message) else b""
    if message.session_id is None:
        session_id, session_length = b"", NO_SESSION
    else:
        session_id = message.session_id.encode()
        session_length = len(session_id)
    return b"".join(
        (
            _DETAILS.pack(
                message.enqueued_at,
                message.ttl,
                message.delivery_count,
                message.enqueue_number,
                message.header_size,
                len(message_id),
                session_length,
                len(extras),
            ),
            message_id,
            session_id,
            extras,
        )
    )


def decode_details(message: Message, data: bytes, at: int) -> int:
    """Fill in the fields that `encode_details` wrote; returns where it ended."""
    (
        message.enqueued_at,
        message.ttl,
        message.delivery_count,
        message.enqueue_number,
        message.header_size,
        id_length,
        session_length,
        extras_length,
    ) = _DETAILS.unpack_from(data, at)
    at += _DETAILS.size
    message.message_id = data[at : at + id_length].decode()
    at += id_length
    if session_length != NO_SESSION:
        message.session_id = data[at : at + session_length].decode()
        at += session_length
    if extras_length:
        decode_extras(message, data[at : at + extras_length])
        at += extras_length
    return at


def to_row(message: Message) -> Row:
    return Row(
        message.subqueue,
        message.lane,
        message.number,
        message.wake_at,
        message.base,
        message.position,
        message.length,
        encode_details(message),
        None if message.session_id is None else message.session_id.encode(),
    )


def from_row(row: Row) -> Message:
    message = Message(None)
    message.subqueue, message.lane, message.number = row.subqueue, row.lane, row.number
    message.base, message.position, message.length = row.base, row.position, row.length
    decode_details(message, row.data, 0)
    message.indexed = True
    return message

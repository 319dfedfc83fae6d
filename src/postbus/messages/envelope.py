"""Where an AMQP message meets the engine's: reading on the way in, writing on the way out.

The bare message is stored as received. A delivery gets a fresh header and annotations in front of
it. A section is written anew only if somebody changed properties, or a time to live applies.
"""

from functools import lru_cache
from secrets import token_hex
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

from postbus.amqp.codec import decode, encode, has_more_values
from postbus.amqp.codec.types import AmqpArray, Described, Int, Long, Symbol, Timestamp
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.outcomes import Modified, Rejected
from postbus.amqp.sections import (
    AnnotationLayout,
    Header,
    Properties,
    Sections,
    compacted,
    encode_application_properties,
    encode_delivery_annotations,
    encode_footer,
    encode_header,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_delivery_annotations,
    read_footer,
    read_header,
    read_ids,
    read_properties,
    scan,
)
from postbus.broker.message import NO_TTL, SCHEDULED, Message, NewProperties
from postbus.errors import InvalidArgument, InvalidOperation, MessageSizeExceeded
from postbus.messages.pings import is_ping
from postbus.model.limits import FEW_HEADER_BYTES, HEADER_VALUES_MAX
from postbus.model.times import MAX_TICKS, TICKS_PER_MS, Instant

HEADER_SIZE_MAX: Final = 1 << 20
"""Bytes of headers that are looked at, if the caller has no smaller bound."""
REASON_LENGTH_MAX: Final = 4_096
"""Characters of a dead letter's reason and description; the SDKs refuse more themselves."""
HEADERS_KEPT: Final = 1_024
"""Header sections with a remembered meaning; each has at most some 40 bytes."""

_TTL_INFINITE: Final = 0xFFFFFFFF
_TTL_LONGEST: Final = MAX_TICKS // TICKS_PER_MS
_EXPIRY_MAX: Final = 253_402_243_199_000
"""The last time at which a message is said to expire, in the year 9999. The SDKs have no later time
(.NET cannot read it)."""
_TIMESTAMP: Final = b"\x83"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"
_STATE: Final = Symbol("x-opt-message-state")
_SOURCE: Final = Symbol("x-opt-deadletter-source")
# Only where a message has another number than it was first given: by forwarding, that is.
_ENQUEUE_NUMBER: Final = Symbol("x-opt-enqueue-sequence-number")
_REASON: Final = "DeadLetterReason"
_DESCRIPTION: Final = "DeadLetterErrorDescription"
_DEAD_LETTER: Final = "com.microsoft:dead-letter"
# Delivery annotations that hold nothing but the lock token; the uuid follows.
_LOCK_TOKEN: Final = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
_NO_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71\xc1\x01\x00"
_LOCK_TOKEN_KEY: Final = Symbol("x-opt-lock-token")
_SHORT: Final = (type(None), bool, int, float, UUID)
_NESTED: Final = (list, dict, AmqpArray, Described)
_EMPTY_PROPERTIES: Final = b"\x00\x53\x73\x45"

# Names that we write ourselves. A client's values under these names are dropped (wire §4.3: the
# Python SDK sends received values back, as other types).
_OWN: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
    }
)
_UNLOCKED = AnnotationLayout(
    ("x-opt-enqueued-time", Timestamp),
    ("x-opt-sequence-number", Long),
)
_LOCKED = AnnotationLayout(
    ("x-opt-enqueued-time", Timestamp),
    ("x-opt-sequence-number", Long),
    ("x-opt-locked-until", Timestamp),
)


class DecodeMeter:
    """The decoding work on messages since the process began. The caller compares two readings to
    bound how long clients wait for each other."""

    __slots__ = ("units",)

    def __init__(self) -> None:
        self.units = 0
        """Bytes of sections, and a message's fixed cost: a tenth of a microsecond each, at most."""


DECODED: Final = DecodeMeter()
UNITS_OF_A_MESSAGE: Final = 64
UNITS_OF_TOIL: Final = 10
"""Units in one of `SharedState.toil`."""


def read_message(
    payload: bytes, property_size_max: int, header_size_max: int = HEADER_SIZE_MAX
) -> Message:
    """The engine's view of an encoded message. Raises DecodeError if the bytes are no message."""
    payload, sections = _tidied(payload)
    _check_size(payload, sections, header_size_max)
    ttl = _stated_ttl(payload[: sections.delivery_annotations])
    if ttl == NO_TTL and (
        payload.count(_TIMESTAMP, sections.properties, sections.application_properties) > 1
    ):
        ttl = _long_ttl(read_properties(payload, sections))
    message_id, session_id = read_ids(payload, sections)
    symbols = _check_sections(payload, sections, property_size_max)
    if symbols is not None:
        payload, sections = _with_text_names(payload, sections, symbols)
    if message_id is None:
        # The Node SDK cannot settle a message without an id, and does not set an id itself.
        message_id = token_hex(16)
        payload, sections = _with_message_id(payload, sections, message_id)
    scheduled_at: Instant = 0
    partition_key: str | None = None
    if sections.properties > sections.message_annotations:
        annotations = read_annotations(payload, sections)
        when = annotations.get(_SCHEDULED)
        if when is not None:
            scheduled_at = _instant(when)
        given = annotations.get(_PARTITION_KEY)
        if isinstance(given, bytes):
            # The Python SDK sends back received keys as bytes.
            given = given.decode(errors="replace")
        if given and session_id and given != session_id:
            # R-PART-12; Azure checks it on every entity (semantics B §9). An empty text is a
            # session id, and contradicts no key.
            raise InvalidOperation(
                "The PartitionKey of the message differs from its SessionId: they must be equal."
            )
        if given and session_id is None:
            partition_key = str(given)
    message = Message(
        payload,
        # A character for each byte, so that the limit on its length means the same.
        message_id.decode("latin-1") if isinstance(message_id, bytes) else str(message_id),
        session_id,
        ttl,
        scheduled_at,
        sections.body - (sections.message_annotations - sections.delivery_annotations),
    )
    message.partition_key, message.layout = partition_key, sections
    message.is_ping = is_ping(payload, sections)
    return message


@lru_cache(HEADERS_KEPT)
def _stated_ttl(header: bytes) -> int:
    """The time to live that a header section states. Senders have few headers, all short."""
    stated = read_header(header, scan(header)).ttl if header else None
    return NO_TTL if stated is None or stated == _TTL_INFINITE else stated


def _long_ttl(properties: Properties) -> int:
    """A time to live that the header has no bits for. The SDKs for JavaScript and .NET write it as
    the time between these two, with the largest number in the header. JMS omits that number."""
    created, expires = properties.creation_time, properties.absolute_expiry_time
    if created is None or expires is None:
        return NO_TTL
    ttl = expires - created
    # Azure takes no shorter time from them (semantics B §3), and the longest time is for ever.
    return ttl if _TTL_INFINITE <= ttl < _TTL_LONGEST else NO_TTL


@lru_cache(HEADERS_KEPT)
def _delivered_header(header: bytes, ttl: int, delivery_count: int) -> bytes:
    """The header of a delivery, in place of the header that its sender wrote."""
    stated = read_header(header, scan(header)) if header else Header()
    # Fields that a sender states come back as stated, even if they are the defaults.
    return encode_header(
        stated.durable,
        stated.priority,
        None if ttl < 0 else min(ttl, _TTL_INFINITE),
        stated.first_acquirer,
        delivery_count,
    )


def _tidied(payload: bytes) -> tuple[bytes, Sections]:
    """The message in the only form that every client can read."""
    try:
        sections = scan(payload)
    except DecodeError:
        sections = None  # out of order, perhaps
    if sections is not None and sections.compact:
        return payload, sections
    payload = compacted(payload)
    return payload, scan(payload)


def _check_size(payload: bytes, sections: Sections, size_max: int) -> None:
    """Refuse a message that is too large to decode, before decoding any of it."""
    given = sections.message_annotations - sections.delivery_annotations
    size = max(sections.body - given + sections.end - sections.footer, given)
    if size > size_max:
        raise MessageSizeExceeded(
            f"The headers of the message take {size} bytes, {size_max} bytes are allowed."
        )
    if size > FEW_HEADER_BYTES and (
        has_more_values(payload, 0, sections.body, HEADER_VALUES_MAX)
        or has_more_values(payload, sections.footer, sections.end, HEADER_VALUES_MAX)
    ):
        raise MessageSizeExceeded(
            f"The headers of the message take {size} bytes and have more than {HEADER_VALUES_MAX} "
            f"values: more are allowed only in {FEW_HEADER_BYTES} bytes."
        )
    DECODED.units += sections.body + sections.end - sections.footer + UNITS_OF_A_MESSAGE


def _check_sections(
    payload: bytes, sections: Sections, property_size_max: int
) -> dict[Any, Any] | None:
    """Decode the sections that others will have to decode. A message that nobody can read is
    refused here, where its sender hears of it, and not by a receiver that stumbles over it. Returns
    the properties if their names must be written as text."""
    symbols: dict[Any, Any] | None = None
    if sections.message_annotations > sections.delivery_annotations:
        read_delivery_annotations(payload, sections)
    if sections.body > sections.application_properties:
        symbols = _check_properties(payload, sections, property_size_max)
    # A body is for its receiver: it is passed on as it came, with any content.
    if sections.end > sections.footer:
        decode(payload, sections.footer)
    return symbols


def _with_text_names(
    payload: bytes, sections: Sections, properties: dict[Any, Any]
) -> tuple[bytes, Sections]:
    DECODED.units += 2 * (sections.body - sections.application_properties)  # they are written
    payload = b"".join(
        (
            payload[: sections.application_properties],
            encode_application_properties(text_keys(properties)),
            payload[sections.body :],
        )
    )
    return payload, scan(payload)


def _with_message_id(payload: bytes, sections: Sections, message_id: str) -> tuple[bytes, Sections]:
    properties = read_properties(payload, sections)
    properties.message_id = message_id
    payload = b"".join(
        (
            payload[: sections.properties],
            encode_properties(properties),
            payload[sections.application_properties :],
        )
    )
    return payload, scan(payload)


def _check_properties(payload: bytes, sections: Sections, size_max: int) -> dict[Any, Any] | None:
    """Return them if a name is a symbol: it must be text (AMQP 3.2.5), and Java reads nothing
    else."""
    large = sections.body - sections.application_properties > size_max
    symbols = False
    properties = read_application_properties(payload, sections)
    for name, value in properties.items():
        # Nothing else that has no length of its own is as long as the least of limits.
        long = large and not isinstance(value, _SHORT)
        if long and isinstance(value, str) and 4 * len(value) < size_max:
            long = False  # it cannot be: most texts, so that few are written to be measured
        size = len(encode(value)) if long else 0
        if size > size_max:
            raise MessageSizeExceeded(
                f"The property '{name!s:.64}' takes {size} bytes, {size_max} bytes are allowed."
            )
        if type(name) is not str:
            if type(name) is not Symbol:
                raise InvalidArgument(f"The name of a property is no text: {name!r:.64}.")
            symbols = True
    return properties if symbols else None


def _instant(value: object) -> Instant:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise InvalidArgument(f"The {_SCHEDULED} of the message is not a timestamp.")
    return int(value)


def write_delivery(
    message: Message, raw: bytes, with_state: bool = False, with_lock: bool = True
) -> tuple[bytes, ...]:
    """The encoded message as a client receives it, in parts to be joined."""
    sections = cast("Sections", message.layout or scan(raw))
    header = _delivered_header(
        raw[: sections.delivery_annotations], message.ttl, message.delivery_count
    )
    others: dict[Any, Any] | None = None
    trail = message.trail
    if trail is not None and trail.annotations:
        changed = trail.annotations
        given = read_annotations(changed, scan(changed))
    elif sections.properties > sections.message_annotations:
        given = read_annotations(raw, sections)
    else:
        given = None
    if given is not None:
        others = {key: value for key, value in symbol_keys(given).items() if key not in _OWN}
        when = others.pop(_SCHEDULED, None)
        if when is not None:
            # The Python SDK sends back a long; Go insists on a timestamp (wire §4.3).
            others[Symbol(_SCHEDULED)] = Timestamp(when)
    if with_state:
        others = {**(others or {}), _STATE: Int(message.lane)}
    elif trail is not None and trail.scheduled:
        # As Azure has it: a receiver is told that the message was scheduled (semantics B §4).
        others = {**(others or {}), _STATE: Int(SCHEDULED)}
    if message.source is not None:
        others = {**(others or {}), _SOURCE: message.source}
    if message.enqueue_number != message.number:
        others = {**(others or {}), _ENQUEUE_NUMBER: message.enqueue_number}
    token = message.token
    if token is not None and with_lock:
        header += _delivery_annotations(token, raw, sections)
        annotations = _LOCKED.encode(
            (message.enqueued_at, message.number, message.locked_until), others
        )
    else:
        header += _NO_DELIVERY_ANNOTATIONS
        annotations = _UNLOCKED.encode((message.enqueued_at, message.number), others)
    if (
        message.ttl < 0
        and message.properties is None
        and message.reason is None
        and message.description is None
        and sections.properties < sections.application_properties
        and (trail is None or not trail.envelope)
        and sections.end == sections.footer
    ):
        return header, annotations, raw[sections.properties :]
    return (
        header,
        annotations,
        _properties(message, raw, sections),
        _application_properties(message, raw, sections),
        raw[sections.body : sections.footer],
        _footer(raw, sections),
    )


def _footer(raw: bytes, sections: Sections) -> bytes:
    if sections.end == sections.footer:
        return b""
    return encode_footer(symbol_keys(read_footer(raw, sections)))


def _delivery_annotations(token: bytes, raw: bytes, sections: Sections) -> bytes:
    """The lock token, and the sender's own annotations: Azure passes them on."""
    # As a uuid in network order, where the delivery tag has .NET's (wire §4.4).
    uuid = token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
    if sections.message_annotations == sections.delivery_annotations:
        return _LOCK_TOKEN + uuid
    given = read_delivery_annotations(raw, sections)
    return encode_delivery_annotations({**symbol_keys(given), _LOCK_TOKEN_KEY: UUID(bytes=uuid)})


def _properties(message: Message, raw: bytes, sections: Sections) -> bytes:
    trail = message.trail
    if trail is not None and trail.envelope:
        # As the action of a rule has left it.
        raw, sections = trail.envelope, scan(trail.envelope)
    if message.ttl >= 0:
        # .NET takes the time to live from the difference of these two (wire §4.2).
        properties = read_properties(raw, sections)
        properties.creation_time = message.enqueued_at
        properties.absolute_expiry_time = min(message.enqueued_at + message.ttl, _EXPIRY_MAX)
        return encode_properties(properties)
    return raw[sections.properties : sections.application_properties] or _EMPTY_PROPERTIES


def _application_properties(message: Message, raw: bytes, sections: Sections) -> bytes:
    stored = message.properties
    if stored is None:
        stored = raw[sections.application_properties : sections.body]
    if message.reason is None and message.description is None:
        return stored
    properties = read_application_properties(stored, scan(stored)) if stored else {}
    if message.reason is not None:
        properties[_REASON] = message.reason
    if message.description is not None:
        properties[_DESCRIPTION] = message.description
    return encode_application_properties(properties)


def change_properties(
    message: Message, raw: bytes | None, changes: dict[str, Any]
) -> NewProperties:
    """The application-properties section with these values in place of its own."""
    stored = message.properties
    if stored is None:
        assert raw is not None
        sections = scan(raw)
        stored = raw[sections.application_properties : sections.body]
    properties = read_application_properties(stored, scan(stored)) if stored else {}
    properties.update(changes)
    section = encode_application_properties(properties)
    # A message that an older version changed has a size without its properties.
    header_size = max(message.header_size - len(stored), 0) + len(section)
    simple = not any(isinstance(value, _NESTED) for value in properties.values())
    return NewProperties(section, header_size, len(properties) if simple else len(section))


class Changes(NamedTuple):
    """The wish of a receiver for a message, other than to complete or release it."""

    dead_letter: bool = False
    defer: bool = False
    reason: str | None = None
    description: str | None = None
    properties: dict[str, Any] | None = None

    @classmethod
    def of(cls, state: Modified | Rejected) -> Self:
        """Read a disposition's state (wire §5.1)."""
        if isinstance(state, Modified):
            changes = text_keys(state.message_annotations)
            return cls(defer=state.undeliverable_here is True, properties=changes or None)
        if state.error is None:
            return cls(dead_letter=True)
        info = text_keys(state.error.info)
        reason, description = info.pop(_REASON, None), info.pop(_DESCRIPTION, None)
        if reason is None and state.error.condition != _DEAD_LETTER:
            # A plain AMQP client that rejects has its own condition for a reason.
            reason, description = state.error.condition, state.error.description
        return cls(
            dead_letter=True,
            reason=_text(reason),
            description=_text(description),
            properties=info or None,
        )


def text_keys(changes: dict[Any, Any] | None) -> dict[str, Any]:
    """Property names come as strings or symbols; application properties have strings."""
    return {str(key): value for key, value in (changes or {}).items()}


def symbol_keys(given: dict[Any, Any]) -> dict[Any, Any]:
    """Annotations and footers have symbols for keys (AMQP 3.2.10). Rhea and Java send strings in a
    footer, and Java cannot read them. A key that no symbol can hold stays a string."""
    return {
        Symbol(key) if type(key) is str and key.isascii() else key: value
        for key, value in given.items()
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:REASON_LENGTH_MAX]

"""What a dead letter is when it is sent again: without the marks of its death, and as edited.

Only sections that something is changed in are written anew; the others, the body above all, are
passed on byte for byte.
"""

from typing import Any, Final

from postbus.amqp.codec import encode
from postbus.amqp.codec.types import Int, Symbol, Timestamp
from postbus.amqp.faults import DecodeError
from postbus.amqp.sections import (
    Sections,
    encode_application_properties,
    encode_data,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_properties,
    scan,
)
from postbus.broker.message import NO_TTL, Message
from postbus.errors import InvalidArgument, MessageSizeExceeded
from postbus.messages.envelope import DECODED, read_message
from postbus.model.plain_message import EditedValue, Edits
from postbus.namespace.rule_values import amqp_value

_MARKS: Final = ("DeadLetterReason", "DeadLetterErrorDescription")
"""What a dead letter is told by among its properties. One that somebody received and sent again by
hand may have them from its sender."""
_MARK: Final = b"DeadLetter"
_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_INT_MAX: Final = 0x7FFF_FFFF

_FIELDS: Final = {
    "contentEncoding": "content_encoding",
    "contentType": "content_type",
    "correlationId": "correlation_id",
    "messageId": "message_id",
    "replyTo": "reply_to",
    "replyToSessionId": "reply_to_group_id",
    "sessionId": "group_id",
    "subject": "subject",
    "to": "to",
}
"""Texts that are fields of the AMQP properties section."""
_ANNOTATED: Final = frozenset({"partitionKey", "sessionId"})
"""Texts that are, or have to do with, message annotations."""


class Revision:
    """Edits of one message. Called with a dead letter and its body it makes the message that is
    sent, or refuses to."""

    __slots__ = ("_edits", "_property_size_max")

    def __init__(self, edits: Edits, property_size_max: int) -> None:
        self._edits = edits
        self._property_size_max = property_size_max

    def __call__(self, dead: Message, raw: bytes) -> Message:
        sections = scan(raw)
        application = raw[sections.application_properties : sections.body]
        if dead.properties is not None:
            application = dead.properties
        if self._edits.properties or _MARK in application:
            application = self._application(application)
        body = raw[sections.body : sections.footer]
        if self._edits.body is not None:
            body = encode_data(self._edits.body)
        if self._changes_head or _is_rewritten(dead):
            return self._read(dead, raw, sections, application, body)
        # Nothing that a broker decides by has changed, and mostly nothing at all.
        head = sections.application_properties
        if self._edits.body is not None or application != raw[head : sections.body]:
            raw = b"".join((raw[:head], application, body, raw[sections.footer :]))
        delivery_size = sections.message_annotations - sections.delivery_annotations
        made = Message(
            raw,
            dead.message_id,
            dead.session_id,
            dead.ttl,
            # Only one that could not be forwarded may be for later.
            dead.enqueued_at,
            head + len(application) - delivery_size,
        )
        made.partition_key = dead.partition_key
        return made

    @property
    def _changes_head(self) -> bool:
        """Are there edits of what comes before the application properties?"""
        return bool(self._edits.texts or self._edits.times)

    def _read(
        self, dead: Message, raw: bytes, sections: Sections, application: bytes, body: bytes
    ) -> Message:
        """Write all of it, and read it as if it came from a sender."""
        edits, trail = self._edits, dead.trail
        annotations = raw[sections.message_annotations : sections.properties]
        properties = raw[sections.properties : sections.application_properties]
        if trail is not None:
            # As the action of a rule has left them.
            annotations = trail.annotations or annotations
            properties = trail.envelope or properties
        if edits.texts.keys() & _FIELDS.keys() or "timeToLive" in edits.times:
            properties = self._properties(properties)
        if edits.texts.keys() & _ANNOTATED or "scheduledEnqueueTime" in edits.times:
            annotations = self._annotations(annotations, dead.session_id)
        head, footer = raw[: sections.message_annotations], raw[sections.footer :]
        payload = b"".join((head, annotations, properties, application, body, footer))
        try:
            made = read_message(payload, self._property_size_max)
        except DecodeError as fault:
            raise InvalidArgument(f"The message would not be one: {fault}") from fault
        # Not what its header says: a rule, or HTTP, may have set it otherwise.
        made.ttl = dead.ttl
        if "timeToLive" in edits.times:
            ttl = edits.times["timeToLive"]
            made.ttl = NO_TTL if ttl is None else ttl
        return made

    def _properties(self, section: bytes) -> bytes:
        properties = read_properties(section, scan(section))
        for name, text in self._edits.texts.items():
            field = _FIELDS.get(name)
            if field is not None:
                setattr(properties, field, text)
        if "timeToLive" in self._edits.times:
            # .NET takes it from the difference of these; a delivery has them written anew.
            properties.creation_time = properties.absolute_expiry_time = None
        return encode_properties(properties)

    def _annotations(self, section: bytes, session_id: str | None) -> bytes:
        DECODED.units += 2 * len(section)
        annotations = read_annotations(section, scan(section)) if section else {}
        texts, times = self._edits.texts, self._edits.times
        if "partitionKey" in texts:
            _put(annotations, _PARTITION_KEY, texts["partitionKey"])
        elif "sessionId" in texts and annotations.get(_PARTITION_KEY) == session_id:
            # They have to be the same (R-PART-12), so one follows the other.
            _put(annotations, _PARTITION_KEY, texts["sessionId"])
        if "scheduledEnqueueTime" in times:
            when = times["scheduledEnqueueTime"]
            _put(annotations, _SCHEDULED, None if when is None else Timestamp(when))
        return encode_message_annotations(annotations) if annotations else b""

    def _application(self, section: bytes) -> bytes:
        DECODED.units += 2 * len(section)  # read, and written
        values = read_application_properties(section, scan(section)) if section else {}
        for mark in _MARKS:
            values.pop(mark, None)
        for name, value in self._edits.properties.items():
            if value is None:
                values.pop(name, None)
            else:
                self._check_size(name, value)
                values[name] = _typed(value, values.get(name))
        return encode_application_properties(values) if values else b""

    def _check_size(self, name: str, value: EditedValue) -> None:
        size_max = self._property_size_max
        size = len(encode(value)) if isinstance(value, str) and 4 * len(value) >= size_max else 0
        if size > size_max:
            raise MessageSizeExceeded(
                f"The property '{name:.64}' takes {size} bytes, {size_max} bytes are allowed."
            )


def _is_rewritten(dead: Message) -> bool:
    """Has the action of a rule changed what a broker decides by?"""
    trail = dead.trail
    return trail is not None and bool(trail.envelope or trail.annotations)


def _put(values: dict[Any, Any], key: object, value: object) -> None:
    values.pop(key, None)
    if value is not None:
        values[key] = value


def _typed(value: EditedValue, like: object) -> object:
    """Of the type of what it replaces where that can hold it, and else as messages have it that
    were sent over HTTP."""
    kept = amqp_value(value, like)
    if type(kept) is int and type(like) is not int and -_INT_MAX <= kept <= _INT_MAX:
        return Int(kept)
    return kept

"""A message as the rules of a topic read it, and the sections of a copy that an action changed.

Nothing is decoded until a rule asks for it, and then only the section that it lies in.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

from postbus.amqp.codec.types import Symbol
from postbus.amqp.sections import (
    Properties,
    Sections,
    encode_application_properties,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_properties,
    scan,
)
from postbus.broker.message import ACTIVE, NO_TTL, SCHEDULED, Message
from postbus.model.times import MAX_TICKS, TICKS_PER_MS, UNIX_EPOCH_TICKS, is_infinite
from postbus.model.values import DATE_TIME_MAX_TICKS, DateTime, TimeSpan
from postbus.namespace.rule_values import amqp_value, date_time_of, rule_value
from postbus.rules.actions import Changes
from postbus.rules.facts import fold
from postbus.rules.system_properties import (
    CONTENT_TYPE,
    LABEL,
    MESSAGE_ID,
    PARTITION_KEY,
    SESSION_ID,
    TIME_TO_LIVE,
)
from postbus.rules.values import Value
from postbus.rules.work_limit import STEPS_OF_A_PROPERTY, Work

# System properties that are fields of the AMQP properties section.
_FIELDS: Final = {
    CONTENT_TYPE: "content_type",
    "CorrelationId": "correlation_id",
    LABEL: "subject",
    MESSAGE_ID: "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_group_id",
    SESSION_ID: "group_id",
    "To": "to",
}
# And those that are message annotations (wire §4.3).
_ANNOTATIONS: Final = {
    PARTITION_KEY: "x-opt-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
    "ViaPartitionKey": "x-opt-via-partition-key",
}


class MessageFacts:
    """One message, read as far as rules ask. `number` and `enqueued_at` must be given already."""

    __slots__ = (
        "_annotations",
        "_given",
        "_message",
        "_properties",
        "_raw",
        "_sections",
        "_system",
        "_user",
        "work",
    )

    def __init__(self, message: Message, raw: bytes) -> None:
        self._message = message
        self._raw = raw
        self._sections: Sections | None = None
        self._given: dict[Any, Any] | None = None
        self._user: dict[str, Value] | None = None
        self._system: dict[str, Value] = {}
        self.work = Work()
        self._properties: Properties | None = None
        self._annotations: dict[Any, Any] | None = None

    @property
    def user(self) -> Mapping[str, Value]:
        found = self._user
        if found is None:
            found = self._user = {}
            given = self.given
            self.work.left -= len(given) * STEPS_OF_A_PROPERTY
            for name, value in given.items():
                found.setdefault(fold(str(name)), rule_value(value))
        return found

    @property
    def given(self) -> dict[Any, Any]:
        """The application properties as they are written."""
        if self._given is None:
            self._given = stored_properties(self._message, self._raw)
        return self._given

    def spend(self, steps: int) -> None:
        self.work.spend(steps)

    def system(self, name: str) -> Value:
        if name == MESSAGE_ID:
            return self._message.message_id
        if name == SESSION_ID:
            return self._message.session_id
        # As text some may be long, and thousands of rules may ask.
        if name not in self._system:
            self._system[name] = self._read_system(name)
        return self._system[name]

    def _read_system(self, name: str) -> Value:
        field = _FIELDS.get(name)
        if field is not None:
            return _text(getattr(self._read_properties(), field))
        annotation = _ANNOTATIONS.get(name)
        if annotation is not None:
            return self._annotation(annotation)
        return _FROM_MESSAGE[name](self._message)

    def _layout(self) -> Sections:
        found = self._sections
        if found is None:
            found = self._sections = layout_of(self._message, self._raw)
        return found

    def _read_properties(self) -> Properties:
        found = self._properties
        if found is None:
            trail = self._message.trail
            if trail is not None and trail.envelope:
                # An action of another topic has changed it on its way here.
                found = read_properties(trail.envelope, scan(trail.envelope))
            else:
                found = read_properties(self._raw, self._layout())
            self._properties = found
        return found

    def _annotation(self, key: str) -> Value:
        found = self._annotations
        if found is None:
            trail = self._message.trail
            if trail is not None and trail.annotations:
                found = read_annotations(trail.annotations, scan(trail.annotations))
            else:
                found = read_annotations(self._raw, self._layout())
            self._annotations = found
        value = found.get(key)
        if key == _ANNOTATIONS["ScheduledEnqueueTimeUtc"] and value is not None:
            # The Python SDK sends one that it received back as a long (wire §4.3).
            return date_time_of(int(value))
        return rule_value(value)


def layout_of(message: Message, raw: bytes) -> Sections:
    return cast("Sections", message.layout or scan(raw))


def stored_properties(message: Message, raw: bytes) -> dict[Any, Any]:
    """The application properties as the message has them now."""
    changed = message.properties
    if changed is not None:
        return read_application_properties(changed, scan(changed)) if changed else {}
    return read_application_properties(raw, layout_of(message, raw))


def _text(value: object) -> str | None:
    """An id as a text, in the form in which the engine has it (see read_message)."""
    if value is None:
        return None
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _expires_at(message: Message) -> Value:
    # One that never expires does so at the end of .NET's time, as TimeToLive is its longest span.
    expires_at = message.expires_at
    if expires_at is None:
        return DateTime(DATE_TIME_MAX_TICKS)
    ticks = UNIX_EPOCH_TICKS + expires_at * TICKS_PER_MS
    return DateTime(min(ticks, DATE_TIME_MAX_TICKS))


def _time_to_live(message: Message) -> Value:
    return TimeSpan(MAX_TICKS if message.ttl < 0 else message.ttl * TICKS_PER_MS)


_FROM_MESSAGE: Final[dict[str, Callable[[Message], Value]]] = {
    "DeadLetterSource": lambda message: message.source,
    "DeliveryCount": lambda message: message.delivery_count,
    "EnqueuedSequenceNumber": lambda message: message.enqueue_number,
    "EnqueuedTimeUtc": lambda message: date_time_of(message.enqueued_at),
    "ExpiresAtUtc": _expires_at,
    "ForcePersistence": lambda message: False,
    # Nobody has a lock on a message that is only just sent.
    "LockToken": lambda message: None,
    "LockedUntilUtc": lambda message: None,
    "SequenceNumber": lambda message: message.number,
    "Size": lambda message: message.length,
    # A topic keeps what was scheduled in a lane of its own until all subscriptions have it.
    "State": lambda message: message.lane if message.lane <= SCHEDULED else ACTIVE,
    TIME_TO_LIVE: _time_to_live,
}


class Rewritten(NamedTuple):
    """What is different about a copy. A section that is None is as in the message."""

    properties_section: bytes | None
    application_section: bytes | None
    annotations_section: bytes | None
    message_id: str
    session_id: str | None
    partition_key: str | None
    """None: as in the message; empty: the action has removed it."""
    ttl_ms: int
    """The time to live of its own; NO_TTL for none."""
    header_size: int


def write_changes(
    message: Message, raw: bytes, changes: Changes, given: dict[Any, Any]
) -> Rewritten:
    """Carry out what an action says on a copy of this message, which has these properties."""
    sections = layout_of(message, raw)
    system = changes.system
    properties = application = annotations = None
    # A message that was read from the index does not know it.
    size = message.header_size or sections.body - (
        sections.message_annotations - sections.delivery_annotations
    )
    if changes.user or changes.removed:
        application = encode_application_properties(_changed(given, changes))
        size += len(application)
        size -= (
            sections.body - sections.application_properties
            if message.properties is None
            else len(message.properties)
        )
    trail = message.trail
    if not _FIELDS.keys().isdisjoint(system):
        envelope = b"" if trail is None else trail.envelope
        properties = _write_properties(*_section(envelope, raw, sections), system)
        before = len(envelope) or sections.application_properties - sections.properties
        size += len(properties) - before
    if not _ANNOTATIONS.keys().isdisjoint(system):
        changed = b"" if trail is None else trail.annotations
        annotations = _write_annotations(*_section(changed, raw, sections), system)
        before = len(changed) or sections.properties - sections.message_annotations
        size += len(annotations) - before
    session_id = system.get(SESSION_ID, message.session_id)
    return Rewritten(
        properties,
        application,
        annotations,
        str(system.get(MESSAGE_ID, message.message_id)),
        None if session_id is None else str(session_id),
        str(system[PARTITION_KEY] or "") if PARTITION_KEY in system else None,
        _ttl_ms(system[TIME_TO_LIVE]) if TIME_TO_LIVE in system else message.ttl,
        size,
    )


def _changed(given: dict[Any, Any], changes: Changes) -> dict[Any, Any]:
    kept = {name: value for name, value in given.items() if fold(str(name)) not in changes.removed}
    spelling: dict[str, Any] = {}
    for name in kept:
        spelling.setdefault(fold(str(name)), name)
    for folded, (name, value) in changes.user.items():
        there = spelling.get(folded)
        if there is None:
            kept[name] = amqp_value(value)
        else:
            kept[there] = amqp_value(value, kept[there])
    return kept


def _section(changed: bytes, raw: bytes, sections: Sections) -> tuple[bytes, Sections]:
    """Where to read a section: what an action of another topic has made of it, or the message."""
    return (changed, scan(changed)) if changed else (raw, sections)


def _write_properties(raw: bytes, sections: Sections, system: Mapping[str, Value]) -> bytes:
    properties = read_properties(raw, sections)
    for name, field in _FIELDS.items():
        if name in system:
            setattr(properties, field, system[name])
    return encode_properties(properties)


def _write_annotations(raw: bytes, sections: Sections, system: Mapping[str, Value]) -> bytes:
    annotations = read_annotations(raw, sections)
    for name, key in _ANNOTATIONS.items():
        if name in system:
            annotations.pop(key, None)
            if system[name] is not None:
                annotations[Symbol(key)] = amqp_value(system[name])
    return encode_message_annotations(annotations)


def _ttl_ms(span: Value) -> int:
    if not isinstance(span, TimeSpan) or is_infinite(span.ticks):
        return NO_TTL
    return max(1, span.ticks // TICKS_PER_MS)

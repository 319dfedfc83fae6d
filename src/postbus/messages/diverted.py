"""Messages in a backlog queue of paired namespaces, and the way back to what they were (R-PAIR-08).

The bytes of the body stay as they are, and properties keep their AMQP types.
"""

from typing import Any, Final, NamedTuple

from postbus.amqp.codec.types import Described, Int, Long, Symbol, Timestamp, UInt, ULong
from postbus.amqp.faults import DecodeError
from postbus.amqp.sections import (
    encode_application_properties,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_header,
    read_properties,
    scan,
)
from postbus.model.times import Instant

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
NAMES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME})

_TIMESPAN: Final = "com.microsoft:timespan"
_TICKS_PER_MS: Final = 10_000
_HEADER_TTL_MAX: Final = 0xFFFFFFFF
_SCHEDULE: Final = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY: Final = "x-opt-partition-key"
# The backlog's facts about its own copy of the message.
_OF_THE_BACKLOG: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
    }
)


class NotDiverted(Exception):
    """A message of a backlog queue that cannot be made what it was."""


class RestoredMessage(NamedTuple):
    """A diverted message as its sender had it."""

    path: str
    """Its destination."""
    key: str | None
    """Messages with different keys do not share a batch: its session id, or its partition key."""
    payload: bytes
    locked_until: Instant | None
    """The end of its lock in the backlog, by the broker's clock."""
    delivery_count: int
    """Earlier deliveries: it may have been sent on before."""


def restore(payload: bytes, now: Instant) -> RestoredMessage:
    """The message as it was before it was diverted. Raises NotDiverted."""
    try:
        sections = scan(payload)
        header = read_header(payload, sections)
        given = read_annotations(payload, sections)
        properties = read_properties(payload, sections)
        values = read_application_properties(payload, sections)
    except DecodeError as error:
        raise NotDiverted(f"The message cannot be read: {error}") from error
    path = _taken(values, PATH, str)
    if path is None:
        raise NotDiverted(f"The message has no property '{PATH}': no paired client sent it.")
    session_id = _taken(values, SESSION_ID, str)
    ttl = _milliseconds(values)
    scheduled_at = _taken(values, SCHEDULED_TIME, Timestamp)
    annotations = {name: each for name, each in given.items() if name not in _OF_THE_BACKLOG}
    if scheduled_at is not None:
        annotations[_SCHEDULE] = scheduled_at
    properties.group_id = session_id
    if ttl is not None:
        properties.creation_time, properties.absolute_expiry_time = now, now + ttl
    key = session_id if session_id is not None else annotations.get(_PARTITION_KEY)
    locked_until = given.get("x-opt-locked-until")
    return RestoredMessage(
        path,
        None if key is None else str(key),
        b"".join(
            (
                encode_header(
                    header.durable,
                    header.priority,
                    None if ttl is None else min(ttl, _HEADER_TTL_MAX),
                ),
                encode_message_annotations(annotations) if annotations else b"",
                encode_properties(properties),
                encode_application_properties(values) if values else b"",
                payload[sections.body :],
            )
        ),
        int(locked_until) if isinstance(locked_until, int) else None,
        header.delivery_count,
    )


def _taken(values: dict[Any, Any], name: str, kind: type) -> Any:
    """Remove a property, and check its type."""
    value = values.pop(name, None)
    if value is not None and type(value) is not kind:
        raise NotDiverted(
            f"The property '{name}' is of the type {type(value).__name__}, not "
            f"{kind.__name__}: {value!r:.200}"
        )
    return value


def _milliseconds(values: dict[Any, Any]) -> int | None:
    """The time to live: milliseconds, or a time span of .NET."""
    value = values.pop(TIME_TO_LIVE, None)
    if isinstance(value, Described) and str(value.descriptor) == _TIMESPAN:
        ticks = value.value
        if type(ticks) is int:
            return max(ticks // _TICKS_PER_MS, 0)
    elif value is None:
        return None
    elif type(value) in (int, Int, Long, UInt, ULong) and value >= 0:
        return int(value)
    raise NotDiverted(
        f"The property '{TIME_TO_LIVE}' is of the type {type(value).__name__}, neither "
        f"milliseconds nor a time span: {value!r:.200}"
    )

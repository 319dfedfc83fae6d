"""A message as protocols other than AMQP see it: a body, named properties, plain values.

The engine keeps messages in AMQP's own form. `postbus.messages.translation` turns one form into the
other.
"""

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from postbus.model.instant import Instant


class Moment(int):
    """A point in time among values where a bare `int` is a number."""

    __slots__ = ()


PropertyValue = None | bool | int | float | str | Moment


class MessageState(Enum):
    """What has become of a message; by the numbers of `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True)
class PlainMessage:
    """What its sender says of a message."""

    body: bytes = b""
    content_type: str | None = None
    content_encoding: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    via_partition_key: str | None = None
    force_persistence: bool = False
    time_to_live_ms: int | None = None
    """None for ever."""
    scheduled_at: Instant | None = None
    properties: dict[str, PropertyValue] = field(default_factory=dict)


@dataclass(slots=True)
class ReceivedMessage:
    """A message on its way to a receiver, with what the broker says of it."""

    message: PlainMessage
    number: int
    enqueue_number: int
    """Its number where it was first enqueued: the same, unless it has come from elsewhere."""
    enqueued_at: Instant
    failures: int
    """Deliveries before this one that came to nothing."""
    state: MessageState
    body_type: str | None = None
    """What the body is when its sender has not said, where that is known."""
    dead_letter_source: str | None = None
    token: UUID | None = None
    """Its lock; None if it was removed for good."""
    locked_until: Instant = 0

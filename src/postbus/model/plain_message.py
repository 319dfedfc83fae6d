"""A message as protocols other than AMQP see it: a body, named properties, plain values.

The engine keeps messages in AMQP's own form. `postbus.messages.translation` turns one form into the
other. Edits are the changes to a dead letter that is sent again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from uuid import UUID

from postbus.model.times import Instant


class Moment(int):
    """A point in time, among values where a bare `int` is a number."""

    __slots__ = ()


PropertyValue = None | bool | int | float | str | Moment


class MessageState(Enum):
    """The state of a message, by the numbers of `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True)
class PlainMessage:
    """The sender's part of a message."""

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
    """A message on its way to a receiver, with the broker's facts about it."""

    message: PlainMessage
    number: int
    enqueue_number: int
    """Its number in the entity that first enqueued it; the same, unless it was forwarded."""
    enqueued_at: Instant
    failures: int
    """Earlier deliveries that failed."""
    state: MessageState
    body_type: str | None = None
    """The content type of the body where its sender gave none, if it is known."""
    dead_letter_source: str | None = None
    token: UUID | None = None
    """Its lock; None if it was removed for good."""
    locked_until: Instant = 0


TEXT_FIELDS: Final = frozenset(
    {
        "contentEncoding",
        "contentType",
        "correlationId",
        "messageId",
        "partitionKey",
        "replyTo",
        "replyToSessionId",
        "sessionId",
        "subject",
        "to",
    }
)
TIME_FIELDS: Final = frozenset({"scheduledEnqueueTime", "timeToLive"})
"""In milliseconds: a time since the Unix epoch, and a duration."""

EditedValue = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Edits:
    """A field that is missing here stays. None removes the value."""

    body: bytes | None = None
    """None keeps the body. A message always has one."""
    properties: Mapping[str, EditedValue | None] = field(default_factory=dict)
    """Application properties; all others stay."""
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """By the names in TEXT_FIELDS."""
    times: Mapping[str, int | None] = field(default_factory=dict)
    """By the names in TIME_FIELDS."""

    @property
    def empty(self) -> bool:
        return self.body is None and not (self.properties or self.texts or self.times)

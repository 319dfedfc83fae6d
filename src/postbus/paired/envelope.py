"""Messages on their way through a backlog queue (R-PAIR-08).

A diverted message is a copy: its body is shared, and the message of the caller stays as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from postbus.messages.diverted import NAMES, PATH, SCHEDULED_TIME, SESSION_ID, TIME_TO_LIVE
from postbus.messages.pings import PING

RESERVE_BYTES: Final = 1_024
"""More than these properties add to a message with the longest path and session id."""

_SCHEDULE: Final = "x-opt-scheduled-enqueue-time"


class PairedMessageBatch(ServiceBusMessageBatch):
    """A batch that remembers its messages, so that each can be diverted."""

    def __init__(self, max_size_in_bytes: int | None = None) -> None:
        super().__init__(max_size_in_bytes)
        self.added: list[AmqpAnnotatedMessage] = []

    def add_message(
        self, message: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
    ) -> None:
        prepared = with_id(message)
        super().add_message(prepared)
        self.added.append(prepared)


def listed(given: Any) -> tuple[list[AmqpAnnotatedMessage], bool]:
    """The messages of a send, each with an id, and whether there are several by their form.

    A generator is read here, once: a second attempt could not read it again.
    """
    if isinstance(given, PairedMessageBatch):
        return list(given.added), True
    if isinstance(given, ServiceBusMessageBatch):
        raise TypeError("a batch for a paired sender is made by its create_message_batch")
    if isinstance(given, Iterable) and not isinstance(given, Mapping):
        return [with_id(each) for each in given], True
    return [with_id(given)], False


def with_id(message: Any) -> AmqpAnnotatedMessage:
    """A copy that has an id: without an id, no copy of the message could be recognised.

    The message of the caller gets none. It may be sent again, as another message.
    """
    if isinstance(message, Mapping):
        message = ServiceBusMessage(**message)
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    if not isinstance(raw, AmqpAnnotatedMessage):
        raise TypeError(f"no message, and no mapping that describes one: {type(message).__name__}")
    properties = AmqpMessageProperties() if raw.properties is None else copy.copy(raw.properties)
    if properties.message_id is None:
        properties.message_id = str(uuid4())
    made = copy.copy(raw)
    made.properties = properties
    return made


def divert(message: AmqpAnnotatedMessage, path: str) -> AmqpAnnotatedMessage:
    """The message in its form for a backlog queue; `path` is its destination."""
    properties: dict[str | bytes, Any] = {
        _text(name): value for name, value in (message.application_properties or {}).items()
    }
    taken = sorted(NAMES.intersection(map(_text, properties)))
    if taken:
        raise ValueError(f"the message cannot be diverted: it has the property '{taken[0]}' itself")
    properties[PATH] = path
    header = AmqpMessageHeader() if message.header is None else copy.copy(message.header)
    envelope = copy.copy(message.properties)
    assert envelope is not None, "with_id was here"
    annotations = dict(message.annotations or {})
    if envelope.group_id is not None:
        properties[SESSION_ID] = _text(envelope.group_id)
        envelope.group_id = None
    if header.time_to_live is not None:
        properties[TIME_TO_LIVE] = amqp_long_value(int(header.time_to_live))  # type: ignore[no-untyped-call]
        header.time_to_live = None
        # The SDK derives both from the time to live, and will again.
        envelope.absolute_expiry_time = envelope.creation_time = None
    for name in [name for name in annotations if _text(name) == _SCHEDULE]:
        when = annotations.pop(name)
        if when is not None:
            properties[SCHEDULED_TIME] = _time(when)
    made = copy.copy(message)
    made.header, made.properties = header, envelope
    made.annotations, made.application_properties = annotations or None, properties
    return made


def make_ping() -> ServiceBusMessage:
    """A message that asks whether an entity could store a message (R-PAIR-07)."""
    return ServiceBusMessage(
        b"",
        content_type=PING,
        session_id=str(uuid4()),
        message_id=str(uuid4()),
        time_to_live=timedelta(seconds=1),
    )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _time(value: object) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1_000, UTC)
    raise TypeError(f"the scheduled time of the message is no time: {type(value).__name__}")

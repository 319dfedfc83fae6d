"""A record of a journal as an event: the columns of the change feed, filled in plainly.

JSON lines are written from it, and faster readers are tested against it. Points in time are
Instants, spans are milliseconds, and an unknown value is None. Facts that only the message itself
holds are known only if the record brings the message (R-PIPE-02).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from postbus.amqp.sections import (
    read_annotations,
    read_application_properties,
    read_properties,
    scan,
)
from postbus.broker import records
from postbus.broker.message import SCHEDULED, STATE, Message
from postbus.broker.record_kinds import OPERATIONS
from postbus.broker.subqueue_numbers import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    kind_of,
    owner_of,
)
from postbus.messages.plain_values import id_text, property_text, read_body, text_of
from postbus.model.times import Instant

Value = None | int | str | bytes | dict[str, str | None]
Event = dict[str, Value]

COLUMNS: Final = (
    "entity",
    "subscription",
    "subQueue",
    "partition",
    "offset",
    "timestamp",
    "operation",
    "sequenceNumber",
    "originalSequenceNumber",
    "enqueuedTime",
    "messageId",
    "sessionId",
    "partitionKey",
    "correlationId",
    "subject",
    "contentType",
    "to",
    "replyTo",
    "timeToLive",
    "scheduledEnqueueTime",
    "expiresAt",
    "deliveryCount",
    "deadLetterReason",
    "deadLetterErrorDescription",
    "deadLetterSource",
    "deliveredTime",
    "properties",
    "bodySize",
    "body",
)
TIMES: Final = frozenset(
    {"timestamp", "enqueuedTime", "scheduledEnqueueTime", "expiresAt", "deliveredTime"}
)
"""The columns that are Instants."""

SUB_QUEUES: Final = {
    MAIN: "",
    DEAD_LETTER: "deadletter",
    TRANSFER_DEAD_LETTER: "transferdeadletter",
}
_PARTITION_KEY: Final = "x-opt-partition-key"


class JournalOrigin(NamedTuple):
    """The facts of a journal that its records do not hold themselves."""

    entity: str
    partition: int
    """Which fragment of the entity: 0, 1, …"""
    subscriptions: Mapping[int, str]
    """Names by owner, the number above the subqueue's kind. A deleted subscription has no name."""


def subscription_of(subqueue: int, subscriptions: Mapping[int, str]) -> str | None:
    """None for the queue or topic itself, and for a subscription that is no more."""
    return subscriptions.get(owner_of(subqueue))


def event(place: JournalOrigin, offset: int, at: Instant, data: bytes) -> Event | None:
    """The event of a record; `at` is when its batch was committed. None for housekeeping."""
    record = records.decode(data)
    operation = OPERATIONS.get(record.kind)
    if operation is None:
        return None
    message = record.message
    is_scheduled = message.lane == SCHEDULED
    columns: Event = dict.fromkeys(COLUMNS)
    columns |= {
        "entity": place.entity,
        "subscription": subscription_of(message.subqueue, place.subscriptions),
        "subQueue": SUB_QUEUES[kind_of(message.subqueue)],
        "partition": place.partition,
        "offset": offset,
        "timestamp": at,
        "operation": operation,
        "sequenceNumber": message.number,
        "originalSequenceNumber": message.first_number,
        # In that lane it is when the message will be enqueued.
        "enqueuedTime": None if is_scheduled else message.enqueued_at,
        "scheduledEnqueueTime": message.enqueued_at if is_scheduled else None,
        # A session's state has no id, and a message need not have an id.
        "messageId": message.message_id or None,
        "sessionId": message.session_id,
        "timeToLive": None if message.ttl < 0 else message.ttl,
        "expiresAt": message.expires_at,
        "deliveryCount": message.delivery_count,
        "deadLetterReason": message.reason,
        "deadLetterErrorDescription": message.description,
        "deadLetterSource": message.source,
        # Only an outcome is an answer to a delivery.
        "deliveredTime": record.delivered_at or None,
        "bodySize": message.length,
    }
    if record.body_at >= 0:
        raw = data[record.body_at :]
        if message.lane == STATE:
            # No message: a session's state is the bytes that its receiver gave.
            columns["body"] = raw
        else:
            columns |= _content(message, raw)
    return columns


def whole_message(data: bytes) -> bytes:
    """The message that a record brings, as a receiver would be given it. Sections that were changed
    after it came replace its own. Additions of the broker for a delivery are not in it."""
    record = records.decode(data)
    raw, message = data[record.body_at :], record.message
    sections = scan(raw)
    annotations = raw[sections.message_annotations : sections.properties]
    properties = raw[sections.properties : sections.application_properties]
    values = raw[sections.application_properties : sections.body]
    if message.trail is not None:
        annotations = message.trail.annotations or annotations
        properties = message.trail.envelope or properties
    if message.properties is not None:
        values = message.properties
    head = raw[: sections.message_annotations]
    return b"".join((head, annotations, properties, values, raw[sections.body :]))


def _content(message: Message, raw: bytes) -> Event:
    """Facts that only the message itself holds, as changed by rules and receivers since."""
    sections = scan(raw)
    trail = message.trail
    if trail is not None and trail.envelope:
        properties = read_properties(trail.envelope, scan(trail.envelope))
    else:
        properties = read_properties(raw, sections)
    if trail is not None and trail.annotations:
        annotations = read_annotations(trail.annotations, scan(trail.annotations))
    else:
        annotations = read_annotations(raw, sections)
    changed = message.properties
    if changed is None:
        values = read_application_properties(raw, sections)
    else:
        values = read_application_properties(changed, scan(changed)) if changed else {}
    body, _ = read_body(raw, sections)
    return {
        "partitionKey": text_of(annotations.get(_PARTITION_KEY)),
        "correlationId": id_text(properties.correlation_id),
        "subject": properties.subject,
        "contentType": text_of(properties.content_type),
        "to": properties.to,
        "replyTo": properties.reply_to,
        "properties": {str(name): property_text(value) for name, value in values.items()},
        "body": body,
    }

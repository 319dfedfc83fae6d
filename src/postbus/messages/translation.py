"""AMQP messages to plain messages and back, for protocols that are not AMQP.

On the way in every value has a single AMQP type, so filters and SDKs see it as if it were sent over
AMQP. On the way out nothing is refused: a value without a plain form gets a text.
"""

from typing import Any, Final
from uuid import UUID

from postbus.amqp.codec.types import (
    Int,
    Symbol,
    Timestamp,
)
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_header,
    read_properties,
    scan,
)
from postbus.broker.message import Message
from postbus.messages.envelope import DECODED, read_message, write_delivery
from postbus.messages.plain_values import id_text, plain_value, read_body, text_of
from postbus.model.plain_message import (
    MessageState,
    Moment,
    PlainMessage,
    PropertyValue,
    ReceivedMessage,
)

_PARTITION_KEY: Final = Symbol("x-opt-partition-key")
_VIA_PARTITION_KEY: Final = Symbol("x-opt-via-partition-key")
_SCHEDULED: Final = Symbol("x-opt-scheduled-enqueue-time")
_INT_MAX: Final = 0x7FFF_FFFF


# -- in --------------------------------------------------------------------------------------


def to_message(plain: PlainMessage, property_size_max: int) -> Message:
    """The engine's view of a plain message. Raises ServiceBusError if it makes no message."""
    encoded = encode_plain(plain)
    DECODED.units += len(encoded) - len(plain.body)  # written first, then read
    message = read_message(encoded, property_size_max)
    if plain.time_to_live_ms is not None:
        # Not by the header: its 32 bits of milliseconds end after 49 days.
        message.ttl = plain.time_to_live_ms
    return message


def encode_plain(plain: PlainMessage) -> bytes:
    """The message in AMQP's form; its body is a data section."""
    parts = []
    if plain.force_persistence:
        parts.append(encode_header(durable=True))
    annotations: dict[Any, Any] = {}
    if plain.scheduled_at is not None:
        annotations[_SCHEDULED] = Timestamp(plain.scheduled_at)
    if plain.partition_key is not None:
        annotations[_PARTITION_KEY] = plain.partition_key
    if plain.via_partition_key is not None:
        annotations[_VIA_PARTITION_KEY] = plain.via_partition_key
    if annotations:
        parts.append(encode_message_annotations(annotations))
    properties = Properties(
        message_id=plain.message_id,
        to=plain.to,
        subject=plain.label,
        reply_to=plain.reply_to,
        correlation_id=plain.correlation_id,
        content_type=plain.content_type,
        content_encoding=plain.content_encoding,
        group_id=plain.session_id,
        reply_to_group_id=plain.reply_to_session_id,
    )
    parts.append(encode_properties(properties))
    if plain.properties:
        values = {name: _typed(value) for name, value in plain.properties.items()}
        parts.append(encode_application_properties(values))
    parts.append(encode_data(plain.body))
    return b"".join(parts)


def _typed(value: PropertyValue) -> object:
    if isinstance(value, Moment):
        return Timestamp(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_INT_MAX <= value <= _INT_MAX:
        # As in .NET, whose `int` has 32 bits: a filter may ask for the type.
        return Int(value)
    return value


# -- out -------------------------------------------------------------------------------------


def to_received(message: Message, raw: bytes) -> ReceivedMessage:
    """The message for a receiver, as things are now."""
    # Through the delivery that a link would make of it: changed properties, reasons and all.
    payload = b"".join(write_delivery(message, raw, with_lock=False))
    sections = scan(payload)
    properties = read_properties(payload, sections)
    annotations = read_annotations(payload, sections)
    values = read_application_properties(payload, sections)
    body, body_type = read_body(payload, sections)
    plain = PlainMessage(
        body=body,
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        message_id=id_text(properties.message_id),
        correlation_id=id_text(properties.correlation_id),
        label=properties.subject,
        to=properties.to,
        reply_to=properties.reply_to,
        session_id=properties.group_id,
        reply_to_session_id=properties.reply_to_group_id,
        partition_key=text_of(annotations.get(_PARTITION_KEY)),
        via_partition_key=text_of(annotations.get(_VIA_PARTITION_KEY)),
        force_persistence=read_header(payload, sections).durable is True,
        time_to_live_ms=message.ttl if message.ttl >= 0 else None,
        scheduled_at=annotations.get(_SCHEDULED),
        properties={str(name): plain_value(value) for name, value in values.items()},
    )
    return ReceivedMessage(
        plain,
        number=message.number,
        enqueue_number=message.enqueue_number,
        enqueued_at=message.enqueued_at,
        failures=message.delivery_count,
        state=MessageState(message.lane),
        body_type=body_type,
        dead_letter_source=message.source,
        token=None if message.token is None else UUID(bytes_le=message.token),
        locked_until=message.locked_until,
    )

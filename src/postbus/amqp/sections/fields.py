"""The two sections of a message that are lists of fields (AMQP 3.2.1 and 3.2.4)."""

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from postbus.amqp.codec import encode_value
from postbus.amqp.codec.types import ULong
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.composites import (
    BINARY,
    BOOLEAN,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Composite,
    Field,
    FieldKind,
)

MessageId = ULong | UUID | bytes | str

MESSAGE_ID_TYPES = (str, UUID, ULong, bytes)


def _read_message_id(value: object) -> object:
    if type(value) not in MESSAGE_ID_TYPES:
        raise DecodeError(f"a message id cannot be {type(value).__name__.lower()}")
    return value


_MESSAGE_ID = FieldKind("message-id", _read_message_id, encode_value)


@dataclass(slots=True)
class Header(Composite):
    """As its sender stated it: None is what it left to the standard, False or 4 what it said."""

    durable: bool | None = None
    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool | None = None
    delivery_count: int = 0

    CODE: ClassVar[int] = 0x70
    NAME: ClassVar[str] = "amqp:header:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("durable", BOOLEAN),
        Field("priority", UBYTE),
        Field("ttl", UINT),
        Field("first_acquirer", BOOLEAN),
        Field("delivery_count", UINT, default=0),
    )
    FIELDS_MIN: ClassVar[int] = 5


@dataclass(slots=True)
class Properties(Composite):
    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None

    CODE: ClassVar[int] = 0x73
    NAME: ClassVar[str] = "amqp:properties:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("message_id", _MESSAGE_ID),
        Field("user_id", BINARY),
        Field("to", STRING),
        Field("subject", STRING),
        Field("reply_to", STRING),
        Field("correlation_id", _MESSAGE_ID),
        Field("content_type", SYMBOL),
        Field("content_encoding", SYMBOL),
        Field("absolute_expiry_time", TIMESTAMP),
        Field("creation_time", TIMESTAMP),
        Field("group_id", STRING),
        Field("group_sequence", UINT),
        Field("reply_to_group_id", STRING),
    )

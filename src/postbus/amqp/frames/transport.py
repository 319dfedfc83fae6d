"""The nine performatives of the transport layer (AMQP 2.7).

They are written with every field: clients that address fields by position without padding the
list (azure-servicebus for Python before 7.15) then find each one. A field whose attribute is None
is null.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.composites import (
    BINARY,
    BOOLEAN,
    MAP,
    STRING,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Composite,
    Field,
    registered,
)
from postbus.amqp.frames.outcomes import ERROR, Error
from postbus.amqp.frames.terminus import SOURCE, TARGET, Source, Target
from postbus.amqp.frames.transactions import DELIVERY_STATE, Coordinator, DeliveryState

UINT_MAX = 0xFFFFFFFF
USHORT_MAX = 0xFFFF

# AMQP 2.8.1: the role field is a boolean.
ROLE_SENDER = False
ROLE_RECEIVER = True

# AMQP 2.8.2 and 2.8.3.
SND_UNSETTLED, SND_SETTLED, SND_MIXED = 0, 1, 2
RCV_FIRST, RCV_SECOND = 0, 1


@registered
@dataclass(slots=True)
class Open(Composite):
    container_id: str
    hostname: str | None = None
    max_frame_size: int = UINT_MAX
    channel_max: int = USHORT_MAX
    idle_time_out: int | None = None
    outgoing_locales: list[Symbol] | None = None
    incoming_locales: list[Symbol] | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x10
    NAME: ClassVar[str] = "amqp:open:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("container_id", STRING, required=True),
        Field("hostname", STRING),
        Field("max_frame_size", UINT, default=UINT_MAX),
        Field("channel_max", USHORT, default=USHORT_MAX),
        Field("idle_time_out", UINT),
        Field("outgoing_locales", SYMBOLS),
        Field("incoming_locales", SYMBOLS),
        Field("offered_capabilities", SYMBOLS),
        Field("desired_capabilities", SYMBOLS),
        Field("properties", MAP),
    )
    FIELDS_MIN: ClassVar[int] = 10


@registered
@dataclass(slots=True)
class Begin(Composite):
    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int = UINT_MAX
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x11
    NAME: ClassVar[str] = "amqp:begin:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("remote_channel", USHORT),
        Field("next_outgoing_id", UINT, required=True),
        Field("incoming_window", UINT, required=True),
        Field("outgoing_window", UINT, required=True),
        Field("handle_max", UINT, default=UINT_MAX),
        Field("offered_capabilities", SYMBOLS),
        Field("desired_capabilities", SYMBOLS),
        Field("properties", MAP),
    )
    FIELDS_MIN: ClassVar[int] = 8


@registered
@dataclass(slots=True)
class Attach(Composite):
    name: str
    handle: int
    role: bool
    snd_settle_mode: int = SND_MIXED
    rcv_settle_mode: int = RCV_FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x12
    NAME: ClassVar[str] = "amqp:attach:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("name", STRING, required=True),
        Field("handle", UINT, required=True),
        Field("role", BOOLEAN, required=True),
        Field("snd_settle_mode", UBYTE, default=SND_MIXED),
        Field("rcv_settle_mode", UBYTE, default=RCV_FIRST),
        Field("source", SOURCE),
        Field("target", TARGET),
        Field("unsettled", MAP),
        Field("incomplete_unsettled", BOOLEAN, default=False),
        Field("initial_delivery_count", UINT),
        Field("max_message_size", ULONG),
        Field("offered_capabilities", SYMBOLS),
        Field("desired_capabilities", SYMBOLS),
        Field("properties", MAP),
    )
    FIELDS_MIN: ClassVar[int] = 14


@registered
@dataclass(slots=True)
class Flow(Composite):
    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x13
    NAME: ClassVar[str] = "amqp:flow:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("next_incoming_id", UINT),
        Field("incoming_window", UINT, required=True),
        Field("next_outgoing_id", UINT, required=True),
        Field("outgoing_window", UINT, required=True),
        Field("handle", UINT),
        Field("delivery_count", UINT),
        Field("link_credit", UINT),
        Field("available", UINT),
        Field("drain", BOOLEAN, default=False),
        Field("echo", BOOLEAN, default=False),
        Field("properties", MAP),
    )
    FIELDS_MIN: ClassVar[int] = 11


@registered
@dataclass(slots=True)
class Transfer(Composite):
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False

    CODE: ClassVar[int] = 0x14
    NAME: ClassVar[str] = "amqp:transfer:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("handle", UINT, required=True),
        Field("delivery_id", UINT),
        Field("delivery_tag", BINARY),
        Field("message_format", UINT),
        Field("settled", BOOLEAN),
        Field("more", BOOLEAN, default=False),
        Field("rcv_settle_mode", UBYTE),
        Field("state", DELIVERY_STATE),
        Field("resume", BOOLEAN, default=False),
        Field("aborted", BOOLEAN, default=False),
        Field("batchable", BOOLEAN, default=False),
    )
    FIELDS_MIN: ClassVar[int] = 11


@registered
@dataclass(slots=True)
class Disposition(Composite):
    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False

    CODE: ClassVar[int] = 0x15
    NAME: ClassVar[str] = "amqp:disposition:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("role", BOOLEAN, required=True),
        Field("first", UINT, required=True),
        Field("last", UINT),
        Field("settled", BOOLEAN, default=False),
        Field("state", DELIVERY_STATE),
        Field("batchable", BOOLEAN, default=False),
    )
    FIELDS_MIN: ClassVar[int] = 6


@registered
@dataclass(slots=True)
class Detach(Composite):
    handle: int
    closed: bool = False
    error: Error | None = None

    CODE: ClassVar[int] = 0x16
    NAME: ClassVar[str] = "amqp:detach:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("handle", UINT, required=True),
        Field("closed", BOOLEAN, default=False),
        Field("error", ERROR),
    )
    FIELDS_MIN: ClassVar[int] = 3


@registered
@dataclass(slots=True)
class End(Composite):
    error: Error | None = None

    CODE: ClassVar[int] = 0x17
    NAME: ClassVar[str] = "amqp:end:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("error", ERROR),)
    FIELDS_MIN: ClassVar[int] = 1


@registered
@dataclass(slots=True)
class Close(Composite):
    error: Error | None = None

    CODE: ClassVar[int] = 0x18
    NAME: ClassVar[str] = "amqp:close:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("error", ERROR),)
    FIELDS_MIN: ClassVar[int] = 1

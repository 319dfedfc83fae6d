"""The error type and the states a delivery can be in (AMQP 2.8.14 and 3.4)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from postbus.amqp.frames.composites import (
    BOOLEAN,
    MAP,
    STRING,
    SYMBOL,
    UINT,
    ULONG,
    Composite,
    Field,
    composite_kind,
    registered,
)


@registered
@dataclass(slots=True)
class Error(Composite):
    """Why something was refused; always written with all three fields (wire §0.2)."""

    condition: str
    description: str | None = None
    info: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x1D
    NAME: ClassVar[str] = "amqp:error:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("condition", SYMBOL, required=True),
        Field("description", STRING),
        Field("info", MAP),
    )
    FIELDS_MIN: ClassVar[int] = 3


ERROR = composite_kind("error", Error.CODE)


@registered
@dataclass(slots=True)
class Received(Composite):
    section_number: int
    section_offset: int

    CODE: ClassVar[int] = 0x23
    NAME: ClassVar[str] = "amqp:received:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("section_number", UINT, required=True),
        Field("section_offset", ULONG, required=True),
    )


@registered
@dataclass(slots=True)
class Accepted(Composite):
    CODE: ClassVar[int] = 0x24
    NAME: ClassVar[str] = "amqp:accepted:list"
    FIELDS: ClassVar[tuple[Field, ...]] = ()


@registered
@dataclass(slots=True)
class Rejected(Composite):
    error: Error | None = None

    CODE: ClassVar[int] = 0x25
    NAME: ClassVar[str] = "amqp:rejected:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("error", ERROR),)


@registered
@dataclass(slots=True)
class Released(Composite):
    CODE: ClassVar[int] = 0x26
    NAME: ClassVar[str] = "amqp:released:list"
    FIELDS: ClassVar[tuple[Field, ...]] = ()


@registered
@dataclass(slots=True)
class Modified(Composite):
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[Any, Any] | None = None

    CODE: ClassVar[int] = 0x27
    NAME: ClassVar[str] = "amqp:modified:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("delivery_failed", BOOLEAN),
        Field("undeliverable_here", BOOLEAN),
        Field("message_annotations", MAP),
    )


Outcome = Accepted | Rejected | Released | Modified

OUTCOME = composite_kind("outcome", Accepted.CODE, Rejected.CODE, Released.CODE, Modified.CODE)

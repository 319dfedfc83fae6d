"""Transactional acquisition, posting and retirement (AMQP 4.5)."""

from dataclasses import dataclass
from typing import ClassVar

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.composites import (
    ANYTHING,
    BINARY,
    BOOLEAN,
    SYMBOLS,
    Composite,
    Field,
    composite_kind,
    registered,
)
from postbus.amqp.frames.outcomes import (
    OUTCOME,
    Accepted,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
)


@registered
@dataclass(slots=True)
class Coordinator(Composite):
    """The target of a link that declares and discharges transactions."""

    capabilities: list[Symbol] | None = None

    CODE: ClassVar[int] = 0x30
    NAME: ClassVar[str] = "amqp:coordinator:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("capabilities", SYMBOLS),)
    FIELDS_MIN: ClassVar[int] = 1


@registered
@dataclass(slots=True)
class Declare(Composite):
    global_id: object = None

    CODE: ClassVar[int] = 0x31
    NAME: ClassVar[str] = "amqp:declare:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("global_id", ANYTHING),)


@registered
@dataclass(slots=True)
class Discharge(Composite):
    txn_id: bytes
    fail: bool | None = None

    CODE: ClassVar[int] = 0x32
    NAME: ClassVar[str] = "amqp:discharge:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("txn_id", BINARY, required=True),
        Field("fail", BOOLEAN),
    )


@registered
@dataclass(slots=True)
class Declared(Composite):
    txn_id: bytes

    CODE: ClassVar[int] = 0x33
    NAME: ClassVar[str] = "amqp:declared:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("txn_id", BINARY, required=True),)


@registered
@dataclass(slots=True)
class TransactionalState(Composite):
    txn_id: bytes
    outcome: Outcome | None = None

    CODE: ClassVar[int] = 0x34
    NAME: ClassVar[str] = "amqp:transactional-state:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("txn_id", BINARY, required=True),
        Field("outcome", OUTCOME),
    )


DeliveryState = Received | Accepted | Rejected | Released | Modified | Declared | TransactionalState

DELIVERY_STATE = composite_kind(
    "delivery-state",
    Received.CODE,
    Accepted.CODE,
    Rejected.CODE,
    Released.CODE,
    Modified.CODE,
    Declared.CODE,
    TransactionalState.CODE,
)

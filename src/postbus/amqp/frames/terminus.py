"""Where a link comes from and goes to (AMQP 3.5.3 and 3.5.4)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.composites import (
    ANYTHING,
    BOOLEAN,
    MAP,
    SYMBOL,
    SYMBOLS,
    UINT,
    Composite,
    Field,
    composite_kind,
    registered,
)
from postbus.amqp.frames.outcomes import OUTCOME, Outcome
from postbus.amqp.frames.transactions import Coordinator


@registered
@dataclass(slots=True)
class Source(Composite):
    """Written with at least the address: an empty list reads as a refusal to some clients
    (wire §3.2)."""

    address: object = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Outcome | None = None
    outcomes: list[Symbol] | None = None
    capabilities: list[Symbol] | None = None

    CODE: ClassVar[int] = 0x28
    NAME: ClassVar[str] = "amqp:source:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("address", ANYTHING),
        Field("durable", UINT),
        Field("expiry_policy", SYMBOL),
        Field("timeout", UINT),
        Field("dynamic", BOOLEAN),
        Field("dynamic_node_properties", MAP),
        Field("distribution_mode", SYMBOL),
        Field("filter", MAP),
        Field("default_outcome", OUTCOME),
        Field("outcomes", SYMBOLS),
        Field("capabilities", SYMBOLS),
    )
    FIELDS_MIN: ClassVar[int] = 1


@registered
@dataclass(slots=True)
class Target(Composite):
    """Written with at least the address, as Source is."""

    address: object = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: list[Symbol] | None = None

    CODE: ClassVar[int] = 0x29
    NAME: ClassVar[str] = "amqp:target:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("address", ANYTHING),
        Field("durable", UINT),
        Field("expiry_policy", SYMBOL),
        Field("timeout", UINT),
        Field("dynamic", BOOLEAN),
        Field("dynamic_node_properties", MAP),
        Field("capabilities", SYMBOLS),
    )
    FIELDS_MIN: ClassVar[int] = 1


SOURCE = composite_kind("source", Source.CODE)
TARGET = composite_kind("target", Target.CODE, Coordinator.CODE)

"""The performatives of the security layer (AMQP 5.3.3), written with every field."""

from dataclasses import dataclass
from typing import ClassVar

from postbus.amqp.codec.types import Symbol
from postbus.amqp.frames.composites import (
    BINARY,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    Composite,
    Field,
    registered,
)


@registered
@dataclass(slots=True)
class SaslMechanisms(Composite):
    sasl_server_mechanisms: list[Symbol]

    CODE: ClassVar[int] = 0x40
    NAME: ClassVar[str] = "amqp:sasl-mechanisms:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("sasl_server_mechanisms", SYMBOLS, required=True),)
    FIELDS_MIN: ClassVar[int] = 1


@registered
@dataclass(slots=True)
class SaslInit(Composite):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None

    CODE: ClassVar[int] = 0x41
    NAME: ClassVar[str] = "amqp:sasl-init:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("mechanism", SYMBOL, required=True),
        Field("initial_response", BINARY),
        Field("hostname", STRING),
    )
    FIELDS_MIN: ClassVar[int] = 3


@registered
@dataclass(slots=True)
class SaslChallenge(Composite):
    challenge: bytes

    CODE: ClassVar[int] = 0x42
    NAME: ClassVar[str] = "amqp:sasl-challenge:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("challenge", BINARY, required=True),)


@registered
@dataclass(slots=True)
class SaslResponse(Composite):
    response: bytes

    CODE: ClassVar[int] = 0x43
    NAME: ClassVar[str] = "amqp:sasl-response:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (Field("response", BINARY, required=True),)


@registered
@dataclass(slots=True)
class SaslOutcome(Composite):
    code: int
    additional_data: bytes | None = None

    CODE: ClassVar[int] = 0x44
    NAME: ClassVar[str] = "amqp:sasl-outcome:list"
    FIELDS: ClassVar[tuple[Field, ...]] = (
        Field("code", UBYTE, required=True),
        Field("additional_data", BINARY),
    )
    FIELDS_MIN: ClassVar[int] = 2

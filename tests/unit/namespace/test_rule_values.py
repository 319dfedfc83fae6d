"""AMQP values as filters see them, and what actions make of them."""

from __future__ import annotations

import math
from decimal import Decimal
from uuid import UUID

import pytest

from postbus.amqp.codec import decode, encode
from postbus.amqp.codec.decimals import decimal_bytes
from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.errors import InvalidArgument
from postbus.model.values import DateTime, TimeSpan, TypedValue, ValueType
from postbus.namespace.rule_values import (
    amqp_from_typed,
    amqp_value,
    rule_value,
    typed_from_amqp,
)
from postbus.rules.values import Opaque, Value

EPOCH = 621_355_968_000_000_000
SPAN = Described(Symbol("com.microsoft:timespan"), 5)
OFFSET = Described(Symbol("com.microsoft:datetime-offset"), EPOCH)
URI = Described(Symbol("com.microsoft:uri"), "http://host/")


def money(text: str) -> Decimal128:
    return Decimal128(decimal_bytes(Decimal(text), 16))


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (None, None),
        (True, True),
        ("text", "text"),
        (Symbol("name"), "name"),
        (Char("é"), "é"),
        (URI, "http://host/"),
        (5, 5),
        (Int(-5), -5),
        (UByte(5), 5),
        (Byte(-5), -5),
        (Short(-5), -5),
        (UShort(5), 5),
        (UInt(5), 5),
        (ULong(2**64 - 1), 2**64 - 1),
        (2.5, 2.5),
        (Float32(2.5), 2.5),
        (money("9.99"), 9.99),
        (Decimal64(decimal_bytes(Decimal("-1"), 8)), -1.0),
        (UUID(int=5), UUID(int=5)),
        (b"bytes", b"bytes"),
        (Timestamp(1), DateTime(EPOCH + 10_000)),
        (Timestamp(-1), DateTime(EPOCH - 10_000)),
        (OFFSET, DateTime(EPOCH)),
        (SPAN, TimeSpan(5)),
    ],
)
def test_what_a_filter_sees(sent: object, seen: Value) -> None:
    value = rule_value(decode(encode(sent))[0])
    assert value == seen
    assert type(value) is type(seen)


@pytest.mark.parametrize(
    "sent",
    [
        [1],
        {"a": 1},
        AmqpArray(0x81, [1]),
        Described(Symbol("com.example:other"), 5),
        Described(ULong(5), "text"),
        Described(Symbol("com.microsoft:timespan"), "text"),
        Described(Symbol("com.microsoft:datetime-offset"), -1),
        Timestamp(2**62),
        Timestamp(-(2**62)),
    ],
)
def test_what_no_filter_understands_is_passed_on_as_it_came(sent: object) -> None:
    value = rule_value(sent)
    assert isinstance(value, Opaque)
    assert encode(amqp_value(value)) == encode(sent)


@pytest.mark.parametrize(
    ("value", "like", "written"),
    [
        (5, None, 5),
        (5, "text", 5),
        (5, Int(1), Int(5)),
        (2**31, Int(1), 2**31),  # too large for the old type
        (-1, UByte(1), -1),
        (255, UByte(1), UByte(255)),
        (5, 7, 5),
        (2.5, Float32(1), Float32(2.5)),
        (1e300, Float32(1), 1e300),
        (math.inf, Float32(1), Float32(math.inf)),
        (9.99, money("1"), money("9.99")),
        (10, money("1"), money("10")),
        (10**17 + 1, Decimal64(bytes(8)), 10**17 + 1),
        ("new", Symbol("old"), Symbol("new")),
        ("é", Symbol("old"), "é"),
        ("x", Char("y"), Char("x")),
        ("xx", Char("y"), "xx"),
        ("http://b/", URI, Described(Symbol("com.microsoft:uri"), "http://b/")),
        (TimeSpan(7), None, Described(Symbol("com.microsoft:timespan"), 7)),
        (TimeSpan(7), SPAN, Described(Symbol("com.microsoft:timespan"), 7)),
        (DateTime(EPOCH + 19_999), None, Timestamp(1)),
        (DateTime(EPOCH + 19_999), Timestamp(5), Timestamp(1)),
        (
            DateTime(EPOCH + 1),
            OFFSET,
            Described(Symbol("com.microsoft:datetime-offset"), EPOCH + 1),
        ),
        (DateTime(EPOCH), SPAN, Timestamp(0)),
        (True, Int(5), True),
        (UUID(int=5), "x", UUID(int=5)),
    ],
)
def test_a_new_value_has_the_old_type_where_that_can_hold_it(
    value: Value, like: object, written: object
) -> None:
    assert encode(amqp_value(value, like)) == encode(written)


@pytest.mark.parametrize(
    ("sent", "typed"),
    [
        ("text", TypedValue(ValueType.STRING, "text")),
        (Symbol("name"), TypedValue(ValueType.STRING, "name")),
        (Int(5), TypedValue(ValueType.INT, "5")),
        (UShort(5), TypedValue(ValueType.INT, "5")),
        (5, TypedValue(ValueType.LONG, "5")),
        (UInt(5), TypedValue(ValueType.LONG, "5")),
        (False, TypedValue(ValueType.BOOLEAN, "false")),
        (2.5, TypedValue(ValueType.DOUBLE, "2.5")),
        (-math.inf, TypedValue(ValueType.DOUBLE, "-INF")),
        (math.inf, TypedValue(ValueType.DOUBLE, "INF")),
        (math.nan, TypedValue(ValueType.DOUBLE, "NaN")),
        (1e300, TypedValue(ValueType.DOUBLE, "1e+300")),
        (money("1.5"), TypedValue(ValueType.DOUBLE, "1.5")),
        (Timestamp(1), TypedValue(ValueType.DATE_TIME, "1970-01-01T00:00:00.001Z")),
        (SPAN, TypedValue(ValueType.DURATION, "PT0.0000005S")),
    ],
)
def test_a_correlation_filter_that_came_over_amqp(sent: object, typed: TypedValue) -> None:
    assert typed_from_amqp("name", sent) == typed
    again = rule_value(amqp_from_typed(typed))
    assert again == rule_value(sent) or math.isnan(again)  # type: ignore[arg-type]


@pytest.mark.parametrize("sent", [None, b"bytes", UUID(int=1), [1], ULong(2**63)])
def test_what_no_correlation_filter_can_ask_for_is_refused_by_name(sent: object) -> None:
    with pytest.raises(InvalidArgument, match="'color' of the correlation filter"):
        typed_from_amqp("color", sent)


def test_an_int_is_given_back_as_an_int() -> None:
    assert type(amqp_from_typed(TypedValue(ValueType.INT, "5"))) is Int
    assert type(amqp_from_typed(TypedValue(ValueType.LONG, "5"))) is int

"""AMQP values as rules calculate with them, and back (wire §4.5).

Here is decided what a property sent by some SDK is for a filter: every width of integer is a
number, symbols, chars and URIs are texts, a decimal is calculated with as a double.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from postbus.amqp.codec.decimals import decimal_bytes, decimal_of
from postbus.amqp.codec.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.errors import InvalidArgument
from postbus.model.times import MAX_TICKS, TICKS_PER_MS, UNIX_EPOCH_TICKS, format_iso
from postbus.model.values import DATE_TIME_MAX_TICKS, DateTime, TimeSpan, TypedValue, ValueType
from postbus.rules.values import INT64_MAX, INT64_MIN, Opaque, Value

_TIMESPAN: Final = "com.microsoft:timespan"
_DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
_URI: Final = "com.microsoft:uri"
_FLOAT32_MAX: Final = 3.4028234663852886e38

_AS_THEY_ARE: Final = frozenset({type(None), bool, int, float, str, UUID, bytes})
_SIZES: Final[dict[type, int]] = {Decimal32: 4, Decimal64: 8, Decimal128: 16}
_RANGES: Final[dict[type, tuple[int, int]]] = {
    UByte: (0, (1 << 8) - 1),
    UShort: (0, (1 << 16) - 1),
    UInt: (0, (1 << 32) - 1),
    ULong: (0, (1 << 64) - 1),
    Byte: (-(1 << 7), (1 << 7) - 1),
    Short: (-(1 << 15), (1 << 15) - 1),
    Int: (-(1 << 31), (1 << 31) - 1),
    Long: (INT64_MIN, INT64_MAX),
}


def rule_value(value: object) -> Value:
    """What an AMQP value is for a filter."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value  # type: ignore[return-value]
    read = _READERS.get(kind)
    return Opaque(value) if read is None else read(value)


def date_time_of(timestamp: int) -> Value:
    """The point in time of an AMQP timestamp, unless .NET could not name it."""
    ticks = UNIX_EPOCH_TICKS + timestamp * TICKS_PER_MS
    return DateTime(ticks) if 0 <= ticks <= DATE_TIME_MAX_TICKS else Opaque(Timestamp(timestamp))


def timestamp_of(moment: DateTime) -> Timestamp:
    """The AMQP timestamp of a point in time, to the millisecond that is over."""
    return Timestamp((moment.ticks - UNIX_EPOCH_TICKS) // TICKS_PER_MS)


def _read_described(value: Described) -> Value:
    content = value.value
    if value.descriptor == _URI and isinstance(content, str):
        return str(content)
    if type(content) is int:
        if value.descriptor == _TIMESPAN:
            return TimeSpan(content)
        if value.descriptor == _DATETIME_OFFSET and 0 <= content <= DATE_TIME_MAX_TICKS:
            return DateTime(content)
    return Opaque(value)


def _read_decimal(value: bytes) -> float:
    return float(decimal_of(value))


_READERS: Final[dict[type, Callable[[Any], Value]]] = {
    **dict.fromkeys(_RANGES, int),
    **dict.fromkeys(_SIZES, _read_decimal),
    Symbol: str,
    Char: str,
    Float32: float,
    Timestamp: date_time_of,
    Described: _read_described,
}


def amqp_value(value: Value, like: object = None) -> object:
    """The AMQP value of what an action calculated: of the type of `like`, which it replaces, where
    that can hold it, and else of its own."""
    kept = _kept_type(value, like)
    if kept is not None:
        return kept
    if isinstance(value, DateTime):
        return timestamp_of(value)
    if isinstance(value, TimeSpan):
        return Described(Symbol(_TIMESPAN), value.ticks)
    if isinstance(value, Opaque):
        return value.content
    return value


def _kept_type(value: Value, like: object) -> object:
    kind = type(like)
    if type(value) is int and kind in _RANGES:
        lowest, highest = _RANGES[kind]
        return kind(value) if lowest <= value <= highest else None  # type: ignore[call-arg]
    if type(value) is float and kind is Float32:
        fits = abs(value) <= _FLOAT32_MAX or not math.isfinite(value)
        return Float32(value) if fits else None
    if type(value) in (int, float) and kind in _SIZES:
        with suppress(ValueError):
            return kind(decimal_bytes(Decimal(repr(value)), _SIZES[kind]))  # type: ignore[call-arg]
        return None
    if isinstance(value, str):
        return _kept_text(value, like)
    if isinstance(like, Described) and isinstance(value, DateTime | TimeSpan):
        wanted = _DATETIME_OFFSET if isinstance(value, DateTime) else _TIMESPAN
        return Described(like.descriptor, value.ticks) if like.descriptor == wanted else None
    return None


def _kept_text(value: str, like: object) -> object:
    match like:
        case Symbol() if value.isascii():
            return Symbol(value)
        case Char() if len(value) == 1:
            return Char(value)
        case Described() if like.descriptor == _URI:
            return Described(like.descriptor, value)
    return None


_WIDE: Final = (int, Long, ULong, UInt)


def typed_from_amqp(name: str, value: object) -> TypedValue:
    """A value of a correlation filter that came over AMQP. Raises InvalidArgument naming it."""
    match rule_value(value):
        case bool() as flag:
            return TypedValue(ValueType.BOOLEAN, "true" if flag else "false")
        case int() as number if number <= INT64_MAX:
            wide = type(value) in _WIDE
            return TypedValue(ValueType.LONG if wide else ValueType.INT, str(number))
        case float() as number:
            return TypedValue(ValueType.DOUBLE, _double_text(number))
        case str() as text:
            return TypedValue(ValueType.STRING, text)
        case DateTime() as moment:
            return TypedValue(ValueType.DATE_TIME, str(moment))
        case TimeSpan() as span if span.ticks >= -MAX_TICKS:
            return TypedValue(ValueType.DURATION, format_iso(span.ticks))
    raise InvalidArgument(
        f"The property '{name[:64]}' of the correlation filter has a value of a type that cannot "
        "be compared."
    )


def amqp_from_typed(typed: TypedValue) -> object:
    """The same value as enumerate-rules gives it back."""
    value = typed.value
    return Int(value) if typed.type is ValueType.INT else amqp_value(value)  # type: ignore[arg-type]


def _double_text(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "INF" if number > 0 else "-INF"

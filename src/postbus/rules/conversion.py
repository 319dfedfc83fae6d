"""Conversion of values to another type without loss: SET keeps the type of an existing property
(semantics A §2)."""

import math
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from postbus.model.times import parse_duration
from postbus.model.values import (
    DateTime,
    TimeSpan,
    parse_boolean,
    parse_date_time,
    parse_double,
    parse_integer,
)
from postbus.rules.values import INT64_MAX, INT64_MIN, Value

_PARSERS: Final[Mapping[type, Callable[[str], Value]]] = {
    bool: parse_boolean,
    int: parse_integer,
    float: parse_double,
    UUID: UUID,
    DateTime: lambda text: DateTime(parse_date_time(text)),
    TimeSpan: lambda text: TimeSpan(parse_duration(text)),
}


def converted(value: Value, wanted: type) -> Value:
    """The value in the type `wanted`; None if there is none."""
    kind = type(value)
    if kind is wanted:
        return value
    if wanted is str:
        return text_of(value)
    if isinstance(value, str):
        return _parsed(value, wanted)
    if kind is int and wanted is float:
        return float(value)  # type: ignore[arg-type]
    if isinstance(value, float) and wanted is int and value.is_integer():
        return int(value) if INT64_MIN <= value <= INT64_MAX else None
    return None


def text_of(value: Value) -> str | None:
    """A value as .NET writes it; None for a value without a text."""
    if isinstance(value, float):
        return _text_of_double(value)
    if isinstance(value, bool | int | str | UUID | DateTime | TimeSpan):
        return str(value)
    return None


def _text_of_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0").replace("e", "E")


def _parsed(text: str, wanted: type) -> Value:
    parse = _PARSERS.get(wanted)
    if parse is None:
        return None
    try:
        return parse(text.strip())
    except ValueError:
        return None

"""Values with a type, as rules hold them in parameters and in correlation filters.

A value is kept as the client's text, beside the name of its type. So a client reads back its own
text, to the digit.
"""

import re
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, Final, Self

from postbus.errors import InvalidArgument
from postbus.model.times import (
    TICKS_PER_DAY,
    TICKS_PER_HOUR,
    TICKS_PER_MINUTE,
    TICKS_PER_SECOND,
    format_timespan,
    parse_iso,
)

DATE_TIME_MAX_TICKS: Final = 3_155_378_975_999_999_999
"""9999-12-31T23:59:59.9999999, the last instant that .NET can name."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_DOUBLE_LENGTH_MAX: Final = 400
_NOT_FINITE: Final = {"INF": "inf", "+INF": "inf", "-INF": "-inf", "NaN": "nan"}
_DATE_TIME: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"T(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,12}))?"
    r"(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)


@dataclass(frozen=True, slots=True, order=True)
class DateTime:
    """A point in time, in ticks since 0001-01-01T00:00:00Z."""

    ticks: int

    def __str__(self) -> str:
        days, rest = divmod(self.ticks, TICKS_PER_DAY)
        hours, rest = divmod(rest, TICKS_PER_HOUR)
        minutes, rest = divmod(rest, TICKS_PER_MINUTE)
        seconds, fraction = divmod(rest, TICKS_PER_SECOND)
        tail = f".{fraction:07d}".rstrip("0") if fraction else ""
        day = date.fromordinal(days + 1).isoformat()
        return f"{day}T{hours:02d}:{minutes:02d}:{seconds:02d}{tail}Z"


@dataclass(frozen=True, slots=True, order=True)
class TimeSpan:
    """A span of time, in ticks; may be negative."""

    ticks: int

    def __str__(self) -> str:
        return format_timespan(self.ticks)


class ValueType(Enum):
    """The types that a rule's values can have, with their names in XML Schema."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    BOOLEAN = "boolean"
    DOUBLE = "double"
    DATE_TIME = "dateTime"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value as a client wrote it. Raises InvalidArgument where the text does not fit the type."""

    type: ValueType
    text: str

    def __post_init__(self) -> None:
        try:
            _parse(self.type, self.text)
        except ValueError:
            raise InvalidArgument(
                f"The value '{self.text[:64]}' is not of the type '{self.type.value}'."
            ) from None

    @property
    def value(self) -> str | int | bool | float | DateTime | TimeSpan:
        """The value of the text."""
        return _parse(self.type, self.text)

    def to_json(self) -> dict[str, str]:
        return {"type": self.type.value, "text": self.text}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The value that to_json() wrote. Raises ValueError for any other text."""
        text = values.get("text") if isinstance(values, dict) and len(values) == 2 else None
        if not isinstance(text, str):
            raise ValueError(f"a value of a rule cannot be {values!r:.200}")
        try:
            return cls(ValueType(values.get("type")), text)
        except InvalidArgument as error:
            raise ValueError(str(error)) from None


def typed_value(type_name: str, text: str) -> TypedValue:
    """The value of an XML element by the name of its type, without prefix."""
    try:
        kind = ValueType(type_name)
    except ValueError:
        known = ", ".join(one.value for one in ValueType)
        raise InvalidArgument(
            f"The type '{type_name[:64]}' is none that a value of a rule can have: {known}."
        ) from None
    return TypedValue(kind, text)


def parse_date_time(text: str) -> int:
    """Ticks of an ISO 8601 date and time; without a zone, it is UTC.

    Digits below a tick are cut off. Raises ValueError.
    """
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text[:64]}' is not a date and time such as '2020-01-31T08:00:00Z'")
    hour, minute, second = (int(match[name]) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"'{text}' has more hours, minutes or seconds than a clock shows")
    day = date(int(match["year"]), int(match["month"]), int(match["day"])).toordinal() - 1
    ticks = day * TICKS_PER_DAY + hour * TICKS_PER_HOUR + minute * TICKS_PER_MINUTE
    ticks += second * TICKS_PER_SECOND - _zone_ticks(match["zone"])
    if match["fraction"]:
        ticks += int(match["fraction"][:7].ljust(7, "0"))
    if not 0 <= ticks <= DATE_TIME_MAX_TICKS:
        raise ValueError(f"'{text}' is not in the years 1 to 9999")
    return ticks


def _zone_ticks(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:])
    if hours > 14 or minutes > 59:
        raise ValueError(f"'{zone}' is no time zone")
    ticks = hours * TICKS_PER_HOUR + minutes * TICKS_PER_MINUTE
    return -ticks if zone[0] == "-" else ticks


def parse_double(text: str) -> float:
    """The number of an XML double. Raises ValueError."""
    if text in _NOT_FINITE:
        return float(_NOT_FINITE[text])
    if len(text) > _DOUBLE_LENGTH_MAX or _DOUBLE.fullmatch(text) is None:
        raise ValueError(f"'{text[:64]}' is no number")
    return float(text)


def parse_integer(text: str, bits: int = 64) -> int:
    """The number of an XML int or long. Raises ValueError."""
    if _INTEGER.fullmatch(text) is None or not -(1 << bits - 1) <= int(text) < 1 << bits - 1:
        raise ValueError(f"'{text[:64]}' is no whole number of {bits} bits")
    return int(text)


def parse_boolean(text: str) -> bool:
    """True or false of an XML boolean, in any case. Raises ValueError."""
    lowered = text.lower()
    if lowered in ("true", "1"):
        return True
    if lowered in ("false", "0"):
        return False
    raise ValueError(f"'{text[:64]}' is neither true nor false")


def _parse(kind: ValueType, text: str) -> str | int | bool | float | DateTime | TimeSpan:
    match kind:
        case ValueType.STRING:
            return text
        case ValueType.INT:
            return parse_integer(text.strip(), 32)
        case ValueType.LONG:
            return parse_integer(text.strip())
        case ValueType.BOOLEAN:
            return parse_boolean(text.strip())
        case ValueType.DOUBLE:
            return parse_double(text.strip())
        case ValueType.DATE_TIME:
            return DateTime(parse_date_time(text.strip()))
        case ValueType.DURATION:
            return TimeSpan(parse_iso(text.strip()))

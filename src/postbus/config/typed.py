"""Values of rules in a file: plain ones, whose type is that of the file, and those that name it."""

import math

from postbus.config.places import not_at, refusals_at
from postbus.model.values import TypedValue, ValueType, typed_value

_INT32 = range(-(1 << 31), 1 << 31)
_NAMED = {"type", "text"}

Plain = bool | int | float | str


def read_typed(value: object, place: str) -> TypedValue:
    """A value of a TOML file: plain, or `{ type = "dateTime", text = "2020-01-31T08:00:00Z" }`."""
    if isinstance(value, dict) and value.keys() == _NAMED:
        kind, text = value["type"], value["text"]
        if isinstance(kind, str) and isinstance(text, str):
            with refusals_at(place):
                return typed_value(kind, text)
    return read_plain(
        value, place, 'text, a number, true or false, or a table { type = "…", text = "…" }'
    )


def read_plain(value: object, place: str, wanted: str) -> TypedValue:
    """A value whose type is that of the file itself. A whole number is as wide as it needs."""
    with refusals_at(place):
        match value:
            case bool():
                return TypedValue(ValueType.BOOLEAN, "true" if value else "false")
            case int():
                narrow = value in _INT32
                return TypedValue(ValueType.INT if narrow else ValueType.LONG, str(value))
            case float():
                return TypedValue(ValueType.DOUBLE, _double_text(value))
            case str():
                return TypedValue(ValueType.STRING, value)
    raise not_at(place, wanted, value)


def plain_of(typed: TypedValue) -> Plain | None:
    """The value of a file that means the same, if there is one."""
    value = typed.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) else None


def is_plain(typed: TypedValue) -> bool:
    """Does its plain value, read again, give back the type and every digit?"""
    plain = plain_of(typed)
    return plain is not None and read_plain(plain, "", "") == typed


def _double_text(number: float) -> str:
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "INF" if number > 0 else "-INF"

"""Values in a file: the TOML text of fields, and the typed values of rules.

A plain value has the type of the file. Another value names its type.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

from postbus.config.content import Chosen
from postbus.config.mistakes import not_at, refusals_at
from postbus.model.authorization import Rules, names_of
from postbus.model.description import Description, EntityStatus
from postbus.model.fields import Field, FieldType
from postbus.model.limits import MESSAGE_SIZE_MIN_KB
from postbus.model.times import INFINITE, TICKS_PER_MS, format_iso
from postbus.model.values import TypedValue, ValueType, typed_value

Toml = bool | int | float | str | Sequence["Toml"] | Mapping[str, "Toml"]

_DELETE: Final = "\x7f"


def toml_of(value: Toml) -> str:
    """One value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # JSON and TOML have the same escapes, but JSON leaves this one character bare.
            return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")
        case Mapping():
            inside = ", ".join(f"{toml_key(key)} = {toml_of(each)}" for key, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return f"[{', '.join(map(toml_of, value))}]"


def toml_key(name: str) -> str:
    """A key of the format stands bare, a chosen name in quotes."""
    is_bare = name.isascii() and name.replace("_", "").isalpha() and name.islower()
    return name if is_bare else toml_of(name)


def field_value(field: Field, description: Description, *, keys: bool = True) -> Toml | None:
    """The value of a field in a file; None where the file leaves it out."""
    value = getattr(description, str(field.attribute))
    if field.kind is FieldType.RULES:
        return _access(value, keys) or None
    if field.attribute == "default_ttl_ms":
        return None if value is None else description.default_ttl_text
    if field.attribute == "max_message_size_kb" and value < MESSAGE_SIZE_MIN_KB:
        return None  # not chosen by anybody: it comes from the settings
    if field.kind is FieldType.DURATION and value is not None:
        return format_iso(value * TICKS_PER_MS)
    if isinstance(value, EntityStatus):
        return value.value
    assert value is None or isinstance(value, bool | int | str)
    return value


def shown(field: Field, description: Chosen) -> str:
    """The value for people: without keys, and with a word for a missing value."""
    value = field_value(field, description, keys=False)
    if value is not None:
        return toml_of(value)
    return toml_of(INFINITE) if field.kind is FieldType.DURATION else "none"


def _access(rules: Rules, keys: bool) -> list[Toml]:
    written: list[Toml] = []
    for rule in rules:
        table: dict[str, Toml] = {"key_name": rule.key_name, "rights": names_of(rule.rights)}
        if keys:
            pair = {"primary_key": rule.primary_key, "secondary_key": rule.secondary_key}
            table.update((name, key) for name, key in pair.items() if key)
        written.append(table)
    return written


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
    """A value with a type of the file itself. A whole number is as wide as it needs."""
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
    """The plain value of a file with the same meaning, if there is one."""
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

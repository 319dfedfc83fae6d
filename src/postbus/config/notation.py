"""TOML text of values, and of what an entity's description says in each of its fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from postbus.config.content import Chosen
from postbus.model.authorization import Rules, names_of
from postbus.model.description import EntityStatus
from postbus.model.fields import Field, FieldType
from postbus.model.limits import MESSAGE_SIZE_MIN_KB
from postbus.model.times import INFINITE, TICKS_PER_MS, format_iso

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
            # JSON's escapes are TOML's; but JSON lets this one character stand for itself.
            return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")
        case Mapping():
            inside = ", ".join(f"{toml_key(key)} = {toml_of(each)}" for key, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return f"[{', '.join(map(toml_of, value))}]"


def toml_key(name: str) -> str:
    """A key that is ours stands bare, a name that somebody chose in quotes."""
    is_bare = name.isascii() and name.replace("_", "").isalpha() and name.islower()
    return name if is_bare else toml_of(name)


def field_value(field: Field, description: Chosen, *, keys: bool = True) -> Toml | None:
    """What the description says there, as a file says it; None for nothing."""
    value = getattr(description, str(field.attribute))
    if field.kind is FieldType.RULES:
        return _access(value, keys) or None
    if field.attribute == "default_ttl_ms":
        return None if value is None else description.default_ttl_text
    if field.attribute == "max_message_size_kb" and value < MESSAGE_SIZE_MIN_KB:
        return None  # nobody has chosen it: it comes from the settings
    if field.kind is FieldType.DURATION and value is not None:
        return format_iso(value * TICKS_PER_MS)
    if isinstance(value, EntityStatus):
        return value.value
    assert value is None or isinstance(value, bool | int | str)
    return value


def shown(field: Field, description: Chosen) -> str:
    """The same for people: without keys, and with a word for nothing."""
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

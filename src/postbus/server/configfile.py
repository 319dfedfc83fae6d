"""Entities to start with: the emulator's Config.json, or our own TOML.

A wrong key or value is an error that names it and its place; nothing is skipped in silence. The
`[settings]` table of a TOML file is read by `postbus.settings` and only handed through here.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Final

from postbus.errors import ServiceBusError
from postbus.model.address import check_entity_name
from postbus.model.authorization import Rules, read_rules, validate_rules
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE, Field, Value, describe, read_value
from postbus.server.keys import KEY_FILE, KEY_NAME

FILE_MAX_BYTES: Final = 4 * 1024 * 1024
EMULATOR_LOCK_DURATION_MS: Final = 60_000
"""What the emulator gives a queue that says nothing (wire contract §9.4)."""

_EMULATOR_PROPERTIES: Final = (
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresDuplicateDetection",
    "RequiresSession",
)
_TOML_FIELDS: Final = {each.key: each for each in QUEUE.fields.values()}


class ConfigError(Exception):
    """The file cannot be used; the text names the file, the place in it, and what is wrong."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """What a file says about a namespace."""

    name: str | None = None
    queues: tuple[tuple[str, QueueDescription], ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    """The `[settings]` table, as it is."""
    default_lock_duration_ms: int | None = None
    """For queues created later, where the file decides it: under an emulator's Config.json."""
    authorization_rules: Rules = ()
    """Keys of the whole namespace, beside the one that is always there."""


def load_config(path: Path, defaults: QueueDescription | None = None) -> NamespaceConfig:
    """Read a file by its form. `defaults` is what a queue is of which the file says nothing.

    Raises ConfigError.
    """
    text = _read(path)
    defaults = QueueDescription() if defaults is None else defaults
    try:
        if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
            return _from_emulator(_parse_json(text), defaults)
        return _from_toml(_parse_toml(text), defaults)
    except _Wrong as wrong:
        raise ConfigError(f"{path}: {wrong}") from None


class _Wrong(Exception):
    """Something at a place in the file; the file's name is added once, at the end."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}" if place else text)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(data) > FILE_MAX_BYTES:
        raise ConfigError(f"{path}: larger than the {FILE_MAX_BYTES} bytes allowed")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8 text") from None


def _parse_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise _Wrong(f"line {error.lineno}, column {error.colno}", error.msg) from None
    except ValueError as error:
        # A number with thousands of digits.
        raise _Wrong("", f"not valid JSON: {error}") from None
    except RecursionError:
        raise _Wrong("", "nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Wrong("", f"the key '{twice}' is there twice in one object")
    return table


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise _Wrong("", f"not valid TOML: {error}") from None
    except RecursionError:
        raise _Wrong("", "nested too deeply") from None


def _from_emulator(document: object, defaults: QueueDescription) -> NamespaceConfig:
    root = _table(document, "", ("UserConfig",))
    user = _table(root.get("UserConfig"), "UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:
        # Where the emulator writes its log; ours goes where --log-format and the shell send it.
        _table(user["Logging"], "UserConfig.Logging", ("Type",))
    namespaces = _list(user.get("Namespaces"), "UserConfig.Namespaces")
    if len(namespaces) != 1:
        raise _Wrong("UserConfig.Namespaces", f"must hold one namespace, not {len(namespaces)}")
    place = "UserConfig.Namespaces[0]"
    namespace = _table(namespaces[0], place, ("Name", "Queues", "Topics"))
    if _list(namespace.get("Topics", []), f"{place}.Topics"):
        raise _Wrong(f"{place}.Topics", "Postbus does not support topics yet")
    defaults = replace(defaults, lock_duration_ms=EMULATOR_LOCK_DURATION_MS)
    return NamespaceConfig(
        name=_text(namespace.get("Name"), f"{place}.Name"),
        queues=_distinct(
            (each, *_emulator_queue(queue, each, defaults))
            for index, queue in enumerate(_list(namespace.get("Queues", []), f"{place}.Queues"))
            for each in (f"{place}.Queues[{index}]",)
        ),
        default_lock_duration_ms=EMULATOR_LOCK_DURATION_MS,
    )


def _emulator_queue(
    queue: object, place: str, defaults: QueueDescription
) -> tuple[str, QueueDescription]:
    table = _table(queue, place, ("Name", "Properties"))
    name = _text(table.get("Name"), f"{place}.Name")
    inside = f"{place}.Properties"
    properties = _table(table.get("Properties", {}), inside, _EMULATOR_PROPERTIES)
    fields = {element: QUEUE.fields[element] for element in properties}
    return _name(name, f"{place}.Name"), _describe(properties, fields, inside, defaults)


def _from_toml(document: dict[str, object], defaults: QueueDescription) -> NamespaceConfig:
    root = _table(document, "", ("namespace", "settings", "queues", "topics"))
    namespace = _table(root.get("namespace", {}), "[namespace]", ("name", "authorization_rules"))
    settings = root.get("settings", {})
    if not isinstance(settings, dict):
        raise _Wrong("[settings]", "must be a table")
    if root.get("topics"):
        raise _Wrong("[topics]", "Postbus does not support topics yet")
    queues = root.get("queues", {})
    if not isinstance(queues, dict):
        raise _Wrong("[queues]", 'must be a table of tables, as in [queues."orders"]')
    name = namespace.get("name")
    return NamespaceConfig(
        name=None if name is None else _text(name, "[namespace] name"),
        queues=_distinct(
            (f'[queues."{each}"]', *_toml_queue(each, table, defaults))
            for each, table in queues.items()
        ),
        settings=settings,
        authorization_rules=_namespace_rules(namespace.get("authorization_rules", [])),
    )


def _namespace_rules(value: object) -> Rules:
    place = "[[namespace.authorization_rules]]"
    try:
        rules = read_rules(value)
    except ValueError as error:
        raise _Wrong(place, str(error)) from None
    with _refusals_at(place):
        validate_rules(rules)
    for rule in rules:
        if rule.key_name.lower() == KEY_NAME.lower():
            raise _Wrong(place, f"'{KEY_NAME}' is there always, with the keys of {KEY_FILE}")
        if not rule.primary_key:
            # Nobody could be told of one that is made here: it would be another at each start.
            raise _Wrong(place, f"'{rule.key_name}' has no primary_key")
    return rules


def _toml_queue(
    name: str, table: object, defaults: QueueDescription
) -> tuple[str, QueueDescription]:
    place = f'[queues."{name}"]'
    properties = _table(table, place, _TOML_FIELDS)
    return _name(name, place), _describe(properties, _TOML_FIELDS, place, defaults)


def _describe(
    properties: Mapping[str, object],
    fields: Mapping[str, Field],
    place: str,
    defaults: QueueDescription,
) -> QueueDescription:
    values: dict[str, Value] = {}
    for key, value in properties.items():
        try:
            values[fields[key].element] = read_value(fields[key], value)
        except ValueError as error:
            raise _Wrong(_inside(place, key), str(error)) from None
    with _refusals_at(place):
        return describe(QUEUE, values, defaults)


def _name(name: str, place: str) -> str:
    with _refusals_at(place):
        check_entity_name(name)
    return name


@contextmanager
def _refusals_at(place: str) -> Iterator[None]:
    try:
        yield
    except ServiceBusError as error:
        raise _Wrong(place, " ".join(str(error).split())) from None


def _distinct(
    queues: Iterable[tuple[str, str, QueueDescription]],
) -> tuple[tuple[str, QueueDescription], ...]:
    seen: dict[str, str] = {}
    found = []
    for place, name, description in queues:
        # Names compare case-insensitively, in a file as everywhere.
        if (first := seen.setdefault(name.lower(), place)) != place:
            raise _Wrong(place, f"the queue '{name}' is there already, at {first}")
        found.append((name, description))
    return tuple(found)


def _table(value: object, place: str, keys: Iterable[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _Wrong(
            place, "is missing" if value is None else f"must be a table, not {brief(value)}"
        )
    known = list(keys)
    for key in value:
        if key not in known:
            likely = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean '{likely[0]}'?" if likely else ""
            raise _Wrong(_inside(place, key), f"there is no such key{hint}")
    return value


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise _Wrong(
            place, "is missing" if value is None else f"must be a list, not {brief(value)}"
        )
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise _not(place, "text", value)
    return value


def _not(place: str, wanted: str, value: object) -> _Wrong:
    return _Wrong(place, "is missing" if value is None else f"must be {wanted}, not {brief(value)}")


def _inside(place: str, key: str) -> str:
    if not place:
        return key
    return f"{place} {key}" if place.startswith("[") else f"{place}.{key}"

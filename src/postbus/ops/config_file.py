"""The file of `--config`: the emulator's Config.json, or our own TOML.

A wrong key or value is an error that names it and its place; nothing is skipped in silence.
`postbus.config` reads the entities. `postbus.settings` reads the `[settings]` table of a TOML file,
which only passes through here.
"""

import json
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from postbus.auth.namespace_key import KEY_FILE, KEY_NAME
from postbus.config.content import Content
from postbus.config.emulator import LOCK_DURATION_MS, read_emulator
from postbus.config.mistakes import ConfigError, ConfigMistake, refusals_at, table_at, text_at
from postbus.config.toml import read_content
from postbus.model.authorization import Rules, read_rules, validate_rules
from postbus.model.description import QueueDescription

FILE_MAX_BYTES: Final = 64 * 1024 * 1024
"""An export of ten thousand queues for the emulator has six million bytes."""


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """The contents of a file about a namespace."""

    name: str | None = None
    content: Content = field(default_factory=Content)
    settings: Mapping[str, object] = field(default_factory=dict)
    """The unread `[settings]` table."""
    default_lock_duration_ms: int | None = None
    """For queues created later, where the file decides it: in an emulator's Config.json."""
    authorization_rules: Rules = ()
    """Keys of the whole namespace, beside the permanent one."""
    named: Content = field(default_factory=Content)
    """Entities that options of `serve` name. They are no part of the file."""

    @property
    def has_keys(self) -> bool:
        """Does the file hold any key, of the namespace or of an entity?"""
        rules = [*self.authorization_rules]
        for entity in self.content.entities():
            rules += entity.description.authorization_rules
        return any(rule.keys for rule in rules)


def load_config(path: Path, defaults: QueueDescription | None = None) -> NamespaceConfig:
    """Read a file in either format. `defaults` are the values of a queue's missing fields.

    Raises ConfigError.
    """
    text = _read(path)
    defaults = QueueDescription() if defaults is None else defaults
    try:
        if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
            return _from_emulator(_parse_json(text), defaults)
        return _from_toml(_parse_toml(text), defaults)
    except ConfigMistake as wrong:
        raise ConfigError(f"{path}: {wrong}") from None


def is_exposed(path: Path) -> bool:
    """May everybody on this machine read the file? False for a missing file."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


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
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_not_a_number)
    except json.JSONDecodeError as error:
        raise ConfigMistake(f"line {error.lineno}, column {error.colno}", error.msg) from None
    except ValueError as error:
        # A number with thousands of digits.
        raise ConfigMistake("", f"not valid JSON: {error}") from None
    except RecursionError:
        raise ConfigMistake("", "nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigMistake("", f"the key '{twice}' is there twice in one object")
    return table


def _not_a_number(name: str) -> NoReturn:
    raise ConfigMistake("", f"not valid JSON: {name} is no number there")


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigMistake("", f"not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigMistake("", "nested too deeply") from None


def _from_emulator(document: object, defaults: QueueDescription) -> NamespaceConfig:
    found = read_emulator(document, defaults)
    return NamespaceConfig(
        name=found.name, content=found.content, default_lock_duration_ms=LOCK_DURATION_MS
    )


def _from_toml(document: dict[str, object], defaults: QueueDescription) -> NamespaceConfig:
    root = table_at(document, "", ("namespace", "settings", "queues", "topics"))
    namespace = table_at(root.get("namespace", {}), "[namespace]", ("name", "authorization_rules"))
    settings = root.get("settings", {})
    if not isinstance(settings, dict):
        raise ConfigMistake("[settings]", "must be a table")
    name = namespace.get("name")
    return NamespaceConfig(
        name=None if name is None else text_at(name, "[namespace] name"),
        content=read_content(root, defaults),
        settings=settings,
        authorization_rules=_namespace_rules(namespace.get("authorization_rules", [])),
    )


def _namespace_rules(value: object) -> Rules:
    place = "[[namespace.authorization_rules]]"
    try:
        rules = read_rules(value)
    except ValueError as error:
        raise ConfigMistake(place, str(error)) from None
    with refusals_at(place):
        validate_rules(rules)
    for rule in rules:
        if rule.key_name.lower() == KEY_NAME.lower():
            raise ConfigMistake(place, f"'{KEY_NAME}' is there always, with the keys of {KEY_FILE}")
        if not rule.primary_key:
            # A key made here would never reach a client, and change with each start.
            raise ConfigMistake(place, f"'{rule.key_name}' has no primary_key")
    return rules

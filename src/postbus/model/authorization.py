"""Shared access rules: keys for one entity or the whole namespace, and the rights of each key.

A queue or a topic has up to twelve of them (semantics A §5.2). A client's rule may lack its keys,
and never has its times; `settle_rules` fills these in.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from reprlib import repr as brief
from typing import Any, Final, Self

from postbus.errors import InvalidArgument
from postbus.model.times import Instant

RULES_MAX: Final = 12
KEY_NAME_LENGTH_MAX: Final = 256

# The characters that URL encoding leaves alone. .NET's client refuses to write any other, and a
# token carries the name URL-encoded.
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9\-_.!*()]+", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z0-9+/]{42}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==)", re.ASCII)


class Right(Flag):
    """The rights of a key on the entities that it opens."""

    LISTEN = auto()
    SEND = auto()
    MANAGE = auto()


ALL_RIGHTS: Final = Right.LISTEN | Right.SEND | Right.MANAGE

_BY_NAME: Final = {str(right.name).capitalize(): right for right in Right}


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A named pair of keys. Either value serves, so that one can be replaced while the other works.

    An empty key is still to be made; a time of 0 is not known yet.
    """

    key_name: str
    rights: tuple[Right, ...]
    """In the client's order, which replies keep."""
    primary_key: str = ""
    secondary_key: str = ""
    created_at: Instant = 0
    modified_at: Instant = 0

    def __repr__(self) -> str:
        # Descriptions end up in logs and in failed assertions; keys must not.
        return f"AuthorizationRule({self.key_name!r}, {names_of(self.rights)})"

    @property
    def granted(self) -> Right:
        """All its rights as one value."""
        together = Right(0)
        for right in self.rights:
            together |= right
        return together

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in (self.primary_key, self.secondary_key) if key)

    def validate(self) -> None:
        """Raise InvalidArgument for the first mistake in the rule."""
        self._validate_name()
        if not self.rights:
            raise InvalidArgument(f"The authorization rule '{self.key_name}' has no rights.")
        if len(set(self.rights)) < len(self.rights):
            raise InvalidArgument(
                f"Access rights on an authorization rule must be unique: '{self.key_name}' has "
                f"{', '.join(names_of(self.rights))}."
            )
        if Right.MANAGE in self.rights and self.granted != ALL_RIGHTS:
            raise InvalidArgument(
                f"Manage permission should also include Send and Listen: '{self.key_name}' has "
                f"{', '.join(names_of(self.rights))}."
            )
        for name, key in (("PrimaryKey", self.primary_key), ("SecondaryKey", self.secondary_key)):
            if key and _KEY.fullmatch(key) is None:
                # Without the value: it may be a key that is used elsewhere.
                raise InvalidArgument(
                    f"The {name} of the authorization rule '{self.key_name}' must have 44 "
                    "characters of base64."
                )

    def _validate_name(self) -> None:
        if not self.key_name:
            raise InvalidArgument("An authorization rule has no KeyName.")
        if len(self.key_name) > KEY_NAME_LENGTH_MAX:
            raise InvalidArgument(
                f"The KeyName of an authorization rule has {len(self.key_name)} characters; "
                f"{KEY_NAME_LENGTH_MAX} are allowed."
            )
        if _KEY_NAME.fullmatch(self.key_name) is None:
            raise InvalidArgument(
                f"The KeyName '{self.key_name}' of an authorization rule contains invalid "
                "characters: letters, digits and -_.!*() are allowed."
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "key_name": self.key_name,
            "rights": names_of(self.rights),
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "created_at": self.created_at,
            "modified_at": self.modified_at,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The rule that to_json() wrote. Raises ValueError for text that no version has written."""
        rule = cls(
            _member(values, "key_name", str),
            tuple(read_right(name) for name in _member(values, "rights", list)),
            _member(values, "primary_key", str),
            _member(values, "secondary_key", str),
            _member(values, "created_at", int),
            _member(values, "modified_at", int),
        )
        if len(values) != len(rule.to_json()):
            raise ValueError(f"an authorization rule has other keys than {', '.join(values)}")
        return rule


Rules = tuple[AuthorizationRule, ...]


def names_of(rights: Iterable[Right]) -> list[str]:
    return [str(right.name).capitalize() for right in rights]


def read_right(name: object) -> Right:
    """The right of this name. Raises ValueError."""
    right = _BY_NAME.get(name) if isinstance(name, str) else None
    if right is None:
        raise ValueError(f"a right must be one of {', '.join(_BY_NAME)}, not {brief(name)}")
    return right


def validate_rules(rules: Sequence[AuthorizationRule]) -> None:
    """Raise InvalidArgument where an entity cannot have these rules."""
    if len(rules) > RULES_MAX:
        raise InvalidArgument(f"There are {len(rules)} authorization rules; {RULES_MAX} allowed.")
    seen: set[str] = set()
    for rule in rules:
        rule.validate()
        # .NET compares the names of two rules in the same way.
        if rule.key_name.lower() in seen:
            raise InvalidArgument(f"Two authorization rules have the KeyName '{rule.key_name}'.")
        seen.add(rule.key_name.lower())


def settle_rules(rules: Rules, previous: Rules, now: Instant, new_key: Callable[[], str]) -> Rules:
    """The rules to keep, with the keys and times that the client left out.

    A missing key comes from the previous rule of the same name, or is new. So a client that writes
    back rules without keys changes no key.
    """
    known = {rule.key_name.lower(): rule for rule in previous}
    return tuple(_settle(rule, known.get(rule.key_name.lower()), now, new_key) for rule in rules)


def _settle(
    rule: AuthorizationRule,
    previous: AuthorizationRule | None,
    now: Instant,
    new_key: Callable[[], str],
) -> AuthorizationRule:
    if previous is None:
        return replace(
            rule,
            primary_key=rule.primary_key or new_key(),
            secondary_key=rule.secondary_key or new_key(),
            created_at=now,
            modified_at=now,
        )
    settled = replace(
        rule,
        primary_key=rule.primary_key or previous.primary_key,
        secondary_key=rule.secondary_key or previous.secondary_key,
        created_at=previous.created_at,
        modified_at=previous.modified_at,
    )
    return settled if settled == previous else replace(settled, modified_at=now)


def rules_to_json(rules: Rules) -> list[dict[str, Any]]:
    return [rule.to_json() for rule in rules]


def rules_from_json(values: object) -> Rules:
    """The rules that rules_to_json() wrote. Raises ValueError."""
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise ValueError(f"authorization rules cannot be {brief(values)}")
    return tuple(AuthorizationRule.from_json(each) for each in values)


_TABLE_KEYS: Final = ("key_name", "rights", "primary_key", "secondary_key")


def read_rules(value: object) -> Rules:
    """Rules from a TOML file: a list of tables. Raises ValueError that names place and key."""
    if not isinstance(value, list):
        raise ValueError(f"must be a list of tables, not {brief(value)}")
    return tuple(_read_rule(each, f"number {index + 1}") for index, each in enumerate(value))


def _read_rule(table: object, place: str) -> AuthorizationRule:
    if not isinstance(table, dict):
        raise ValueError(f"{place} must be a table, not {brief(table)}")
    for key, value in table.items():
        if key not in _TABLE_KEYS:
            raise ValueError(
                f"{place}: there is no such key as '{key}', only {', '.join(_TABLE_KEYS)}"
            )
        wanted = list if key == "rights" else str
        if not isinstance(value, wanted):
            # Not the value: a key of the wrong type is a key all the same.
            raise ValueError(f"{place}: '{key}' must be {'a list' if wanted is list else 'text'}")
    try:
        rights = tuple(read_right(name) for name in table.get("rights", []))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return AuthorizationRule(
        table.get("key_name", ""),
        rights,
        table.get("primary_key", ""),
        table.get("secondary_key", ""),
    )


def _member(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"'{name}' of an authorization rule cannot be {brief(value)}")
    return value

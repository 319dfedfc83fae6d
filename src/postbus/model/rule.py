"""The description of a subscription's rule: its name, its filter, its action.

SQL texts are not checked here: `postbus.rules` compiles them, and refuses bad ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from postbus.errors import InvalidArgument
from postbus.model.description import NOT_IN_XML
from postbus.model.times import Instant
from postbus.model.values import TypedValue

DEFAULT_RULE_NAME: Final = "$Default"
RULE_NAME_LENGTH_MAX: Final = 50
EXPRESSION_LENGTH_MAX: Final = 1_024
"""Characters of a filter's and of an action's SQL text (semantics A §1.5)."""
VALUES_LENGTH_MAX: Final = 65_536
"""Characters of all names and values in one filter or action together. The largest header of a
message has as many, so a longer filter could match nothing."""

TRUE_EXPRESSION: Final = "1=1"
FALSE_EXPRESSION: Final = "1=0"
"""TRUE and FALSE filters where every filter has an SQL text (semantics A §4)."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Selects the messages for which an SQL predicate is true."""

    expression: str
    parameters: Mapping[str, TypedValue] = field(default_factory=dict)
    """By name, with the `@` if the client wrote it."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Selects the messages whose properties equal all of these."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, TypedValue] = field(default_factory=dict)

    def system(self) -> Iterator[tuple[str, str]]:
        """The system properties to compare: field and value."""
        for name in SYSTEM_FIELDS:
            value = getattr(self, name)
            if value is not None:
                yield name, value


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Selects every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Selects no message."""


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Changes the properties of the copy that a rule makes."""

    expression: str
    parameters: Mapping[str, TypedValue] = field(default_factory=dict)


Filter = SqlFilter | CorrelationFilter | TrueFilter | FalseFilter

SYSTEM_FIELDS: Final = tuple(
    one.name for one in fields(CorrelationFilter) if one.name != "properties"
)

_KINDS: Final[Mapping[str, type[Filter]]] = {
    "sql": SqlFilter,
    "correlation": CorrelationFilter,
    "true": TrueFilter,
    "false": FalseFilter,
}
_KIND_OF: Final = {cls: kind for kind, cls in _KINDS.items()}
_MAPS: Final = ("parameters", "properties")


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """A whole rule. Without filter it selects all, without action it changes nothing."""

    name: str = DEFAULT_RULE_NAME
    filter: Filter = TrueFilter()
    action: SqlAction | None = None
    created_at: Instant = 0

    def validate(self) -> None:
        """Raise InvalidArgument for the first value that no rule can have."""
        check_rule_name(self.name)
        match self.filter:
            case SqlFilter():
                _check_sql("filter", self.filter)
            case CorrelationFilter():
                _check_correlation(self.filter)
        if self.action is not None:
            _check_sql("action", self.action)

    def to_json(self) -> dict[str, Any]:
        """The form in the catalog, without values that are the default."""
        written: dict[str, Any] = {"name": self.name, "created_at": self.created_at}
        written["filter"] = {"kind": _KIND_OF[type(self.filter)], **_to_json(self.filter)}
        if self.action is not None:
            written["action"] = _to_json(self.action)
        return written

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The description that to_json() wrote.

        Raises ValueError for a key or a value that no version of this class has written.
        """
        given = dict(values)
        name, created_at = given.pop("name", None), given.pop("created_at", 0)
        chosen, action = given.pop("filter", None), given.pop("action", None)
        if given:
            raise ValueError(f"a rule's description has no '{next(iter(given))}'")
        if not isinstance(name, str) or type(created_at) is not int:
            raise ValueError(f"a rule cannot have the name {name!r} and the time {created_at!r}")
        if not isinstance(chosen, dict) or chosen.get("kind") not in _KINDS:
            raise ValueError(f"the filter of rule '{name}' cannot be {chosen!r:.200}")
        rest = {key: value for key, value in chosen.items() if key != "kind"}
        return cls(
            name,
            _from_json(_KINDS[chosen["kind"]], rest),
            None if action is None else _from_json(SqlAction, action),
            created_at,
        )


def check_rule_name(name: str) -> None:
    """Raise InvalidArgument where `name` cannot be the name of a rule."""
    # Azure's text (semantics A §4). Clients remove "." and ".." from a path before they send it.
    if not name.strip() or "/" in name or name in (".", "..") or NOT_IN_XML.search(name):
        raise InvalidArgument(f'The specified name ("{name[:64]}") is not valid.')
    if len(name) > RULE_NAME_LENGTH_MAX:
        raise InvalidArgument(
            f"The name of the rule has {len(name)} characters; {RULE_NAME_LENGTH_MAX} are allowed."
        )


def _check_sql(what: str, sql: SqlFilter | SqlAction) -> None:
    length = len(sql.expression)
    if not sql.expression.strip():
        raise InvalidArgument(f"The SQL expression of the {what} is empty.")
    if length > EXPRESSION_LENGTH_MAX:
        raise InvalidArgument(
            f"The SQL expression of the {what} has {length} characters; "
            f"{EXPRESSION_LENGTH_MAX} are allowed."
        )
    _check_texts(what, (sql.expression,), sql.parameters)


def _check_correlation(chosen: CorrelationFilter) -> None:
    texts = [value for _, value in chosen.system()]
    if not texts and not chosen.properties:
        raise InvalidArgument("A correlation filter must have at least one property to compare.")
    if "" in chosen.properties:
        raise InvalidArgument("A property of the correlation filter has no name.")
    _check_texts("filter", texts, chosen.properties)


def _check_texts(what: str, texts: Any, values: Mapping[str, TypedValue]) -> None:
    every = [*texts, *values, *(value.text for value in values.values())]
    length = sum(map(len, every))
    if length > VALUES_LENGTH_MAX:
        raise InvalidArgument(
            f"The names and values of the {what} have {length} characters; "
            f"{VALUES_LENGTH_MAX} are allowed."
        )
    if any(NOT_IN_XML.search(text) for text in every):
        raise InvalidArgument(f"The {what} of the rule has a character that XML cannot hold.")


def _to_json(part: Filter | SqlAction) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for one in fields(part):
        value = getattr(part, one.name)
        if one.name in _MAPS:
            value = {name: typed.to_json() for name, typed in value.items()} or None
        if value is not None:
            written[one.name] = value
    return written


def _from_json(cls: Any, values: Any) -> Any:
    known = {one.name for one in fields(cls)}
    if not isinstance(values, dict) or not values.keys() <= known:
        raise ValueError(f"{cls.__name__} of a rule cannot be {values!r:.200}")
    given = dict(values)
    for name, value in given.items():
        if name in _MAPS and isinstance(value, dict):
            given[name] = {key: TypedValue.from_json(typed) for key, typed in value.items()}
        elif name in _MAPS or not isinstance(value, str):
            raise ValueError(f"'{name}' of a rule's {cls.__name__} cannot be {value!r:.200}")
    try:
        return cls(**given)
    except TypeError:
        raise ValueError(f"{cls.__name__} of a rule cannot be {values!r:.200}") from None

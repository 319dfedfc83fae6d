"""Rules as XML: filter, action and the typed values in them (wire §9.4)."""

from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

from postbus.errors import InvalidArgument
from postbus.http.atom import INSTANCE, element, is_nil, local_name, service_bus, time_text
from postbus.http.description_xml import children, text_of
from postbus.http.problems import xml_text
from postbus.model.rule import (
    DEFAULT_RULE_NAME,
    FALSE_EXPRESSION,
    SYSTEM_FIELDS,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.times import Instant
from postbus.model.values import TypedValue, ValueType, typed_value

RULE: Final = "RuleDescription"
DEFAULT_RULE: Final = "DefaultRuleDescription"

_COMPATIBILITY_LEVEL: Final = 20
_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"

_SQL_ELEMENTS: Final = frozenset(
    {"SqlExpression", "Parameters", "CompatibilityLevel", "RequiresPreprocessing"}
)
# The element of each property: `reply_to` is `ReplyTo`.
_CORRELATION: Final[Mapping[str, str]] = {
    "".join(word.capitalize() for word in name.split("_")): name for name in SYSTEM_FIELDS
}


def read_rule(content: Element, name: str | None, now: Instant) -> RuleDescription:
    """The rule in a request. `name` is the name in its path, where a default rule has none.

    Raises InvalidArgument.
    """
    what = local_name(content)
    parts = _known(content, what, {"Filter", "Action", "CreatedAt", "Name"})
    said = text_of(parts["Name"], "text") if "Name" in parts else ""
    if name is not None and said and said.lower() != name.lower():
        raise InvalidArgument(
            f"The rule is called '{name}' in the path and '{said[:64]}' in the description."
        )
    rule = RuleDescription(
        name or said or DEFAULT_RULE_NAME,
        _read_filter(parts["Filter"]) if "Filter" in parts else TrueFilter(),
        _read_action(parts["Action"]) if "Action" in parts else None,
        now,
    )
    rule.validate()
    return rule


def rule_xml(rule: RuleDescription, *, stored: bool) -> str:
    """A rule in a reply. After a rule was `stored`, the reply leaves out empty lists, as Azure's
    does (semantics A §4)."""
    action = rule.action
    return service_bus(
        RULE,
        _filter_xml(rule.filter, stored)
        # Always there: Python's client reads it without checking that it exists.
        + _typed(
            "Action",
            "EmptyRuleAction" if action is None else "SqlRuleAction",
            "" if action is None else _sql_xml(action.expression, action.parameters, stored),
        )
        + element("CreatedAt", time_text(rule.created_at))
        + element("Name", rule.name),
    )


def _read_filter(content: Element) -> Filter:
    if is_nil(content):
        return TrueFilter()
    match _type_of(content):
        case "SqlFilter":
            return SqlFilter(*_read_sql(content, "SqlFilter"))
        case "CorrelationFilter":
            return _read_correlation(content)
        case "TrueFilter":
            _known(content, "TrueFilter", _SQL_ELEMENTS)
            return TrueFilter()
        case "FalseFilter":
            _known(content, "FalseFilter", _SQL_ELEMENTS)
            return FalseFilter()
        case other:
            raise InvalidArgument(
                "The type of a 'Filter' must be SqlFilter, CorrelationFilter, TrueFilter or "
                f"FalseFilter, not '{other[:64]}'."
            )


def _read_action(content: Element) -> SqlAction | None:
    if is_nil(content):
        return None
    match _type_of(content):
        case "SqlRuleAction":
            return SqlAction(*_read_sql(content, "SqlRuleAction"))
        case "EmptyRuleAction":
            _known(content, "EmptyRuleAction", frozenset())
            return None
        case other:
            raise InvalidArgument(
                "The type of an 'Action' must be SqlRuleAction or EmptyRuleAction, "
                f"not '{other[:64]}'."
            )


def _read_sql(content: Element, what: str) -> tuple[str, dict[str, TypedValue]]:
    parts = _known(content, what, _SQL_ELEMENTS)
    if "SqlExpression" not in parts:
        raise InvalidArgument(f"A {what} must have an 'SqlExpression'.")
    expression = text_of(parts["SqlExpression"], "text")
    return expression, _read_pairs(parts["Parameters"]) if "Parameters" in parts else {}


def _read_correlation(content: Element) -> CorrelationFilter:
    parts = _known(content, "CorrelationFilter", {*_CORRELATION, "Properties"})
    system = {
        _CORRELATION[name]: text_of(child, "text")
        for name, child in parts.items()
        if name in _CORRELATION and not is_nil(child)
    }
    properties = _read_pairs(parts["Properties"]) if "Properties" in parts else {}
    return CorrelationFilter(**system, properties=properties)


def _read_pairs(content: Element) -> dict[str, TypedValue]:
    pairs: dict[str, TypedValue] = {}
    for child in content:
        if local_name(child) != "KeyValueOfstringanyType":
            raise InvalidArgument(
                f"'{local_name(content)}' must hold elements 'KeyValueOfstringanyType', "
                f"not '{local_name(child)}'."
            )
        parts = _known(child, "KeyValueOfstringanyType", {"Key", "Value"})
        if len(parts) < 2:
            raise InvalidArgument("A 'KeyValueOfstringanyType' must have a 'Key' and a 'Value'.")
        key = text_of(parts["Key"], "text")
        if key in pairs:
            raise InvalidArgument(f"The key '{key[:64]}' is there twice.")
        kind = _type_of(parts["Value"]) or ValueType.STRING.value
        pairs[key] = typed_value(kind, text_of(parts["Value"], f"a value of type {kind[:64]}"))
    return pairs


def _known(content: Element, what: str, names: frozenset[str] | set[str]) -> dict[str, Element]:
    parts = children(content, what)
    for name in parts:
        if name not in names:
            raise InvalidArgument(f"The element '{name}' is not part of a {what}.")
    return parts


def _type_of(content: Element) -> str:
    """The type that an element declares, without prefix: each client declares its own prefix."""
    return content.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def _filter_xml(chosen: Filter, stored: bool) -> str:
    match chosen:
        case SqlFilter():
            inside = _sql_xml(chosen.expression, chosen.parameters, stored)
        case TrueFilter():
            inside = _sql_xml(TRUE_EXPRESSION, {}, stored)
        case FalseFilter():
            inside = _sql_xml(FALSE_EXPRESSION, {}, stored)
        case CorrelationFilter():
            inside = "".join(
                element(name, value)
                for name, field in _CORRELATION.items()
                if (value := getattr(chosen, field)) is not None
            ) + _pairs_xml("Properties", chosen.properties, stored)
    return _typed("Filter", type(chosen).__name__, inside)


def _sql_xml(expression: str, parameters: Mapping[str, TypedValue], stored: bool) -> str:
    return (
        element("SqlExpression", expression)
        + element("CompatibilityLevel", _COMPATIBILITY_LEVEL)
        + _pairs_xml("Parameters", parameters, stored)
    )


def _pairs_xml(name: str, pairs: Mapping[str, TypedValue], stored: bool) -> str:
    if stored and not pairs:
        return ""
    inside = "".join(
        "<KeyValueOfstringanyType>"
        + element("Key", key)
        + _value_xml(value)
        + "</KeyValueOfstringanyType>"
        for key, value in pairs.items()
    )
    return f"<{name}>{inside}</{name}>"


def _value_xml(value: TypedValue) -> str:
    # Azure gives a duration back in a namespace of .NET's own (semantics A §3). Python takes
    # the type from behind the colon, JavaScript from the sixth character on.
    space = _SERIALIZATION if value.type is ValueType.DURATION else _SCHEMA
    kind, text = value.type.value, xml_text(value.text)
    return f'<Value xmlns:d6p1="{space}" i:type="d6p1:{kind}">{text}</Value>'


def _typed(name: str, kind: str, inside: str) -> str:
    return f'<{name} i:type="{kind}">{inside}</{name}>'

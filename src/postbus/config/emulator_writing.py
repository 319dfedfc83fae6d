"""A namespace as a Config.json of Microsoft's emulator, and what that format has no room for."""

import json
from collections.abc import Sequence
from typing import Any, Final

from postbus.config.content import Content, Queue, Subscription, Topic, chosen_fields, form_of
from postbus.config.emulator_reading import (
    FILTER_KEYS,
    QUEUE_PROPERTIES,
    SUBSCRIPTION_PROPERTIES,
    SYSTEM_KEYS,
    TOPIC_PROPERTIES,
)
from postbus.config.notation import field_value
from postbus.config.toml_writing import DEFAULTS
from postbus.config.typed import plain_of
from postbus.model.fields import FieldType
from postbus.model.rule import (
    DEFAULT_RULE_NAME,
    FALSE_EXPRESSION,
    TRUE_EXPRESSION,
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)

_NOTHING: Final = RuleDescription(DEFAULT_RULE_NAME, FalseFilter())


def write_emulator(name: str, content: Content) -> tuple[str, list[str]]:
    """The text of a file, and a line for each thing that it cannot hold."""
    lost: list[str] = []
    namespace = {
        "Name": name,
        "Queues": [
            {"Name": queue.name, "Properties": _properties(queue, QUEUE_PROPERTIES, "", lost)}
            for queue in content.queues
        ],
        "Topics": [_topic(topic, lost) for topic in content.topics],
    }
    document = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n", lost


def _topic(topic: Topic, lost: list[str]) -> dict[str, Any]:
    return {
        "Name": topic.name,
        "Properties": _properties(topic, TOPIC_PROPERTIES, "", lost),
        "Subscriptions": [_subscription(topic.name, each, lost) for each in topic.subscriptions],
    }


def _subscription(topic: str, subscription: Subscription, lost: list[str]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "Name": subscription.name,
        "Properties": _properties(
            subscription, SUBSCRIPTION_PROPERTIES, f"{topic}/Subscriptions/", lost
        ),
    }
    path = f"{topic}/Subscriptions/{subscription.name}"
    rules = subscription.rules
    if rules is None:
        return written
    if not rules:
        # Without any the emulator would put in one that selects everything.
        lost.append(f"{path}: no rules at all; written as a rule that selects nothing")
    shown = [_rule(path, each, lost) for each in rules or (_NOTHING,)]
    # By what is written: `1=1` is the TRUE filter here, and read as that.
    if shown != [_rule(path, RuleDescription(), lost)]:
        written["Rules"] = shown
    return written


def _properties(
    entity: Queue | Topic | Subscription, known: Sequence[str], under: str, lost: list[str]
) -> dict[str, Any]:
    form = form_of(entity)
    written: dict[str, Any] = {}
    for element in known:
        field = form.fields[element]
        if field.attribute is None:
            written[element] = False
            continue
        value = field_value(field, entity.description)
        if value is None and field.kind is FieldType.ENTITY:
            value = ""
        if value is not None:
            # A time to live that never ends is not written: the emulator has no such value.
            written[element] = value
    for field in chosen_fields(form):
        value = field_value(field, entity.description, keys=False)
        default = field_value(field, DEFAULTS[form.word], keys=False)
        if field.element not in known and value != default:
            lost.append(f"{under}{entity.name}: {field.element}")
    return written


def _rule(path: str, rule: RuleDescription, lost: list[str]) -> dict[str, Any]:
    properties = _rule_properties(rule)
    if isinstance(properties, str):
        lost.append(f"{path}: rule {rule.name}: {properties}; written as one that selects nothing")
        properties = _sql_filter(FALSE_EXPRESSION)
    return {"Name": rule.name, "Properties": properties}


def _rule_properties(rule: RuleDescription) -> dict[str, Any] | str:
    """The object of a rule, or what it has that the format does not."""
    match rule.filter:
        case TrueFilter():
            written = _sql_filter(TRUE_EXPRESSION)
        case FalseFilter():
            written = _sql_filter(FALSE_EXPRESSION)
        case SqlFilter(parameters=parameters) if parameters:
            return "the parameters of its filter"
        case SqlFilter(expression=expression):
            written = _sql_filter(expression)
        case CorrelationFilter():
            correlation = _correlation(rule.filter)
            if isinstance(correlation, str):
                return correlation
            written = {"FilterType": "Correlation", FILTER_KEYS["Correlation"]: correlation}
    if rule.action is not None:
        if rule.action.parameters:
            return "the parameters of its action"
        written["Action"] = {"SqlExpression": rule.action.expression}
    return written


def _sql_filter(expression: str) -> dict[str, Any]:
    return {"FilterType": "Sql", FILTER_KEYS["Sql"]: {"SqlExpression": expression}}


def _correlation(chosen: CorrelationFilter) -> dict[str, Any] | str:
    system = dict(chosen.system())
    written: dict[str, Any] = {
        key: system[name] for key, name in SYSTEM_KEYS.items() if name in system
    }
    for key, text in written.items():
        if not text:
            return f"the empty text that it compares {key} with"
    properties = {}
    for name, typed in chosen.properties.items():
        plain = plain_of(typed)
        if plain is None:
            return f"the {typed.type.value} that it compares '{name}' with"
        properties[name] = plain
    if properties:
        written["Properties"] = properties
    return written

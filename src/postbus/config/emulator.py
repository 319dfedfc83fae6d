"""The Config.json of Microsoft's emulator, read and written.

The keys are those of the schema that its installer publishes. The emulator drops some things in
silence, such as a rule of an unknown filter type; here they are errors.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from postbus.config.content import (
    Blanks,
    Content,
    D,
    Queue,
    Subscription,
    Topic,
    blanks,
    chosen_fields,
    compiled_at,
    describe_at,
    form_of,
    refuse_repeats,
)
from postbus.config.mistakes import (
    ConfigMistake,
    any_table_at,
    list_at,
    refusals_at,
    table_at,
    text_at,
)
from postbus.config.notation import field_value, plain_of, read_plain
from postbus.model.address import check_entity_name, check_subscription_name
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC, Field, FieldType, Form
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
from postbus.model.values import TypedValue

LOCK_DURATION_MS: Final = 60_000
"""The emulator's defaults of a queue (wire §9.4)."""

_PROPERTIES: Final = (
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
"""The fields for which the format has a key, where the kind of entity has them."""
# The key of each property: `reply_to` is `ReplyTo`.
_SYSTEM_KEYS: Final[Mapping[str, str]] = {
    "".join(word.capitalize() for word in name.split("_")): name for name in SYSTEM_FIELDS
}
_FILTER_KEYS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}

# The file has no other way to write these two (semantics A §4).
_CONSTANT: Final[Mapping[str, Filter]] = {
    TRUE_EXPRESSION: TrueFilter(),
    FALSE_EXPRESSION: FalseFilter(),
}
_LOGGING: Final = ("File", "Console", "File,Console", "Console,File")
_NOTHING: Final = RuleDescription(DEFAULT_RULE_NAME, FalseFilter())


class EmulatorConfig(NamedTuple):
    name: str
    content: Content


def read_emulator(document: object, defaults: QueueDescription) -> EmulatorConfig:
    """The contents of the file. `defaults` are the missing values of a queue, except for locks."""
    root = table_at(document, "", ("UserConfig",))
    user = table_at(root.get("UserConfig"), "UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:
        _check_logging(user["Logging"])
    place = "UserConfig.Namespaces"
    namespaces = list_at(user.get("Namespaces"), place)
    if len(namespaces) != 1:
        raise ConfigMistake(place, f"must hold one namespace, not {len(namespaces)}")
    place = f"{place}[0]"
    namespace = table_at(namespaces[0], place, ("Name", "Queues", "Topics"))
    blank = blanks(replace(defaults, lock_duration_ms=LOCK_DURATION_MS))
    content = Content(
        tuple(_read_queue(each, at, blank) for at, each in _items(namespace, "Queues", place)),
        tuple(_read_topic(each, at, blank) for at, each in _items(namespace, "Topics", place)),
    )
    refuse_repeats("entity", ((each.name, each.place) for each in content.entities()))
    return EmulatorConfig(text_at(namespace.get("Name"), f"{place}.Name"), content)


def _check_logging(value: object) -> None:
    # The emulator writes its log there; ours goes where --log-format and the shell send it.
    place = "UserConfig.Logging.Type"
    kind = text_at(table_at(value, "UserConfig.Logging", ("Type",)).get("Type"), place)
    if kind not in _LOGGING:
        raise ConfigMistake(place, f"must be one of {'; '.join(_LOGGING)}, not '{kind[:64]}'")


def _items(table: Mapping[str, object], key: str, place: str) -> list[tuple[str, object]]:
    at = f"{place}.{key}"
    return [(f"{at}[{index}]", each) for index, each in enumerate(list_at(table.get(key, []), at))]


def _read_queue(value: object, place: str, blank: Blanks) -> Queue:
    table = table_at(value, place, ("Name", "Properties"))
    name = _read_name(table, place, check_entity_name)
    description = _read_properties(QUEUE, table, place, blank.queue)
    return Queue(name, description, said=frozenset(_fields(QUEUE)), place=place)


def _read_topic(value: object, place: str, blank: Blanks) -> Topic:
    table = table_at(value, place, ("Name", "Properties", "Subscriptions"))
    name = _read_name(table, place, check_entity_name)
    description = _read_properties(TOPIC, table, place, blank.topic)
    subscriptions = tuple(
        _read_subscription(each, at, blank) for at, each in _items(table, "Subscriptions", place)
    )
    refuse_repeats("subscription", ((each.name, each.place) for each in subscriptions))
    return Topic(name, description, subscriptions, said=frozenset(_fields(TOPIC)), place=place)


def _read_subscription(value: object, place: str, blank: Blanks) -> Subscription:
    table = table_at(value, place, ("Name", "Properties", "Rules"))
    name = _read_name(table, place, check_subscription_name)
    description = _read_properties(SUBSCRIPTION, table, place, blank.subscription)
    rules = [(at, _read_rule(each, at)) for at, each in _items(table, "Rules", place)]
    refuse_repeats("rule", ((rule.name, at) for at, rule in rules))
    return Subscription(
        name,
        description,
        # An empty list counts as no list: the emulator then lets every message in.
        tuple(rule for _, rule in rules) or None,
        said=frozenset(_fields(SUBSCRIPTION)),
        place=place,
    )


def _read_name(table: Mapping[str, object], place: str, check: Callable[[str], object]) -> str:
    name = text_at(table.get("Name"), f"{place}.Name")
    with refusals_at(f"{place}.Name"):
        check(name)
    return name


def _fields(form: Form) -> dict[str, Field]:
    return {name: form.fields[name] for name in _PROPERTIES if name in form.fields}


def _read_properties(form: Form, table: Mapping[str, object], place: str, blank: D) -> D:
    at = f"{place}.Properties"
    fields = _fields(form)
    return describe_at(at, form, fields, table_at(table.get("Properties", {}), at, fields), blank)


# -- rules -----------------------------------------------------------------------------------


def _read_rule(value: object, place: str) -> RuleDescription:
    table = table_at(value, place, ("Name", "Properties"))
    name = text_at(table.get("Name"), f"{place}.Name")
    at = f"{place}.Properties"
    keys = ("FilterType", *_FILTER_KEYS.values(), "Action")
    properties = table_at(table.get("Properties"), at, keys)
    action = None
    if "Action" in properties:
        action = SqlAction(_read_expression(properties["Action"], f"{at}.Action"))
    return compiled_at(at, RuleDescription(name, _read_filter(properties, at), action))


def _read_filter(properties: Mapping[str, object], place: str) -> Filter:
    kind = text_at(properties.get("FilterType"), f"{place}.FilterType")
    if kind not in _FILTER_KEYS:
        known = " or ".join(_FILTER_KEYS)
        raise ConfigMistake(f"{place}.FilterType", f"must be {known}, not '{kind[:64]}'")
    for other, key in _FILTER_KEYS.items():
        if key in properties and other != kind:
            raise ConfigMistake(f"{place}.{key}", f"the FilterType of this rule is {kind}")
    at = f"{place}.{_FILTER_KEYS[kind]}"
    if kind == "Correlation":
        return _read_correlation(properties.get("CorrelationFilter"), at)
    expression = _read_expression(properties.get("SqlFilter"), at)
    return _CONSTANT.get(expression) or SqlFilter(expression)


def _read_correlation(value: object, place: str) -> CorrelationFilter:
    table = table_at(value, place, (*_SYSTEM_KEYS, "Properties"))
    system = {
        _SYSTEM_KEYS[key]: text_at(each, f"{place}.{key}")
        for key, each in table.items()
        if key in _SYSTEM_KEYS
    }
    at = f"{place}.Properties"
    properties = any_table_at(table.get("Properties", {}), at)
    return CorrelationFilter(
        **system,
        properties={name: _read_value(each, f"{at}.{name}") for name, each in properties.items()},
    )


def _read_value(value: object, place: str) -> TypedValue:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigMistake(place, "is a number too large to compare with")
    return read_plain(value, place, "text, a number, true or false")


def _read_expression(value: object, place: str) -> str:
    table = table_at(value, place, ("SqlExpression",))
    return text_at(table.get("SqlExpression"), f"{place}.SqlExpression")


# -- writing ---------------------------------------------------------------------------------


def write_emulator(name: str, content: Content) -> tuple[str, list[str]]:
    """The text of a file, and a line for each thing that the format cannot hold."""
    lost: list[str] = []
    namespace = {
        "Name": name,
        "Queues": [
            {"Name": queue.name, "Properties": _write_properties(queue, "", lost)}
            for queue in content.queues
        ],
        "Topics": [_write_topic(topic, lost) for topic in content.topics],
    }
    document = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n", lost


def _write_topic(topic: Topic, lost: list[str]) -> dict[str, Any]:
    return {
        "Name": topic.name,
        "Properties": _write_properties(topic, "", lost),
        "Subscriptions": [
            _write_subscription(topic.name, each, lost) for each in topic.subscriptions
        ],
    }


def _write_subscription(topic: str, subscription: Subscription, lost: list[str]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "Name": subscription.name,
        "Properties": _write_properties(subscription, f"{topic}/Subscriptions/", lost),
    }
    path = f"{topic}/Subscriptions/{subscription.name}"
    rules = subscription.rules
    if rules is None:
        return written
    if not rules:
        # Without rules the emulator would add a rule that selects everything.
        lost.append(f"{path}: no rules at all; written as a rule that selects nothing")
    shown = [_write_rule(path, each, lost) for each in rules or (_NOTHING,)]
    # Compared as written: `1=1` is the TRUE filter of this format.
    if shown != [_write_rule(path, RuleDescription(), lost)]:
        written["Rules"] = shown
    return written


def _write_properties(
    entity: Queue | Topic | Subscription, under: str, lost: list[str]
) -> dict[str, Any]:
    form = form_of(entity)
    known = _fields(form)
    written: dict[str, Any] = {}
    for element, field in known.items():
        value = field_value(field, entity.description)
        if value is None and field.kind is FieldType.ENTITY:
            value = ""
        if value is not None:
            # A time to live that never ends is not written: the emulator has no such value.
            written[element] = value
    for field in chosen_fields(form):
        value = field_value(field, entity.description, keys=False)
        default = field_value(field, form.default, keys=False)
        if field.element not in known and value != default:
            lost.append(f"{under}{entity.name}: {field.element}")
    return written


def _write_rule(path: str, rule: RuleDescription, lost: list[str]) -> dict[str, Any]:
    properties = _rule_properties(rule)
    if isinstance(properties, str):
        lost.append(f"{path}: rule {rule.name}: {properties}; written as one that selects nothing")
        properties = _sql_filter(FALSE_EXPRESSION)
    return {"Name": rule.name, "Properties": properties}


def _rule_properties(rule: RuleDescription) -> dict[str, Any] | str:
    """The object of a rule, or the part of it that the format lacks."""
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
            correlation = _write_correlation(rule.filter)
            if isinstance(correlation, str):
                return correlation
            written = {"FilterType": "Correlation", _FILTER_KEYS["Correlation"]: correlation}
    if rule.action is not None:
        if rule.action.parameters:
            return "the parameters of its action"
        written["Action"] = {"SqlExpression": rule.action.expression}
    return written


def _sql_filter(expression: str) -> dict[str, Any]:
    return {"FilterType": "Sql", _FILTER_KEYS["Sql"]: {"SqlExpression": expression}}


def _write_correlation(chosen: CorrelationFilter) -> dict[str, Any] | str:
    system = dict(chosen.system())
    written: dict[str, Any] = {
        key: system[name] for key, name in _SYSTEM_KEYS.items() if name in system
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

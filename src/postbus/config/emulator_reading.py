"""The Config.json of Microsoft's emulator: its keys, its spelling, and nothing else.

The keys are those of the schema that its installer publishes. What the emulator reads and drops in
silence, such as a rule of a filter type it does not know, is an error here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

from postbus.config.content import Content, Queue, Subscription, Topic, refuse_repeats
from postbus.config.places import (
    ConfigMistake,
    any_table_at,
    inside,
    list_at,
    refusals_at,
    table_at,
    text_at,
)
from postbus.config.typed import read_plain
from postbus.model.address import check_entity_name, check_subscription_name
from postbus.model.description import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC, Form, Value, describe, read_value
from postbus.model.rule import (
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
from postbus.rules.rule import compile_rule

LOCK_DURATION_MS: Final = 60_000
"""What the emulator gives a queue that says nothing (wire §9.4)."""

QUEUE_PROPERTIES: Final = (
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
TOPIC_PROPERTIES: Final = (
    "DefaultMessageTimeToLive",
    "DuplicateDetectionHistoryTimeWindow",
    "RequiresDuplicateDetection",
)
SUBSCRIPTION_PROPERTIES: Final = (
    "DeadLetteringOnMessageExpiration",
    "DefaultMessageTimeToLive",
    "ForwardDeadLetteredMessagesTo",
    "ForwardTo",
    "LockDuration",
    "MaxDeliveryCount",
    "RequiresSession",
)
# The name of each as a key: `reply_to` is `ReplyTo`.
SYSTEM_KEYS: Final[Mapping[str, str]] = {
    "".join(word.capitalize() for word in name.split("_")): name for name in SYSTEM_FIELDS
}
FILTER_KEYS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}

# The file has no other way to write these two (semantics A §4).
_CONSTANT: Final[Mapping[str, Filter]] = {
    TRUE_EXPRESSION: TrueFilter(),
    FALSE_EXPRESSION: FalseFilter(),
}
_LOGGING: Final = ("File", "Console", "File,Console", "Console,File")

D = TypeVar("D", bound=Description)


class EmulatorConfig(NamedTuple):
    name: str
    content: Content


def read_emulator(document: object, defaults: QueueDescription) -> EmulatorConfig:
    """What the file says. `defaults` is what a queue is of which it says nothing, but for locks."""
    root = table_at(document, "", ("UserConfig",))
    user = table_at(root.get("UserConfig"), "UserConfig", ("Namespaces", "Logging"))
    if "Logging" in user:
        _check_logging(user["Logging"])
    namespaces = list_at(user.get("Namespaces"), "UserConfig.Namespaces")
    if len(namespaces) != 1:
        raise ConfigMistake(
            "UserConfig.Namespaces", f"must hold one namespace, not {len(namespaces)}"
        )
    place = "UserConfig.Namespaces[0]"
    namespace = table_at(namespaces[0], place, ("Name", "Queues", "Topics"))
    defaults = replace(defaults, lock_duration_ms=LOCK_DURATION_MS)
    content = Content(
        queues=tuple(_queue(each, at, defaults) for at, each in _items(namespace, "Queues", place)),
        topics=tuple(_topic(each, at, defaults) for at, each in _items(namespace, "Topics", place)),
    )
    refuse_repeats("entity", ((each.name, each.place) for each in content.entities()))
    return EmulatorConfig(text_at(namespace.get("Name"), f"{place}.Name"), content)


def _check_logging(value: object) -> None:
    # Where the emulator writes its log; ours goes where --log-format and the shell send it.
    place = "UserConfig.Logging"
    kind = text_at(table_at(value, place, ("Type",)).get("Type"), f"{place}.Type")
    if kind not in _LOGGING:
        raise ConfigMistake(
            f"{place}.Type", f"must be one of {'; '.join(_LOGGING)}, not '{kind[:64]}'"
        )


def _items(table: Mapping[str, object], key: str, place: str) -> list[tuple[str, object]]:
    at = f"{place}.{key}"
    return [(f"{at}[{index}]", each) for index, each in enumerate(list_at(table.get(key, []), at))]


def _queue(value: object, place: str, defaults: QueueDescription) -> Queue:
    table = table_at(value, place, ("Name", "Properties"))
    name = _entity_name(table, place)
    description = _describe(QUEUE, table, place, QUEUE_PROPERTIES, defaults)
    return Queue(name, description, said=frozenset(QUEUE_PROPERTIES), place=place)


def _topic(value: object, place: str, defaults: QueueDescription) -> Topic:
    table = table_at(value, place, ("Name", "Properties", "Subscriptions"))
    name = _entity_name(table, place)
    blank = TopicDescription(max_message_size_kb=defaults.max_message_size_kb)
    description = _describe(TOPIC, table, place, TOPIC_PROPERTIES, blank)
    subscriptions = tuple(
        _subscription(each, at) for at, each in _items(table, "Subscriptions", place)
    )
    refuse_repeats("subscription", ((each.name, each.place) for each in subscriptions))
    said = frozenset(TOPIC_PROPERTIES)
    return Topic(name, description, subscriptions, said=said, place=place)


def _subscription(value: object, place: str) -> Subscription:
    table = table_at(value, place, ("Name", "Properties", "Rules"))
    name = text_at(table.get("Name"), f"{place}.Name")
    with refusals_at(f"{place}.Name"):
        check_subscription_name(name)
    blank = SubscriptionDescription(lock_duration_ms=LOCK_DURATION_MS)
    description = _describe(SUBSCRIPTION, table, place, SUBSCRIPTION_PROPERTIES, blank)
    rules = [(at, _rule(each, at)) for at, each in _items(table, "Rules", place)]
    refuse_repeats("rule", ((rule.name, at) for at, rule in rules))
    return Subscription(
        name,
        description,
        # An empty list is no list: the emulator then lets every message in.
        tuple(rule for _, rule in rules) or None,
        said=frozenset(SUBSCRIPTION_PROPERTIES),
        place=place,
    )


def _entity_name(table: Mapping[str, object], place: str) -> str:
    name = text_at(table.get("Name"), f"{place}.Name")
    with refusals_at(f"{place}.Name"):
        check_entity_name(name)
    return name


def _describe(
    form: Form, table: Mapping[str, object], place: str, known: Sequence[str], defaults: D
) -> D:
    at = f"{place}.Properties"
    values: dict[str, Value] = {}
    for element, value in table_at(table.get("Properties", {}), at, known).items():
        try:
            values[element] = read_value(form.fields[element], value)
        except ValueError as error:
            raise ConfigMistake(inside(at, element), str(error)) from None
    with refusals_at(at):
        return describe(form, values, defaults)


# -- rules -----------------------------------------------------------------------------------


def _rule(value: object, place: str) -> RuleDescription:
    table = table_at(value, place, ("Name", "Properties"))
    name = text_at(table.get("Name"), f"{place}.Name")
    at = f"{place}.Properties"
    keys = ("FilterType", *FILTER_KEYS.values(), "Action")
    properties = table_at(table.get("Properties"), at, keys)
    action = None
    if "Action" in properties:
        action = SqlAction(_expression(properties["Action"], f"{at}.Action"))
    rule = RuleDescription(name, _filter(properties, at), action)
    with refusals_at(at):
        compile_rule(rule, uuid4)
    return rule


def _filter(properties: Mapping[str, object], place: str) -> Filter:
    kind = text_at(properties.get("FilterType"), f"{place}.FilterType")
    if kind not in FILTER_KEYS:
        known = " or ".join(FILTER_KEYS)
        raise ConfigMistake(f"{place}.FilterType", f"must be {known}, not '{kind[:64]}'")
    for other, key in FILTER_KEYS.items():
        if key in properties and other != kind:
            raise ConfigMistake(f"{place}.{key}", f"the FilterType of this rule is {kind}")
    at = f"{place}.{FILTER_KEYS[kind]}"
    if kind == "Correlation":
        return _correlation(properties.get("CorrelationFilter"), at)
    expression = _expression(properties.get("SqlFilter"), at)
    return _CONSTANT.get(expression) or SqlFilter(expression)


def _correlation(value: object, place: str) -> CorrelationFilter:
    table = table_at(value, place, (*SYSTEM_KEYS, "Properties"))
    system = {
        SYSTEM_KEYS[key]: text_at(each, f"{place}.{key}")
        for key, each in table.items()
        if key in SYSTEM_KEYS
    }
    at = f"{place}.Properties"
    properties = any_table_at(table.get("Properties", {}), at)
    return CorrelationFilter(
        **system,
        properties={name: _value(each, f"{at}.{name}") for name, each in properties.items()},
    )


def _value(value: object, place: str) -> TypedValue:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigMistake(place, "is a number too large to compare with")
    return read_plain(value, place, "text, a number, true or false")


def _expression(value: object, place: str) -> str:
    table = table_at(value, place, ("SqlExpression",))
    return text_at(table.get("SqlExpression"), f"{place}.SqlExpression")

"""Queues, topics, subscriptions and rules of our own TOML file.

A key is the element of the management API in small letters with underscores, which is also its name
in the Python SDK. Rules lie by name under their subscription; docs/configuration.md has them all.
"""

from collections.abc import Mapping
from typing import Final, TypeVar
from uuid import uuid4

from postbus.config.content import (
    ACCESS,
    Content,
    Queue,
    Subscription,
    Topic,
    chosen_fields,
    refuse_repeats,
)
from postbus.config.places import (
    ConfigMistake,
    any_table_at,
    inside,
    not_at,
    refusals_at,
    table_at,
    text_at,
)
from postbus.config.typed import read_typed
from postbus.model.address import check_entity_name, check_subscription_name
from postbus.model.description import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Field,
    FieldType,
    Form,
    Value,
    describe,
    read_value,
)
from postbus.model.rule import (
    SYSTEM_FIELDS,
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

_SUBSCRIPTIONS: Final = "subscriptions"
_RULES: Final = "rules"
_SQL_KEYS: Final = ("sql", "parameters")
_FILTER: Final = "an SQL text, a table, true or false"
_ACTION: Final = "an SQL text or a table"

D = TypeVar("D", bound=Description)


def read_content(root: Mapping[str, object], defaults: QueueDescription) -> Content:
    """The tables `queues` and `topics`. `defaults` is what a queue is of which nothing is said."""
    content = Content(
        queues=tuple(
            _queue(name, value, defaults)
            for name, value in _by_name(root.get("queues", {}), "queues").items()
        ),
        topics=tuple(
            _topic(name, value, defaults)
            for name, value in _by_name(root.get("topics", {}), "topics").items()
        ),
    )
    refuse_repeats("entity", ((each.name, each.place) for each in content.entities()))
    return content


def _by_name(value: object, kind: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigMistake(f"[{kind}]", f'must be a table of tables, as in [{kind}."orders"]')
    return value


def _queue(name: str, value: object, defaults: QueueDescription) -> Queue:
    place = f'[queues."{name}"]'
    with refusals_at(place):
        check_entity_name(name)
    properties = table_at(value, place, _keys(QUEUE))
    description = _describe(QUEUE, properties, place, defaults)
    return Queue(name, description, said=_said(QUEUE, properties), place=place)


def _topic(name: str, value: object, defaults: QueueDescription) -> Topic:
    place = f'[topics."{name}"]'
    with refusals_at(place):
        check_entity_name(name)
    properties = dict(table_at(value, place, [*_keys(TOPIC), _SUBSCRIPTIONS]))
    under = any_table_at(properties.pop(_SUBSCRIPTIONS, {}), inside(place, _SUBSCRIPTIONS))
    blank = TopicDescription(max_message_size_kb=defaults.max_message_size_kb)
    subscriptions = tuple(
        _subscription(each, described, f'[topics."{name}".subscriptions."{each}"]', defaults)
        for each, described in under.items()
    )
    refuse_repeats("subscription", ((each.name, each.place) for each in subscriptions))
    description = _describe(TOPIC, properties, place, blank)
    return Topic(name, description, subscriptions, said=_said(TOPIC, properties), place=place)


def _subscription(name: str, value: object, place: str, defaults: QueueDescription) -> Subscription:
    with refusals_at(place):
        check_subscription_name(name)
    properties = dict(table_at(value, place, [*_keys(SUBSCRIPTION), _RULES]))
    described = properties.pop(_RULES, None)
    rules = None
    if described is not None:
        prefix = f"{place[:-1]}.rules"
        places = {
            each: f'{prefix}."{each}"]' for each in any_table_at(described, inside(place, _RULES))
        }
        refuse_repeats("rule", places.items())
        tables = any_table_at(described, place)
        rules = tuple(_rule(each, tables[each], places[each]) for each in tables)
    blank = SubscriptionDescription(lock_duration_ms=defaults.lock_duration_ms)
    description = _describe(SUBSCRIPTION, properties, place, blank)
    said = _said(SUBSCRIPTION, properties)
    return Subscription(name, description, rules, said=said, place=place)


def _keys(form: Form) -> dict[str, Field]:
    # The first rule of a subscription is one of its rules here.
    every = form.fields.values()
    return {each.key: each for each in every if each.kind is not FieldType.DEFAULT_RULE}


def _said(form: Form, properties: Mapping[str, object]) -> frozenset[str]:
    """All of them: what is left out has its default. Keys alone are often kept out of files."""
    given = {each.element for each in chosen_fields(form)}
    if form.fields.get(ACCESS) is not None and form.fields[ACCESS].key not in properties:
        given.discard(ACCESS)
    return frozenset(given)


def _describe(form: Form, properties: Mapping[str, object], place: str, defaults: D) -> D:
    fields = _keys(form)
    values: dict[str, Value] = {}
    for key, value in properties.items():
        try:
            values[fields[key].element] = read_value(fields[key], value)
        except ValueError as error:
            raise ConfigMistake(inside(place, key), str(error)) from None
    with refusals_at(place):
        return describe(form, values, defaults)


# -- rules -----------------------------------------------------------------------------------


def _rule(name: str, value: object, place: str) -> RuleDescription:
    parts = table_at(value, place, ("filter", "action"))
    chosen: Filter = TrueFilter()
    if "filter" in parts:
        chosen = _filter(parts["filter"], inside(place, "filter"))
    action = None
    if "action" in parts:
        at = inside(place, "action")
        action = SqlAction(*_sql(parts["action"], at, _ACTION))
    rule = RuleDescription(name, chosen, action)
    with refusals_at(place):
        compile_rule(rule, uuid4)
    return rule


def _filter(value: object, place: str) -> Filter:
    if isinstance(value, bool):
        return TrueFilter() if value else FalseFilter()
    if isinstance(value, dict) and not value.keys() & set(_SQL_KEYS):
        return _correlation(value, place)
    return SqlFilter(*_sql(value, place, _FILTER))


def _correlation(value: object, place: str) -> CorrelationFilter:
    table = table_at(value, place, (*SYSTEM_FIELDS, "properties", *_SQL_KEYS))
    system: dict[str, str] = {}
    for name in SYSTEM_FIELDS:
        match table.get(name):
            case None:
                continue
            case str() as text:
                system[name] = text
            case other:
                raise not_at(inside(place, name), "text", other)
    return CorrelationFilter(**system, properties=_values(table, "properties", place))


def _sql(value: object, place: str, wanted: str) -> tuple[str, dict[str, TypedValue]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict):
        raise not_at(place, wanted, value)
    table = table_at(value, place, _SQL_KEYS)
    return text_at(table.get("sql"), inside(place, "sql")), _values(table, "parameters", place)


def _values(table: Mapping[str, object], key: str, place: str) -> dict[str, TypedValue]:
    at = inside(place, key)
    found = any_table_at(table.get(key, {}), at)
    return {name: read_typed(value, f"{at} '{name}'") for name, value in found.items()}

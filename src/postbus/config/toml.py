"""Our own TOML file, read and written.

A key is the element of the management API in small letters with underscores. The Python SDK has the
same name for it. Rules lie by name under their subscription. docs/configuration.md lists them all.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from postbus.config.content import (
    ACCESS,
    Blanks,
    Content,
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
    inside,
    not_at,
    refusals_at,
    table_at,
    text_at,
)
from postbus.config.notation import Toml, field_value, is_plain, plain_of, read_typed, toml_of
from postbus.model.address import check_entity_name, check_subscription_name
from postbus.model.description import QueueDescription
from postbus.model.fields import QUEUE, SUBSCRIPTION, TOPIC, Field, FieldType, Form
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

_SUBSCRIPTIONS: Final = "subscriptions"
_RULES: Final = "rules"
_SQL_KEYS: Final = ("sql", "parameters")
_FILTER: Final = "an SQL text, a table, true or false"
_ACTION: Final = "an SQL text or a table"
_ALWAYS: Final = "LockDuration"
"""Always written: its default is a setting, which may differ on the server that reads the file."""


def read_content(root: Mapping[str, object], defaults: QueueDescription) -> Content:
    """The tables `queues` and `topics`. `defaults` are the missing values of a queue."""
    blank = blanks(defaults)
    content = Content(
        queues=tuple(
            _read_queue(name, value, blank)
            for name, value in _by_name(root.get("queues", {}), "queues").items()
        ),
        topics=tuple(
            _read_topic(name, value, blank)
            for name, value in _by_name(root.get("topics", {}), "topics").items()
        ),
    )
    refuse_repeats("entity", ((each.name, each.place) for each in content.entities()))
    return content


def _by_name(value: object, kind: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigMistake(f"[{kind}]", f'must be a table of tables, as in [{kind}."orders"]')
    return value


def _read_queue(name: str, value: object, blank: Blanks) -> Queue:
    place = f'[queues."{name}"]'
    with refusals_at(place):
        check_entity_name(name)
    properties = table_at(value, place, _keys(QUEUE))
    description = describe_at(place, QUEUE, _keys(QUEUE), properties, blank.queue)
    return Queue(name, description, said=_said(QUEUE, properties), place=place)


def _read_topic(name: str, value: object, blank: Blanks) -> Topic:
    place = f'[topics."{name}"]'
    with refusals_at(place):
        check_entity_name(name)
    properties = dict(table_at(value, place, [*_keys(TOPIC), _SUBSCRIPTIONS]))
    under = any_table_at(properties.pop(_SUBSCRIPTIONS, {}), inside(place, _SUBSCRIPTIONS))
    subscriptions = tuple(
        _read_subscription(each, described, f'[topics."{name}".subscriptions."{each}"]', blank)
        for each, described in under.items()
    )
    refuse_repeats("subscription", ((each.name, each.place) for each in subscriptions))
    description = describe_at(place, TOPIC, _keys(TOPIC), properties, blank.topic)
    return Topic(name, description, subscriptions, said=_said(TOPIC, properties), place=place)


def _read_subscription(name: str, value: object, place: str, blank: Blanks) -> Subscription:
    with refusals_at(place):
        check_subscription_name(name)
    properties = dict(table_at(value, place, [*_keys(SUBSCRIPTION), _RULES]))
    rules = None
    if _RULES in properties:
        tables = any_table_at(properties.pop(_RULES), inside(place, _RULES))
        places = {each: f'{place[:-1]}.rules."{each}"]' for each in tables}
        refuse_repeats("rule", places.items())
        rules = tuple(_read_rule(each, tables[each], places[each]) for each in tables)
    fields = _keys(SUBSCRIPTION)
    description = describe_at(place, SUBSCRIPTION, fields, properties, blank.subscription)
    said = _said(SUBSCRIPTION, properties)
    return Subscription(name, description, rules, said=said, place=place)


def _keys(form: Form) -> dict[str, Field]:
    # The first rule of a subscription is one of its rules here.
    every = form.fields.values()
    return {each.key: each for each in every if each.kind is not FieldType.DEFAULT_RULE}


def _said(form: Form, properties: Mapping[str, object]) -> frozenset[str]:
    """The file decides every field, because a missing key means the default. Access keys are an
    exception: they are often kept out of files."""
    given = {each.element for each in chosen_fields(form)}
    if form.fields.get(ACCESS) is not None and form.fields[ACCESS].key not in properties:
        given.discard(ACCESS)
    return frozenset(given)


# -- rules -----------------------------------------------------------------------------------


def _read_rule(name: str, value: object, place: str) -> RuleDescription:
    parts = table_at(value, place, ("filter", "action"))
    chosen: Filter = TrueFilter()
    if "filter" in parts:
        chosen = _read_filter(parts["filter"], inside(place, "filter"))
    action = None
    if "action" in parts:
        at = inside(place, "action")
        action = SqlAction(*_read_sql(parts["action"], at, _ACTION))
    return compiled_at(place, RuleDescription(name, chosen, action))


def _read_filter(value: object, place: str) -> Filter:
    if isinstance(value, bool):
        return TrueFilter() if value else FalseFilter()
    if isinstance(value, dict) and not value.keys() & set(_SQL_KEYS):
        return _read_correlation(value, place)
    return SqlFilter(*_read_sql(value, place, _FILTER))


def _read_correlation(value: object, place: str) -> CorrelationFilter:
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
    return CorrelationFilter(**system, properties=_read_values(table, "properties", place))


def _read_sql(value: object, place: str, wanted: str) -> tuple[str, dict[str, TypedValue]]:
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict):
        raise not_at(place, wanted, value)
    table = table_at(value, place, _SQL_KEYS)
    return text_at(table.get("sql"), inside(place, "sql")), _read_values(table, "parameters", place)


def _read_values(table: Mapping[str, object], key: str, place: str) -> dict[str, TypedValue]:
    at = inside(place, key)
    found = any_table_at(table.get(key, {}), at)
    return {name: read_typed(value, f"{at} '{name}'") for name, value in found.items()}


# -- writing ---------------------------------------------------------------------------------


def write_toml(name: str, content: Content, *, keys: bool) -> str:
    """The text of a file. `keys` says whether it holds the keys of authorization rules."""
    lines = ["[namespace]", f"name = {toml_of(name)}"]
    for queue in content.queues:
        lines += _write_entity(f"queues.{toml_of(queue.name)}", queue, keys)
    for topic in content.topics:
        head = f"topics.{toml_of(topic.name)}"
        lines += _write_entity(head, topic, keys)
        for subscription in topic.subscriptions:
            under = f"{head}.subscriptions.{toml_of(subscription.name)}"
            lines += _write_entity(under, subscription, keys)
            lines += _write_rules(f"{under}.rules", subscription.rules)
    return "\n".join(lines) + "\n"


def is_default(rules: tuple[RuleDescription, ...] | None) -> bool:
    """Are these the rules of a new subscription whose file names no rules?"""
    default = RuleDescription()
    return rules is None or [(each.name, each.filter, each.action) for each in rules] == [
        (default.name, default.filter, default.action)
    ]


def _write_entity(head: str, entity: Queue | Topic | Subscription, keys: bool) -> Iterator[str]:
    form = form_of(entity)
    yield ""
    yield f"[{head}]"
    for field in chosen_fields(form):
        value = field_value(field, entity.description, keys=keys)
        same = value == field_value(field, form.default, keys=keys)
        if value is not None and (not same or field.element == _ALWAYS):
            yield f"{field.key} = {toml_of(value)}"


def _write_rules(head: str, rules: tuple[RuleDescription, ...] | None) -> Iterator[str]:
    if rules is None or is_default(rules):
        return
    if not rules:
        yield ""
        yield f"[{head}]"
    for rule in rules:
        yield ""
        yield f"[{head}.{toml_of(rule.name)}]"
        yield f"filter = {toml_of(filter_value(rule.filter))}"
        if rule.action is not None:
            yield f"action = {toml_of(_write_sql(rule.action))}"


def rule_values(rule: RuleDescription) -> dict[str, str]:
    """The text of each key of a rule."""
    action = "none" if rule.action is None else toml_of(_write_sql(rule.action))
    return {"filter": toml_of(filter_value(rule.filter)), "action": action}


def filter_value(chosen: Filter) -> Toml:
    match chosen:
        case TrueFilter():
            return True
        case FalseFilter():
            return False
        case SqlFilter():
            return _write_sql(chosen)
        case CorrelationFilter():
            written: dict[str, Toml] = dict(chosen.system())
            if chosen.properties:
                written["properties"] = _write_values(chosen.properties)
            return written


def _write_sql(sql: SqlFilter | SqlAction) -> Toml:
    if not sql.parameters:
        return sql.expression
    return {"sql": sql.expression, "parameters": _write_values(sql.parameters)}


def _write_values(values: Mapping[str, TypedValue]) -> dict[str, Toml]:
    return {name: _write_value(typed) for name, typed in values.items()}


def _write_value(typed: TypedValue) -> Toml:
    plain = plain_of(typed)
    if plain is not None and is_plain(typed):
        return plain
    return {"type": typed.type.value, "text": typed.text}

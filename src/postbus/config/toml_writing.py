"""A namespace as our own TOML file: what it reads, and nothing that has its default."""

from collections.abc import Iterator, Mapping
from typing import Final

from postbus.config.content import (
    Chosen,
    Content,
    Queue,
    Subscription,
    Topic,
    chosen_fields,
    form_of,
)
from postbus.config.notation import Toml, field_value, toml_of
from postbus.config.typed import is_plain, plain_of
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from postbus.model.rule import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from postbus.model.values import TypedValue

DEFAULTS: Final[Mapping[str, Chosen]] = {
    "Queue": QueueDescription(),
    "Topic": TopicDescription(),
    "Subscription": SubscriptionDescription(),
}
_ALWAYS: Final = "LockDuration"
"""Its default is a setting, which may be another where the file is read."""


def write_toml(name: str, content: Content, *, keys: bool) -> str:
    """The text of a file. `keys` says whether it holds those of authorization rules."""
    lines = ["[namespace]", f"name = {toml_of(name)}"]
    for queue in content.queues:
        lines += _entity(f"queues.{toml_of(queue.name)}", queue, keys)
    for topic in content.topics:
        head = f"topics.{toml_of(topic.name)}"
        lines += _entity(head, topic, keys)
        for subscription in topic.subscriptions:
            under = f"{head}.subscriptions.{toml_of(subscription.name)}"
            lines += _entity(under, subscription, keys)
            lines += _rules(f"{under}.rules", subscription.rules)
    return "\n".join(lines) + "\n"


def is_default(rules: tuple[RuleDescription, ...] | None) -> bool:
    """Are these what a new subscription has of which nothing is said?"""
    default = RuleDescription()
    return rules is None or [(each.name, each.filter, each.action) for each in rules] == [
        (default.name, default.filter, default.action)
    ]


def _entity(head: str, entity: Queue | Topic | Subscription, keys: bool) -> Iterator[str]:
    form = form_of(entity)
    yield ""
    yield f"[{head}]"
    for field in chosen_fields(form):
        value = field_value(field, entity.description, keys=keys)
        same = value == field_value(field, DEFAULTS[form.word], keys=keys)
        if value is not None and (not same or field.element == _ALWAYS):
            yield f"{field.key} = {toml_of(value)}"


def _rules(head: str, rules: tuple[RuleDescription, ...] | None) -> Iterator[str]:
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
            yield f"action = {toml_of(_sql(rule.action))}"


def rule_values(rule: RuleDescription) -> dict[str, str]:
    """The text of each key of a rule."""
    action = "none" if rule.action is None else toml_of(_sql(rule.action))
    return {"filter": toml_of(filter_value(rule.filter)), "action": action}


def filter_value(chosen: Filter) -> Toml:
    match chosen:
        case TrueFilter():
            return True
        case FalseFilter():
            return False
        case SqlFilter():
            return _sql(chosen)
        case CorrelationFilter():
            written: dict[str, Toml] = dict(chosen.system())
            if chosen.properties:
                written["properties"] = _values(chosen.properties)
            return written


def _sql(sql: SqlFilter | SqlAction) -> Toml:
    if not sql.parameters:
        return sql.expression
    return {"sql": sql.expression, "parameters": _values(sql.parameters)}


def _values(values: Mapping[str, TypedValue]) -> dict[str, Toml]:
    return {name: _value(typed) for name, typed in values.items()}


def _value(typed: TypedValue) -> Toml:
    plain = plain_of(typed)
    if plain is not None and is_plain(typed):
        return plain
    return {"type": typed.type.value, "text": typed.text}

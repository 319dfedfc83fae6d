"""The difference between a file and a namespace, as steps from the namespace to the file.

Every mistake that can be found is found here, before the first step. Examples are a name that is a
queue in one and a topic in the other, a missing destination, and more entities than the limits
allow.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from postbus.config.content import (
    ACCESS,
    Chosen,
    Content,
    Queue,
    Subscription,
    Topic,
    chosen_fields,
    destinations,
    form_of,
)
from postbus.config.mistakes import ConfigMistake, inside
from postbus.config.notation import field_value, shown
from postbus.config.steps import Change, Step, Verb
from postbus.config.toml import rule_values
from postbus.model.authorization import settle_rules
from postbus.model.fields import FIXED, Field, FieldType, fixed_text
from postbus.model.rule import CorrelationFilter, RuleDescription

_TTL: Final = "default_ttl_ms"


@dataclass(frozen=True, slots=True)
class Limits:
    """How many of each a namespace may have."""

    entities_max: int
    subscriptions_max: int
    sql_filters_max: int
    correlation_filters_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    steps: tuple[Step, ...]
    """In the order in which they are carried out."""
    left: tuple[Step, ...]
    """Entities and rules that the file lacks, and that stay."""


def make_plan(wanted: Content, present: Content, limits: Limits, *, prune: bool) -> Plan:
    """The steps that make `present` like `wanted`; with `prune`, all other entities are deleted.

    Raises ConfigMistake, which names the place in the file.
    """
    names = _names(present, wanted)
    if prune:
        names = {key: names[key] for key in _names(wanted)}
    queues = {each.name.casefold(): each for each in present.queues}
    topics = {each.name.casefold(): each for each in present.topics}
    _refuse_other_kinds(wanted.queues, topics, "topic")
    _refuse_other_kinds(wanted.topics, queues, "queue")
    compared = _Comparison(names)
    for queue in wanted.queues:
        compared.entity(queue, queues.get(queue.name.casefold()))
    for topic in wanted.topics:
        compared.topic(topic, topics.get(topic.name.casefold()))
    kept = {each.name.casefold() for each in wanted.entities()}
    extra = [each for each in present.entities() if each.name.casefold() not in kept]
    compared.extra += [Step(Verb.LEAVE, _kind(each), each.name) for each in extra]
    _check_room(wanted, present, limits, prune=prune)
    steps = [*_in_order(compared.created), *compared.below, *compared.changed]
    if not prune:
        return Plan(tuple(steps), tuple(compared.extra))
    steps += [replace(step, verb=Verb.DELETE) for step in compared.extra]
    return Plan(tuple(steps), ())


def _kind(entity: Queue | Topic | Subscription) -> str:
    return form_of(entity).word.lower()


def _names(*contents: Content) -> dict[str, str]:
    """The names of all queues and topics, as they compare and as they are spelled."""
    found: dict[str, str] = {}
    for content in contents:
        for each in content.entities():
            found.setdefault(each.name.casefold(), each.name)
    return found


def _refuse_other_kinds(
    wanted: Sequence[Queue | Topic], present: Mapping[str, Queue | Topic], kind: str
) -> None:
    for each in wanted:
        if each.name.casefold() in present:
            raise ConfigMistake(each.place, f"the namespace has a {kind} of this name")


class _Comparison:
    """Collects the steps by kind: new entities, changed ones, and those that the file lacks."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.created: list[Step] = []
        self.below: list[Step] = []
        """New subscriptions. By then all their destinations exist."""
        self.changed: list[Step] = []
        self.extra: list[Step] = []
        """From the inside out: rules before subscriptions, subscriptions before topics."""
        self._names = names

    def entity(self, wanted: Queue | Topic, present: Queue | Topic | None) -> None:
        description = self._resolved(wanted)
        if present is None:
            kind = _kind(wanted)
            self.created.append(Step(Verb.CREATE, kind, wanted.name, description=description))
        else:
            self._compare(wanted, description, present, present.name, None)

    def topic(self, wanted: Topic, present: Topic | None) -> None:
        self.entity(wanted, present)
        there = (
            {}
            if present is None
            else {each.name.casefold(): each for each in present.subscriptions}
        )
        name = wanted.name if present is None else present.name
        for subscription in wanted.subscriptions:
            self._subscription(name, subscription, there.pop(subscription.name.casefold(), None))
        self.extra += [Step(Verb.LEAVE, "subscription", name, each.name) for each in there.values()]

    def _subscription(self, topic: str, wanted: Subscription, present: Subscription | None) -> None:
        description = self._resolved(wanted)
        if present is None:
            rules = (RuleDescription(),) if wanted.rules is None else wanted.rules
            self.below.append(
                Step(
                    *(Verb.CREATE, "subscription", topic, wanted.name),
                    description=description,
                    rules=rules,
                )
            )
            return
        self._compare(wanted, description, present, topic, present.name)
        if wanted.rules is not None:
            self._rules(topic, present, wanted.rules)

    def _rules(self, topic: str, present: Subscription, wanted: Sequence[RuleDescription]) -> None:
        there = {rule.name.casefold(): rule for rule in present.rules or ()}
        for rule in wanted:
            before = there.pop(rule.name.casefold(), None)
            if before is None:
                self.changed.append(_rule_step(Verb.CREATE, topic, present.name, rule))
                continue
            old, new = rule_values(before), rule_values(rule)
            changes = tuple(Change(key, old[key], new[key]) for key in old if old[key] != new[key])
            if changes:
                step = _rule_step(Verb.CHANGE, topic, present.name, rule)
                self.changed.append(replace(step, changes=changes))
        self.extra += [
            Step(Verb.LEAVE, "rule", topic, present.name, rule.name) for rule in there.values()
        ]

    def _compare(
        self,
        wanted: Queue | Topic | Subscription,
        description: Chosen,
        present: Queue | Topic | Subscription,
        entity: str,
        subscription: str | None,
    ) -> None:
        result, changed, changes = _merged(wanted, description, present.description)
        if changes:
            self.changed.append(
                Step(
                    *(Verb.CHANGE, _kind(wanted), entity, subscription),
                    changes=changes,
                    description=result,
                    merge=partial(_with_fields, changed, description),
                )
            )

    def _resolved(self, entity: Queue | Topic | Subscription) -> Chosen:
        """The description with each destination in the spelling of the destination's own name."""
        found: dict[str, Any] = {}
        for field, name in destinations(entity.description):
            known = self._names.get(name.casefold())
            if known is None:
                key = field.key if entity.place.startswith("[") else f"Properties.{field.element}"
                raise ConfigMistake(
                    inside(entity.place, key),
                    f"there is no queue or topic '{name}' to forward to",
                )
            found[str(field.attribute)] = known
        return replace(entity.description, **found)


def _merged(
    wanted: Queue | Topic | Subscription, description: Chosen, present: Chosen
) -> tuple[Chosen, tuple[Field, ...], tuple[Change, ...]]:
    """The present description with the fields that the file decides, and the changes."""
    result = present
    changed: list[Field] = []
    changes = []
    for field in chosen_fields(form_of(wanted)):
        if field.element not in wanted.said or _is_same(field, description, present):
            continue
        if field in FIXED:
            raise ConfigMistake(wanted.place, fixed_text(form_of(wanted), field).removesuffix("."))
        after = _with_field(result, field, description)
        if field_value(field, after) != field_value(field, present):
            before_text, after_text = shown(field, present), shown(field, after)
            if before_text == after_text:
                after_text += " with other keys"
            changes.append(Change(field.key, before_text, after_text))
            changed.append(field)
            result = after
    return result, tuple(changed), tuple(changes)


def _is_same(field: Field, wanted: Chosen, present: Chosen) -> bool:
    """Are they surely the same? Cheap, because most fields of thousands of entities are."""
    name = str(field.attribute)
    same: bool = getattr(wanted, name) == getattr(present, name)
    return same and (name != _TTL or wanted.default_ttl_sent == present.default_ttl_sent)


def _with_fields(fields: Sequence[Field], wanted: Chosen, present: Chosen) -> Chosen:
    for field in fields:
        present = _with_field(present, field, wanted)
    return present


def _with_field(present: Chosen, field: Field, wanted: Chosen) -> Chosen:
    name = str(field.attribute)
    value = getattr(wanted, name)
    if field.element == ACCESS:
        # A key that the file leaves out stays, or is made with the change.
        value = settle_rules(value, getattr(present, name), 0, str)
    elif name == _TTL:
        return replace(present, default_ttl_ms=value, default_ttl_sent=wanted.default_ttl_sent)
    elif field.kind is FieldType.ENTITY:
        return replace(present, **{name: value, field.sent: getattr(wanted, field.sent)})
    return replace(present, **{name: value})


def _rule_step(verb: Verb, topic: str, subscription: str, rule: RuleDescription) -> Step:
    return Step(verb, "rule", topic, subscription, rule.name, rules=(rule,))


def _in_order(created: Sequence[Step]) -> list[Step]:
    """New entities, each after its destinations, unless they form a circle."""
    new = {step.entity.casefold(): step for step in created}
    placed: dict[str, Step] = {}
    for first, step in new.items():
        # Not by recursion: a file may forward through thousands of entities.
        waiting = [(first, iter(_targets(step)))]
        visiting = {first}
        while waiting:
            name, rest = waiting[-1]
            target = next((each for each in rest if each in new), None)
            if target is None:
                placed.setdefault(name, new[name])
                waiting.pop()
            elif target not in placed and target not in visiting:
                visiting.add(target)
                waiting.append((target, iter(_targets(new[target]))))
    return list(placed.values())


def _targets(step: Step) -> Iterator[str]:
    assert step.description is not None
    return (name.casefold() for _, name in destinations(step.description))


def _check_room(wanted: Content, present: Content, limits: Limits, *, prune: bool) -> None:
    total = len(_names(wanted, Content() if prune else present))
    if total > limits.entities_max:
        raise ConfigMistake(
            "", f"there would be {total} queues and topics; entities_max is {limits.entities_max}"
        )
    there = {} if prune else {each.name.casefold(): each for each in present.topics}
    for topic in wanted.topics:
        _check_topic(topic, there.get(topic.name.casefold()), limits)


def _check_topic(wanted: Topic, present: Topic | None, limits: Limits) -> None:
    together: dict[tuple[str, ...], RuleDescription] = {}
    names: set[str] = set()
    for subscription in (
        *(() if present is None else present.subscriptions),
        *wanted.subscriptions,
    ):
        key = subscription.name.casefold()
        rules = subscription.rules
        if rules is None:
            rules = () if key in names else (RuleDescription(),)
        names.add(key)
        together.update({(key, rule.name.casefold()): rule for rule in rules})
    correlation = sum(isinstance(rule.filter, CorrelationFilter) for rule in together.values())
    counted = (
        ("subscriptions", len(names), limits.subscriptions_max),
        ("SQL filters", len(together) - correlation, limits.sql_filters_max),
        ("correlation filters", correlation, limits.correlation_filters_max),
    )
    for what, count, most in counted:
        if count > most:
            raise ConfigMistake(
                wanted.place, f"there would be {count} {what}; a topic may have {most}"
            )

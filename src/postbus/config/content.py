"""Entities in a file or in a namespace: both sides of a comparison."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

from postbus.config.mistakes import ConfigMistake, inside, refusals_at
from postbus.model.description import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.fields import (
    FORWARD,
    FORWARD_DEAD,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Field,
    Form,
    Value,
    describe,
    read_value,
)
from postbus.model.rule import RuleDescription
from postbus.rules.rule import compile_rule

Chosen = QueueDescription | TopicDescription | SubscriptionDescription

D = TypeVar("D", bound=Description)

ACCESS: Final = "AuthorizationRules"


class Blanks(NamedTuple):
    """Entities of which a file gives only the name."""

    queue: QueueDescription
    topic: TopicDescription
    subscription: SubscriptionDescription


def blanks(queue: QueueDescription) -> Blanks:
    """The defaults of all three kinds, from the settings of a queue."""
    return Blanks(
        queue,
        TopicDescription(max_message_size_kb=queue.max_message_size_kb),
        SubscriptionDescription(lock_duration_ms=queue.lock_duration_ms),
    )


def chosen_fields(form: Form) -> list[Field]:
    """The fields in which two entities of a kind can differ, in the order of a description."""
    return [each for each in form.fields.values() if each.attribute is not None]


@dataclass(frozen=True, slots=True)
class Described:
    """The common parts of all kinds of entity in a file."""

    name: str
    said: frozenset[str] = field(default=frozenset(), compare=False, kw_only=True)
    """The fields that the file decides, by element. It does not decide fields that its format
    lacks, nor keys that it does not mention."""
    place: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Queue(Described):
    description: QueueDescription


@dataclass(frozen=True, slots=True)
class Subscription(Described):
    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...] | None = None
    """None: the file has no rules, so a new subscription gets the rule for everything."""


@dataclass(frozen=True, slots=True)
class Topic(Described):
    description: TopicDescription
    subscriptions: tuple[Subscription, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """The entities of a namespace."""

    queues: tuple[Queue, ...] = ()
    topics: tuple[Topic, ...] = ()

    def entities(self) -> Iterator[Queue | Topic]:
        yield from self.queues
        yield from self.topics

    def receivers(self) -> Iterator[Queue | Subscription]:
        """All entities that may forward."""
        yield from self.queues
        for topic in self.topics:
            yield from topic.subscriptions


def form_of(entity: Queue | Topic | Subscription) -> Form:
    if isinstance(entity, Queue):
        return QUEUE
    return TOPIC if isinstance(entity, Topic) else SUBSCRIPTION


def destinations(description: Chosen) -> list[tuple[Field, str]]:
    """The destinations of forwarding, each with its field."""
    found = []
    for each in (FORWARD, FORWARD_DEAD):
        name = getattr(description, str(each.attribute), None)
        if name is not None:
            found.append((each, name))
    return found


def refuse_repeats(what: str, found: Iterable[tuple[str, str]]) -> None:
    """Raise where two entries (name and place) have the same name, regardless of case."""
    seen: dict[str, str] = {}
    for name, place in found:
        if (first := seen.setdefault(name.casefold(), place)) != place:
            raise ConfigMistake(place, f"the {what} '{name}' is there already, at {first}")


def describe_at(
    place: str,
    form: Form,
    fields: Mapping[str, Field],
    properties: Mapping[str, object],
    blank: D,
) -> D:
    """The description in a table of a file, whose keys are those of `fields`."""
    values: dict[str, Value] = {}
    for key, value in properties.items():
        try:
            values[fields[key].element] = read_value(fields[key], value)
        except ValueError as error:
            raise ConfigMistake(inside(place, key), str(error)) from None
    with refusals_at(place):
        return describe(form, values, blank)


def compiled_at(place: str, rule: RuleDescription) -> RuleDescription:
    """The rule, after its SQL has compiled."""
    with refusals_at(place):
        compile_rule(rule, uuid4)
    return rule

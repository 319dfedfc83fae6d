"""Entities as a file describes them, or as they are: the two sides of every comparison."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from postbus.config.places import ConfigMistake
from postbus.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from postbus.model.fields import FORWARD, FORWARD_DEAD, QUEUE, SUBSCRIPTION, TOPIC, Field, Form
from postbus.model.rule import RuleDescription

Chosen = QueueDescription | TopicDescription | SubscriptionDescription

ACCESS: Final = "AuthorizationRules"


def chosen_fields(form: Form) -> list[Field]:
    """The fields in which two entities of a kind can differ, in the order of a description."""
    return [each for each in form.fields.values() if each.attribute is not None]


@dataclass(frozen=True, slots=True)
class Described:
    """What all kinds of entity have in a file."""

    name: str
    said: frozenset[str] = field(default=frozenset(), compare=False, kw_only=True)
    """The fields that the file decides, by element. What its format has no word for, and keys that
    it does not mention, are not its business."""
    place: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Queue(Described):
    description: QueueDescription


@dataclass(frozen=True, slots=True)
class Subscription(Described):
    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...] | None = None
    """None: the file says nothing of rules, so a new subscription gets the rule for everything."""


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
        """Everything that may forward."""
        yield from self.queues
        for topic in self.topics:
            yield from topic.subscriptions


def form_of(entity: Queue | Topic | Subscription) -> Form:
    if isinstance(entity, Queue):
        return QUEUE
    return TOPIC if isinstance(entity, Topic) else SUBSCRIPTION


def destinations(description: Chosen) -> list[tuple[Field, str]]:
    """Where it forwards to, and by which field."""
    found = []
    for each in (FORWARD, FORWARD_DEAD):
        name = getattr(description, str(each.attribute), None)
        if name is not None:
            found.append((each, name))
    return found


def refuse_repeats(what: str, found: Iterable[tuple[str, str]]) -> None:
    """Raise where two of these (name and place) have one name, which compare without case."""
    seen: dict[str, str] = {}
    for name, place in found:
        if (first := seen.setdefault(name.casefold(), place)) != place:
            raise ConfigMistake(place, f"the {what} '{name}' is there already, at {first}")

"""A namespace in memory, in the place of `postbus.namespace.namespace.Namespace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeVar

from postbus.errors import EntityAlreadyExists, EntityNotFound
from postbus.model.authorization import Rules, settle_rules
from postbus.model.description import (
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import CorrelationFilter, RuleDescription
from postbus.model.times import Instant

T0: Instant = 1_700_000_000_123
NAMESPACE = "test-namespace"

T = TypeVar("T")
D = TypeVar("D", QueueDescription, TopicDescription)


def by_name(named: dict[str, T]) -> list[T]:
    return [named[name] for name in sorted(named)]


@dataclass
class Queue:
    name: str
    description: QueueDescription
    created_at: Instant
    updated_at: Instant
    accessed_at: Instant = 0


@dataclass
class Subscription:
    topic: str
    name: str
    description: SubscriptionDescription
    created_at: Instant
    updated_at: Instant
    accessed_at: Instant = 0
    all_rules: dict[str, RuleDescription] = field(default_factory=dict)

    def rules(self) -> list[RuleDescription]:
        return by_name(self.all_rules)

    def rule(self, name: str) -> RuleDescription | None:
        return self.all_rules.get(name.lower())


@dataclass
class Topic:
    name: str
    description: TopicDescription
    created_at: Instant
    updated_at: Instant
    accessed_at: Instant = 0
    all_subscriptions: dict[str, Subscription] = field(default_factory=dict)

    def subscriptions(self) -> list[Subscription]:
        return by_name(self.all_subscriptions)

    def subscription(self, name: str) -> Subscription | None:
        return self.all_subscriptions.get(name.lower())

    @property
    def sql_filter_count(self) -> int:
        return sum(not isinstance(rule.filter, CorrelationFilter) for rule in self._rules())

    @property
    def correlation_filter_count(self) -> int:
        return sum(isinstance(rule.filter, CorrelationFilter) for rule in self._rules())

    def _rules(self) -> Iterable[RuleDescription]:
        return (rule for each in self.all_subscriptions.values() for rule in each.rules())


@dataclass
class MemoryNamespace:
    name: str = NAMESPACE
    created_at: Instant = T0
    now: Instant = T0
    all_counts: dict[str, QueueCounts] = field(default_factory=dict)
    """By name in small letters, that of a subscription as `topic/name`."""
    failure: Exception | None = None
    """What creating or changing something raises."""
    on_rules: Callable[[str, Rules | None], None] = lambda name, rules: None
    """Hears of the keys of an entity; None when it is gone."""
    made_keys: Iterator[str] = field(default_factory=lambda: map("{:044}".format, count(1)))
    entities: dict[str, Queue | Topic] = field(default_factory=dict)
    meanwhile: Callable[[], None] | None = None
    """What somebody else does while a change waits for its turn."""

    @property
    def subscriptions(self) -> MemorySubscriptions:
        return MemorySubscriptions(self)

    def _turn(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def entity(self, name: str) -> Queue | Topic | None:
        return self.entities.get(name.lower())

    def queue(self, name: str) -> Queue | None:
        entity = self.entity(name)
        return entity if isinstance(entity, Queue) else None

    def topic(self, name: str) -> Topic | None:
        entity = self.entity(name)
        return entity if isinstance(entity, Topic) else None

    def queues(self) -> list[Queue]:
        return [each for each in by_name(self.entities) if isinstance(each, Queue)]

    def topics(self) -> list[Topic]:
        return [each for each in by_name(self.entities) if isinstance(each, Topic)]

    async def create_queue(self, name: str, description: QueueDescription) -> Queue:
        self._refuse(name, self.entities)
        description = self._with_keys(name, description, ())
        queue = self.entities[name.lower()] = Queue(name, description, self.now, self.now)
        return queue

    async def create_topic(self, name: str, description: TopicDescription) -> Topic:
        self._refuse(name, self.entities)
        description = self._with_keys(name, description, ())
        topic = self.entities[name.lower()] = Topic(name, description, self.now, self.now)
        return topic

    async def update_queue(
        self, name: str, description: QueueDescription, check: Callable[[Queue], None]
    ) -> Queue:
        queue = self._existing(name, self.queue(name))
        self._turn()
        check(queue)
        description = self._with_keys(name, description, queue.description.authorization_rules)
        queue.description, queue.updated_at = description, self.now
        return queue

    async def update_topic(
        self, name: str, description: TopicDescription, check: Callable[[Topic], None]
    ) -> Topic:
        topic = self._existing(name, self.topic(name))
        self._turn()
        check(topic)
        description = self._with_keys(name, description, topic.description.authorization_rules)
        topic.description, topic.updated_at = description, self.now
        return topic

    async def delete_entity(self, name: str) -> None:
        self._existing(name, self.entity(name))
        del self.entities[name.lower()]
        self.on_rules(name, None)

    async def counts(self, name: str) -> QueueCounts:
        self._existing(name, self.entity(name))
        return self.all_counts.get(name.lower(), QueueCounts())

    def subscription(self, topic: str, name: str) -> Subscription:
        parent = self._existing(topic, self.topic(topic))
        return self._existing(name, parent.subscription(name))

    def _with_keys(self, name: str, description: D, previous: Rules) -> D:
        rules = settle_rules(
            description.authorization_rules, previous, self.now, lambda: next(self.made_keys)
        )
        self.on_rules(name, rules)
        return replace(description, authorization_rules=rules)

    def _existing(self, name: str, found: T | None) -> T:
        if found is None:
            raise EntityNotFound(name)
        return found

    def _refuse(self, name: str, taken: Iterable[str]) -> None:
        if self.failure is not None:
            raise self.failure
        if name.lower() in taken:
            raise EntityAlreadyExists(name)


class MemorySubscriptions:
    """In the place of `postbus.namespace.subscriptions.Subscriptions`."""

    def __init__(self, namespace: MemoryNamespace) -> None:
        self._namespace = namespace

    async def create(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        default_rule: RuleDescription,
    ) -> Subscription:
        parent = self._namespace._existing(topic, self._namespace.topic(topic))
        self._namespace._refuse(name, parent.all_subscriptions)
        made = Subscription(
            parent.name, name, description, self._namespace.now, self._namespace.now
        )
        made.all_rules[default_rule.name.lower()] = default_rule
        parent.all_subscriptions[name.lower()] = made
        return made

    async def update(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        check: Callable[[Subscription], None],
    ) -> Subscription:
        subscription = self._namespace.subscription(topic, name)
        self._namespace._turn()
        check(subscription)
        subscription.description, subscription.updated_at = description, self._namespace.now
        return subscription

    async def delete(self, topic: str, name: str) -> None:
        self._namespace.subscription(topic, name)
        del self._namespace._existing(topic, self._namespace.topic(topic)).all_subscriptions[
            name.lower()
        ]

    async def counts(self, topic: str, name: str) -> QueueCounts:
        self._namespace.subscription(topic, name)
        return self._namespace.all_counts.get(f"{topic}/{name}".lower(), QueueCounts())

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        rules = self._namespace.subscription(topic, subscription).all_rules
        self._namespace._refuse(rule.name, rules)
        rules[rule.name.lower()] = rule

    async def update_rule(
        self,
        topic: str,
        subscription: str,
        rule: RuleDescription,
        check: Callable[[RuleDescription], None],
    ) -> None:
        rules = self._namespace.subscription(topic, subscription).all_rules
        self._namespace._existing(rule.name, rules.get(rule.name.lower()))
        self._namespace._turn()
        check(rules[rule.name.lower()])
        rules[rule.name.lower()] = rule

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        rules = self._namespace.subscription(topic, subscription).all_rules
        self._namespace._existing(name, rules.get(name.lower()))
        del rules[name.lower()]

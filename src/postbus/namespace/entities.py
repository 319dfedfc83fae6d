"""Queues, topics and subscriptions as the rest of the server knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import structlog

from postbus.amqp.link import Link
from postbus.broker.policy import NOWHERE, Policy
from postbus.broker.subqueue import subqueue_of
from postbus.model.description import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import RuleDescription
from postbus.model.times import Instant
from postbus.namespace.prefetch import PrefetchWatch
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.observe.meters import EntityMeter
from postbus.runtime.fragment import LoadedFragment
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, SubscriptionRecord

log = structlog.get_logger("namespace")


class Entity(ABC):
    """What all of them have: a name, a place in a fragment, links and numbers."""

    kind = "entity"

    def __init__(self, name: str, fragment: LoadedFragment, owner: int, settings: Settings) -> None:
        self.name = name
        self.fragment = fragment
        self.owner = owner
        self.settings = settings
        self.created_at: Instant = 0
        self.updated_at: Instant = 0
        self.accessed_at: Instant = 0
        self.used_at: Instant = 0
        """When it was last used or changed, for those that are deleted when idle."""
        self.meter = EntityMeter()
        self.links: set[Link] = set()
        """Links of clients to it and to its management node."""

    @property
    def path(self) -> str:
        """As clients address it."""
        return self.name

    @property
    def fragments(self) -> list[LoadedFragment]:
        """Its fragments, in order."""
        return [self.fragment]

    @property
    @abstractmethod
    def status(self) -> EntityStatus: ...

    @property
    @abstractmethod
    def message_size_max(self) -> int:
        """Bytes of the largest message that it takes; a subscription takes what its topic does."""

    @abstractmethod
    def policy(self) -> Policy:
        """What its description means to the engine."""

    @property
    @abstractmethod
    def auto_delete_ms(self) -> int | None:
        """How long it may be idle before it is deleted; None: for ever."""

    def subqueue(self, kind: int) -> int:
        """The number of one of its subqueues in its fragment."""
        return subqueue_of(self.owner, kind)

    def touch(self, now: Instant) -> None:
        self.accessed_at = self.used_at = now

    def message_links(self) -> list[Link]:
        """Those of its links that carry messages, and no questions."""
        return [link for link in self.links if getattr(link.owner, "fragment", None) is not None]


def retention_of(
    description: QueueDescription | TopicDescription, settings: Settings
) -> tuple[int, int]:
    """For how many hours, and for how many megabytes, the journal of an entity is kept."""
    hours, megabytes = description.retention_hours, description.retention_mb
    return (
        settings.retention_hours if hours is None else hours,
        settings.retention_mb if megabytes is None else megabytes,
    )


class ReceivableEntity(Entity):
    """One that clients receive from: a queue, or a subscription."""

    description: Any
    """Each has its own kind; they agree in all that is asked for here."""

    def __init__(
        self, name: str, fragment: LoadedFragment, owner: int, settings: Settings, now: Instant
    ) -> None:
        super().__init__(name, fragment, owner, settings)
        self.prefetch = PrefetchWatch(now)
        self.forward_to = NOWHERE
        """The fragments of the entities that it forwards to; NOWHERE for none."""
        self.forward_dead_letters_to = NOWHERE

    @property
    def status(self) -> EntityStatus:
        status: EntityStatus = self.description.status
        return status

    @property
    def auto_delete_ms(self) -> int | None:
        # A queue that forwards is never idle (semantics B §8).
        return None if self.forward_to != NOWHERE else self.description.auto_delete_ms

    def findings(self, now: Instant) -> list[str]:
        """What an operator should hear of (R-PRE-05)."""
        description = self.description
        return self.prefetch.findings(description.lock_duration_ms, description.default_ttl_ms, now)

    def warn(self, now: Instant) -> None:
        findings = self.findings(now)
        if findings and self.prefetch.may_warn(now):
            log.warning("prefetch outlasts locks", entity=self.path, findings=findings)


class QueueEntity(ReceivableEntity):
    kind = "queue"
    description: QueueDescription

    def __init__(self, record: EntityRecord, settings: Settings, now: Instant) -> None:
        [placed] = record.fragments
        fragment = LoadedFragment(placed.id, placed.index, placed.store, record.name, Policy())
        super().__init__(record.name, fragment, 0, settings, now)
        self.description = QueueDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.used_at = now
        fragment.meter = self.meter
        fragment.policy = self.policy()

    @property
    def message_size_max(self) -> int:
        return self.description.max_message_size_kb * 1024

    @property
    def retention(self) -> tuple[int, int]:
        return retention_of(self.description, self.settings)

    def policy(self) -> Policy:
        description = self.description
        return Policy(
            lock_ms=description.lock_duration_ms,
            max_delivery_count=description.max_delivery_count,
            default_ttl_ms=description.default_ttl_ms,
            dead_letter_on_expiry=description.dead_lettering_on_expiration,
            size_bytes_max=description.max_size_mb << 20,
            message_size_max=self.message_size_max,
            header_size_max=self.settings.header_size_max_bytes,
            sends=description.status.sends,
            receives=description.status.receives,
            forward_to=self.forward_to,
            forward_dead_letters_to=self.forward_dead_letters_to,
            requires_session=description.requires_session,
            duplicate_window_ms=_duplicate_window_ms(description),
        )


class SubscriptionEntity(ReceivableEntity):
    kind = "subscription"
    description: SubscriptionDescription

    def __init__(self, topic: TopicEntity, record: SubscriptionRecord, now: Instant) -> None:
        super().__init__(record.name, topic.fragment, record.owner, topic.settings, now)
        self.parent = topic
        self.description = SubscriptionDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.accessed_at = record.created_at  # of the other kinds, Azure says "never"
        self.used_at = now
        self._rules = {
            rule.name.casefold(): rule for rule in map(RuleDescription.from_json, record.rules)
        }

    @property
    def topic(self) -> str:
        return self.parent.name

    @property
    def path(self) -> str:
        return f"{self.topic}/Subscriptions/{self.name}"

    @property
    def message_size_max(self) -> int:
        return self.parent.message_size_max

    def rules(self) -> list[RuleDescription]:
        """By name (semantics A §4)."""
        return [rule for _, rule in sorted(self._rules.items())]

    def rule(self, name: str) -> RuleDescription | None:
        return self._rules.get(name.casefold())

    def put_rule(self, rule: RuleDescription) -> None:
        """Add one, or replace that of its name."""
        self._rules[rule.name.casefold()] = rule

    def remove_rule(self, name: str) -> None:
        self._rules.pop(name.casefold(), None)

    def policy(self) -> Policy:
        description = self.description
        return Policy(
            lock_ms=description.lock_duration_ms,
            max_delivery_count=description.max_delivery_count,
            default_ttl_ms=description.default_ttl_ms,
            dead_letter_on_expiry=description.dead_lettering_on_expiration,
            message_size_max=self.message_size_max,
            header_size_max=self.settings.header_size_max_bytes,
            receives=description.status.receives,
            forward_to=self.forward_to,
            forward_dead_letters_to=self.forward_dead_letters_to,
            dead_letter_on_filter_errors=description.dead_lettering_on_filter_errors,
            requires_session=description.requires_session,
        )


class TopicEntity(Entity):
    kind = "topic"
    description: TopicDescription

    def __init__(
        self, record: EntityRecord, settings: Settings, now: Instant, matcher: TopicRuleMatcher
    ) -> None:
        [placed] = record.fragments
        fragment = LoadedFragment(placed.id, placed.index, placed.store, record.name, Policy())
        super().__init__(record.name, fragment, 0, settings)
        self.description = TopicDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.used_at = now
        self.matcher = fragment.matcher = matcher
        fragment.meter = self.meter
        fragment.policy = self.policy()
        self.prefetch = PrefetchWatch(now)
        """Of those who receive what was sent through it and not taken."""
        self._subscriptions: dict[str, SubscriptionEntity] = {}

    @property
    def status(self) -> EntityStatus:
        return self.description.status

    @property
    def auto_delete_ms(self) -> int | None:
        return self.description.auto_delete_ms

    @property
    def message_size_max(self) -> int:
        return self.description.max_message_size_kb * 1024

    @property
    def retention(self) -> tuple[int, int]:
        return retention_of(self.description, self.settings)

    @property
    def sql_filter_count(self) -> int:
        return self.matcher.rules.sql_count

    @property
    def correlation_filter_count(self) -> int:
        return self.matcher.rules.correlation_count

    def policy(self) -> Policy:
        description = self.description
        return Policy(
            default_ttl_ms=description.default_ttl_ms,
            size_bytes_max=description.max_size_mb << 20,
            message_size_max=self.message_size_max,
            header_size_max=self.settings.header_size_max_bytes,
            # A topic whose sends are disabled is disabled (semantics B §11).
            sends=description.status is EntityStatus.ACTIVE
            or description.status is EntityStatus.RECEIVE_DISABLED,
            duplicate_window_ms=_duplicate_window_ms(description),
        )

    def subscriptions(self) -> list[SubscriptionEntity]:
        """By name."""
        return [each for _, each in sorted(self._subscriptions.items())]

    def subscription(self, name: str) -> SubscriptionEntity | None:
        return self._subscriptions.get(name.casefold())

    def add(self, subscription: SubscriptionEntity) -> None:
        self._subscriptions[subscription.name.casefold()] = subscription
        fragment = self.fragment
        fragment.subscriptions[subscription.owner] = subscription.path, subscription.policy()
        fragment.meters[subscription.owner] = subscription.meter

    def remove(self, subscription: SubscriptionEntity) -> None:
        del self._subscriptions[subscription.name.casefold()]
        self.fragment.subscriptions.pop(subscription.owner, None)
        self.fragment.meters.pop(subscription.owner, None)

    def warn(self, now: Instant) -> None:
        for subscription in self._subscriptions.values():
            subscription.warn(now)


def _duplicate_window_ms(description: QueueDescription | TopicDescription) -> int | None:
    return description.duplicate_window_ms if description.requires_duplicate_detection else None

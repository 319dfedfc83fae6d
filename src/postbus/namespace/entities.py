"""Queues, topics and subscriptions as the rest of the server knows them."""

from __future__ import annotations

from postbus.broker.policy import Policy
from postbus.model.description import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import RuleDescription
from postbus.model.times import Instant
from postbus.namespace.entity import Entity, ReceivableEntity
from postbus.namespace.prefetch import PrefetchWatch
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.namespace.spread import Spread
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, SubscriptionRecord


def retention_of(
    description: QueueDescription | TopicDescription, settings: Settings
) -> tuple[int, int]:
    """For how many hours, and for how many megabytes, the journal of an entity is kept."""
    hours, megabytes = description.retention_hours, description.retention_mb
    return (
        settings.retention_hours if hours is None else hours,
        settings.retention_mb if megabytes is None else megabytes,
    )


class QueueEntity(ReceivableEntity):
    kind = "queue"
    description: QueueDescription

    def __init__(self, record: EntityRecord, settings: Settings, now: Instant) -> None:
        super().__init__(record.name, _fragments_of(record), 0, settings, now)
        self.description = QueueDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.used_at = now
        self.spread = Spread(self.fragments, self.description.requires_duplicate_detection)
        policy = self.policy()
        for fragment in self.fragments:
            fragment.meter = self.meter
            fragment.policy = policy

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
        super().__init__(record.name, topic.fragments, record.owner, topic.settings, now)
        self.parent = topic
        self.spread = topic.spread
        self.description = SubscriptionDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.accessed_at = record.created_at  # of the other kinds, Azure says "never"
        self.used_at = now
        self._rules = {
            rule.name.casefold(): rule for rule in map(RuleDescription.from_json, record.rules)
        }

    @property
    def top_level(self) -> Entity:
        return self.parent

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
        super().__init__(record.name, _fragments_of(record), 0, settings)
        self.description = TopicDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.used_at = now
        self.spread = Spread(self.fragments, self.description.requires_duplicate_detection)
        self.matcher = matcher
        policy = self.policy()
        for fragment in self.fragments:
            fragment.matcher = matcher
            fragment.meter = self.meter
            fragment.policy = policy
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
        policy = subscription.policy()
        for fragment in self.fragments:
            fragment.subscriptions[subscription.owner] = subscription.path, policy
            fragment.meters[subscription.owner] = subscription.meter

    def remove(self, subscription: SubscriptionEntity) -> None:
        del self._subscriptions[subscription.name.casefold()]
        for fragment in self.fragments:
            fragment.subscriptions.pop(subscription.owner, None)
            fragment.meters.pop(subscription.owner, None)

    def warn(self, now: Instant) -> None:
        for subscription in self._subscriptions.values():
            subscription.warn(now)


def _fragments_of(record: EntityRecord) -> list[LoadedFragment]:
    fragments = [
        LoadedFragment(each.id, each.index, each.store, record.name, Policy())
        for each in record.fragments
    ]
    for fragment in fragments:
        fragment.siblings = len(fragments)
    return fragments


def _duplicate_window_ms(description: QueueDescription | TopicDescription) -> int | None:
    return description.duplicate_window_ms if description.requires_duplicate_detection else None

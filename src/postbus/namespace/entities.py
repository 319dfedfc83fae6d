"""Queues, topics and subscriptions as the rest of the server knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import structlog

from postbus.amqp.link import Link
from postbus.broker.message import Message
from postbus.broker.policy import NOWHERE, Policy
from postbus.broker.subqueue import subqueue_of
from postbus.errors import InvalidOperation
from postbus.model.address import Address, SubQueue
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

ID_BYTES: Final = 4
"""A lock token begins with the id of its fragment (`postbus.runtime.loading`)."""
INDEX_SHIFT: Final = 48
"""A sequence number is `fragment index << 48 | n` (semantics B §9)."""

log = structlog.get_logger("namespace")


class Entity(ABC):
    """What all of them have: a name, fragments, links and meters."""

    kind = "entity"

    def __init__(
        self, name: str, fragments: Sequence[LoadedFragment], owner: int, settings: Settings
    ) -> None:
        self.name = name
        self.fragments = tuple(fragments)
        """By index. A subscription has those of its topic."""
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
    def top_level(self) -> Entity:
        """The queue or topic that the fragments belong to."""
        return self

    # -- which fragment ----------------------------------------------------------------------

    @property
    def only_fragment(self) -> LoadedFragment:
        """The fragment of an entity that has one. Raises ValueError for any other."""
        [only] = self.fragments
        return only

    def fragment_for(self, key: str | None) -> LoadedFragment:
        """The fragment of the messages with this key, which is a session id or a partition key.

        Every entity has one fragment so far: each key chooses it, and a message without a key
        goes there too.
        """
        return self.only_fragment

    def fragment_of_token(self, token: bytes) -> LoadedFragment:
        """The fragment that gave out a lock token. A token that names no fragment of the entity
        goes to the first one: its engine has no such lock, and says so."""
        fragment_id = int.from_bytes(token[:ID_BYTES], "big")
        for fragment in self.fragments:
            if fragment.id == fragment_id:
                return fragment
        return self.fragments[0]

    def fragment_of_number(self, number: int) -> LoadedFragment:
        """The fragment that gave out a sequence number. A number of no fragment goes to the
        first one: its engine has no such message, and says so."""
        index = number >> INDEX_SHIFT
        return self.fragments[index if 0 <= index < len(self.fragments) else 0]

    def fragment_of_tokens(self, tokens: Iterable[bytes]) -> LoadedFragment:
        """The fragment of all these locks, which a single request is about."""
        return self._shared({self.fragment_of_token(token) for token in tokens})

    def fragment_of_numbers(self, numbers: Iterable[int]) -> LoadedFragment:
        """The fragment of all these messages, which a single request is about."""
        return self._shared({self.fragment_of_number(number) for number in numbers})

    def _shared(self, named: set[LoadedFragment]) -> LoadedFragment:
        if len(named) > 1:
            raise InvalidOperation(
                f"The request names messages in several partitions of '{self.path}'."
            )
        return named.pop() if named else self.fragments[0]

    # -- what the kinds differ in ------------------------------------------------------------

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

    def needs_session(self, subqueue: SubQueue) -> bool:
        """Can the messages of this subqueue be received within their sessions only? A dead-letter
        queue has no sessions (semantics B §1)."""
        return False

    def forwarded_to(self, subqueue: SubQueue) -> str | None:
        """The entity that the messages of this subqueue are forwarded to."""
        return None

    def check_not_forwarded(self, address: Address) -> None:
        """Raise InvalidOperation where the broker itself receives the messages at this address,
        to forward them (semantics B §8)."""
        target = self.forwarded_to(address.subqueue)
        if target is not None:
            raise InvalidOperation(
                f"Cannot create a message receiver on '{address.path}': its messages are "
                f"forwarded to '{target}'."
            )

    def subqueue(self, kind: int) -> int:
        """The number of one of its subqueues in its fragment."""
        return subqueue_of(self.owner, kind)

    def touch(self, now: Instant) -> None:
        self.accessed_at = self.used_at = now

    def message_links(self) -> list[Link]:
        """Its links that carry messages; those to its management node carry requests."""
        return [link for link in self.links if getattr(link.owner, "carries_messages", False)]


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
        self,
        name: str,
        fragments: Sequence[LoadedFragment],
        owner: int,
        settings: Settings,
        now: Instant,
    ) -> None:
        super().__init__(name, fragments, owner, settings)
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

    def needs_session(self, subqueue: SubQueue) -> bool:
        return subqueue is SubQueue.MAIN and bool(self.description.requires_session)

    def forwarded_to(self, subqueue: SubQueue) -> str | None:
        target: str | None = None
        if subqueue is SubQueue.MAIN:
            target = self.description.forward_to
        elif subqueue is SubQueue.DEAD_LETTER:
            target = self.description.forward_dead_letters_to
        return target

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
        super().__init__(record.name, _fragments_of(record), 0, settings, now)
        self.description = QueueDescription.from_json(record.description)
        self.created_at, self.updated_at = record.created_at, record.updated_at
        self.used_at = now
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


def key_of(messages: Sequence[Message]) -> str | None:
    """The key that chooses the fragment of messages which are stored together."""
    return messages[0].session_id if messages else None


def _fragments_of(record: EntityRecord) -> list[LoadedFragment]:
    return [
        LoadedFragment(each.id, each.index, each.store, record.name, Policy())
        for each in record.fragments
    ]


def _duplicate_window_ms(description: QueueDescription | TopicDescription) -> int | None:
    return description.duplicate_window_ms if description.requires_duplicate_detection else None

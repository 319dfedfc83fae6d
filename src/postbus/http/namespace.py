"""What the management API needs of a namespace. The server has it; tests have one in memory.

Names compare case-insensitively. Whatever is asked for was looked up before; where it is gone by
the time it is used, EntityNotFound is raised.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from postbus.model.description import (
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.model.rule import RuleDescription
from postbus.model.times import Instant


class Entity(Protocol):
    """Something with a description that is there."""

    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> Instant: ...
    @property
    def updated_at(self) -> Instant: ...
    @property
    def accessed_at(self) -> Instant:
        """When it was last used; 0 for never."""


class QueueEntity(Entity, Protocol):
    @property
    def description(self) -> QueueDescription: ...


class SubscriptionEntity(Entity, Protocol):
    @property
    def topic(self) -> str:
        """The name of its topic."""

    @property
    def description(self) -> SubscriptionDescription: ...

    def rules(self) -> Sequence[RuleDescription]:
        """All of them, in the order of their names."""

    def rule(self, name: str) -> RuleDescription | None: ...


class TopicEntity(Entity, Protocol):
    @property
    def description(self) -> TopicDescription: ...
    @property
    def sql_filter_count(self) -> int:
        """Filters of all its subscriptions but correlation filters."""

    @property
    def correlation_filter_count(self) -> int: ...

    def subscriptions(self) -> Sequence[SubscriptionEntity]:
        """All of them, in the order of their names."""

    def subscription(self, name: str) -> SubscriptionEntity | None: ...


class Namespace(Protocol):
    """Entities by name: queues and topics share one space of names."""

    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> Instant: ...

    def entity(self, name: str) -> QueueEntity | TopicEntity | None: ...
    def queue(self, name: str) -> QueueEntity | None: ...
    def topic(self, name: str) -> TopicEntity | None: ...

    def queues(self) -> Sequence[QueueEntity]:
        """All of them, in the order of their names."""

    def topics(self) -> Sequence[TopicEntity]:
        """All of them, in the order of their names."""

    async def create_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        """Raises EntityAlreadyExists, QuotaExceeded, InvalidArgument."""

    async def create_topic(self, name: str, description: TopicDescription) -> TopicEntity:
        """Raises EntityAlreadyExists, QuotaExceeded, InvalidArgument."""

    async def update_queue(
        self, name: str, description: QueueDescription, check: Callable[[QueueEntity], None]
    ) -> QueueEntity:
        """Raises EntityNotFound, InvalidArgument, and what `check` raises: that is asked when
        nothing else changes any more."""

    async def update_topic(
        self, name: str, description: TopicDescription, check: Callable[[TopicEntity], None]
    ) -> TopicEntity:
        """Likewise."""

    async def delete_entity(self, name: str) -> None:
        """Raises EntityNotFound."""

    async def counts(self, name: str) -> QueueCounts:
        """Of a queue, or of a topic with its subscriptions. Raises EntityNotFound."""

    async def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        default_rule: RuleDescription,
    ) -> SubscriptionEntity:
        """With its first rule. Raises EntityNotFound, EntityAlreadyExists, QuotaExceeded,
        InvalidArgument."""

    async def update_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        check: Callable[[SubscriptionEntity], None],
    ) -> SubscriptionEntity:
        """Likewise."""

    async def delete_subscription(self, topic: str, name: str) -> None:
        """Raises EntityNotFound."""

    async def subscription_counts(self, topic: str, name: str) -> QueueCounts:
        """Raises EntityNotFound."""

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        """Raises EntityNotFound, EntityAlreadyExists, QuotaExceeded, and InvalidArgument where its
        SQL cannot be compiled."""

    async def update_rule(
        self,
        topic: str,
        subscription: str,
        rule: RuleDescription,
        check: Callable[[RuleDescription], None],
    ) -> None:
        """Likewise."""

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Raises EntityNotFound."""

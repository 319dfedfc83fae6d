"""Entities that nobody uses delete themselves, on a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from postbus.errors import EntityNotFound
from postbus.model.description import (
    QueueCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from postbus.namespace.entities import QueueEntity, SubscriptionEntity, TopicEntity
from postbus.namespace.entity import Entity
from postbus.namespace.idle import IdleDeletion
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.settings import Settings
from postbus.store.ports.catalog import EntityRecord, FragmentRecord, SubscriptionRecord

MINUTE = 60_000
IDLE = 5 * MINUTE
T0 = 1_700_000_000_000


class Town:
    """A namespace as far as Idleness knows it."""

    def __init__(self) -> None:
        self.now = T0
        self.there: dict[str, QueueEntity | TopicEntity] = {}
        self.counts: dict[Entity, QueueCounts | None] = {}
        self.others_delete = False
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while a deletion waits for its turn."""
        namespace: Any = SimpleNamespace(
            entities=self.entities,
            delete_entity=self.delete_entity,
            subscriptions=SimpleNamespace(delete=self.delete_subscription),
            engines=SimpleNamespace(known_counts=self.known_counts),
        )
        self.idleness = IdleDeletion(namespace, lambda: self.now)

    def record(self, name: str, description: Any) -> EntityRecord:
        fragment = FragmentRecord(len(self.there) + 1, 0, 0)
        return EntityRecord(name, "", description.to_json(), T0, T0, (fragment,))

    def queue(self, name: str = "q", idle_ms: int | None = IDLE) -> QueueEntity:
        record = self.record(name, QueueDescription(auto_delete_ms=idle_ms))
        made = self.there[name] = QueueEntity(record, Settings(), self.now)
        return made

    def topic(self, name: str = "t", idle_ms: int | None = IDLE) -> TopicEntity:
        record = self.record(name, TopicDescription(auto_delete_ms=idle_ms))
        matcher = TopicRuleMatcher(lambda: UUID(int=0))
        made = self.there[name] = TopicEntity(record, Settings(), self.now, matcher)
        return made

    def subscribe(self, topic: TopicEntity, idle_ms: int | None = IDLE) -> SubscriptionEntity:
        description = SubscriptionDescription(auto_delete_ms=idle_ms)
        owner = len(topic.subscriptions()) + 1
        record = SubscriptionRecord(
            topic.name, owner, f"s{owner}", description.to_json(), T0, T0, ()
        )
        made = SubscriptionEntity(topic, record, self.now)
        topic.add(made)
        return made

    # -- what Idleness asks for --------------------------------------------------------------

    def entities(self) -> list[QueueEntity | TopicEntity]:
        return list(self.there.values())

    def known_counts(self, entity: Entity) -> QueueCounts | None:
        return self.counts.get(entity, QueueCounts())

    async def delete_entity(self, name: str, if_so: Callable[[Entity], bool]) -> None:
        if self.others_delete:
            raise EntityNotFound(name)
        self.meanwhile()
        if not if_so(self.there[name]):
            return
        del self.there[name]

    async def delete_subscription(
        self, topic: str, name: str, if_so: Callable[[Entity], bool]
    ) -> None:
        parent = self.there[topic]
        assert isinstance(parent, TopicEntity)
        subscription = parent.subscription(name)
        assert subscription is not None
        if if_so(subscription):
            parent.remove(subscription)

    # -- what the tests do -------------------------------------------------------------------

    def wait(self, ms: int) -> None:
        self.now += ms
        asyncio.run(self.idleness.look())


@pytest.fixture
def town() -> Town:
    return Town()


def test_an_idle_queue_is_deleted_when_its_time_is_up(town: Town) -> None:
    """semantics B §11."""
    town.queue()
    town.wait(IDLE - 1)
    assert "q" in town.there
    town.wait(1)
    assert town.there == {}


def test_one_that_says_nothing_stays(town: Town) -> None:
    town.queue(idle_ms=None)
    town.wait(1_000 * IDLE)
    assert "q" in town.there


@pytest.mark.parametrize("use", ["sends", "arrivals", "touch"])
def test_use_begins_the_time_anew(town: Town, use: str) -> None:
    """By senders, by what others forward to it, by receivers and those who peek."""
    queue = town.queue()
    town.wait(IDLE - 1)
    if use == "touch":
        queue.touch(town.now)
    else:
        setattr(queue.meter, use, 1)
        town.wait(0)
    town.wait(IDLE - 1)
    assert "q" in town.there
    town.wait(1)
    assert town.there == {}


def test_a_receiver_that_waits_is_use(town: Town) -> None:
    """semantics B §11: a receive, even an empty one."""
    queue = town.queue()
    line, receiver = queue.only_fragment.receivers_of(queue.subqueue(0)), Waiter()
    line.join(receiver)
    line.wants(receiver)
    town.wait(10 * IDLE)
    assert "q" in town.there
    line.leave(receiver)
    town.wait(IDLE)
    assert town.there == {}


@pytest.mark.parametrize("counts", [QueueCounts(scheduled=1), None])
def test_a_scheduled_message_keeps_its_queue(town: Town, counts: QueueCounts | None) -> None:
    """semantics B §4; and where nobody knows whether there is one, there may be."""
    queue = town.queue()
    town.counts[queue] = counts
    town.wait(10 * IDLE)
    assert "q" in town.there
    town.counts[queue] = QueueCounts(active=5)
    town.wait(1)
    assert town.there == {}


def test_a_queue_that_forwards_is_never_idle(town: Town) -> None:
    """semantics B §8."""
    queue = town.queue()
    queue.forward_to = 9
    town.wait(10 * IDLE)
    assert "q" in town.there


def test_an_idle_subscription_goes_although_its_topic_is_used(town: Town) -> None:
    """semantics B §11: what a topic gives it is no use of it."""
    topic = town.topic()
    town.subscribe(topic)
    topic.meter.sends = 1
    town.wait(IDLE - 1)
    topic.meter.sends = 2
    town.wait(1)
    assert topic.subscriptions() == []
    assert "t" in town.there


def test_use_of_a_subscription_is_use_of_its_topic(town: Town) -> None:
    """semantics B §11."""
    topic = town.topic()
    subscription = town.subscribe(topic, idle_ms=None)
    town.wait(IDLE - 1)
    subscription.touch(town.now)
    town.wait(IDLE - 1)
    assert "t" in town.there
    town.wait(1)
    assert town.there == {}


def test_one_that_somebody_else_deletes_first_is_no_trouble(town: Town) -> None:
    town.queue("a")
    town.queue("b")
    town.others_delete = True
    town.wait(IDLE)
    town.others_delete = False
    town.wait(1)
    assert town.there == {}


class Waiter:
    """A receiver that wants messages and gets none."""

    deletes = False
    holder = 1
    draining = False

    def capacity(self) -> int:
        return 1

    def reserve(self, message: Any, raw: bytes) -> Any:
        raise AssertionError("it was given something")

    def deliver(self, messages: list[Any]) -> None:
        raise AssertionError("it was given something")

    def drained(self) -> None:
        raise AssertionError("it was given something")


def test_what_is_used_while_its_deletion_waits_is_not_deleted() -> None:
    town = Town()
    queue = town.queue()
    town.meanwhile = lambda: queue.touch(town.now)
    town.wait(IDLE)
    assert "q" in town.there


def test_another_entity_of_the_same_name_is_not_deleted_in_its_place() -> None:
    town = Town()
    town.queue()
    town.meanwhile = town.queue
    town.wait(IDLE)
    assert "q" in town.there

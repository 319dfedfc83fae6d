"""Subscriptions and rules: created, changed and deleted durably, and known to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from postbus.broker.subqueue_numbers import subqueues_of
from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from postbus.model.address import check_subscription_name
from postbus.model.description import QueueCounts, SubscriptionDescription
from postbus.model.rule import RuleDescription
from postbus.model.times import Instant
from postbus.namespace.engines import Engines
from postbus.namespace.entities import SubscriptionEntity, TopicEntity
from postbus.namespace.entity import Entity
from postbus.namespace.forwarding_targets import ForwardingTargets
from postbus.runtime.operations import AddSubscription, RemoveSubscription
from postbus.runtime.store_thread import StoreThread
from postbus.store.ports.catalog import SubscriptionCatalog

SUBSCRIPTIONS_MAX: Final = 2_000
"""Of one topic (semantics A §1.5)."""


def always(_: Entity) -> bool:
    """Whatever has happened meanwhile."""
    return True


def unchecked(_: object) -> None:
    """Whatever has happened meanwhile, likewise."""


log = structlog.get_logger("namespace")


class Subscriptions:
    """The subscriptions of all topics. Changes wait for those of queues and topics."""

    def __init__(
        self,
        catalog: SubscriptionCatalog,
        thread: StoreThread,
        clock: Callable[[], Instant],
        changing: asyncio.Lock,
        find_topic: Callable[[str], TopicEntity | None],
        engines: Engines,
        forwarding: ForwardingTargets,
    ) -> None:
        self._catalog = catalog
        self._thread = thread
        self._clock = clock
        self._changing = changing
        """Held by each change of the namespace."""
        self._find_topic = find_topic
        self._engines = engines
        self._forwarding = forwarding

    # -- subscriptions -----------------------------------------------------------------------

    async def open(self, topic: TopicEntity) -> None:
        for record in await self._thread.run(partial(self._catalog.of, topic.name)):
            subscription = SubscriptionEntity(topic, record, self._clock())
            topic.add(subscription)
            compiled = topic.matcher.compile(subscription.rules())
            topic.matcher.set_rules(subscription.owner, compiled)

    async def create(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        default_rule: RuleDescription,
    ) -> SubscriptionEntity:
        return await self.create_with(topic, name, description, [default_rule])

    async def create_with(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        rules: Sequence[RuleDescription],
    ) -> SubscriptionEntity:
        """Create one with all its rules at once: no message is judged by some of them only."""
        check_subscription_name(name)
        description.validate()
        async with self._changing:
            parent = self._parent(topic)
            if parent.subscription(name) is not None:
                raise EntityAlreadyExists(f"{parent.name}|{name}")
            if len(parent.subscriptions()) >= SUBSCRIPTIONS_MAX:
                raise QuotaExceeded(
                    f"The topic '{parent.name}' has {SUBSCRIPTIONS_MAX} subscriptions and may "
                    "have no more."
                )
            self._forwarding.check(description, parent.partitioned)
            now = self._clock()
            rules = [replace(rule, created_at=now) for rule in rules]
            compiled = parent.matcher.compile(rules)
            parent.matcher.check_room([], compiled)
            record = await self._thread.run(
                partial(
                    self._catalog.create,
                    parent.name,
                    name,
                    description.to_json(),
                    {rule.name: rule.to_json() for rule in rules},
                    now,
                )
            )
            subscription = SubscriptionEntity(parent, record, now)
            parent.used_at = now
            parent.add(subscription)
            self._forwarding.resolve(subscription)
            add = AddSubscription(subscription.owner, subscription.path, subscription.policy())
            # Before the engine is asked: where that fails, the next one to be loaded has the
            # subscription, and it must not be without its rules.
            parent.matcher.set_rules(subscription.owner, compiled)
            for fragment in parent.fragments:
                await self._engines.ask(fragment, add)
        log.info("entity created", entity=subscription.path, kind="subscription")
        return subscription

    async def update(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        check: Callable[[SubscriptionEntity], None] = unchecked,
    ) -> SubscriptionEntity:
        """`check` may refuse the change when nothing else changes any more."""
        description.validate()
        return await self.change(topic, name, lambda _: description, check)

    async def change(
        self,
        topic: str,
        name: str,
        change: Callable[[SubscriptionDescription], SubscriptionDescription],
        check: Callable[[SubscriptionEntity], None] = unchecked,
    ) -> SubscriptionEntity:
        """Replace the description by what `change` makes of the one that is there by then."""
        async with self._changing:
            subscription = self._existing(topic, name)
            check(subscription)
            before = subscription.description
            description = change(before)
            description.validate()
            self._forwarding.check(description, subscription.partitioned)
            now = subscription.next_version(self._clock())
            record = await self._thread.run(
                partial(
                    self._catalog.update,
                    subscription.topic,
                    subscription.name,
                    description.to_json(),
                    now,
                )
            )
            subscription.description = description
            subscription.updated_at = record.updated_at
            subscription.used_at = now
            if description.meaning != before.meaning:
                self._forwarding.resolve(subscription)
                await self._engines.apply(subscription)
        log.info("entity updated", entity=subscription.path)
        return subscription

    async def delete(self, topic: str, name: str, if_so: Callable[[Entity], bool] = always) -> None:
        async with self._changing:
            subscription = self._existing(topic, name)
            if not if_so(subscription):
                return
            parent = subscription.parent
            await self._thread.run(partial(self._catalog.delete, parent.name, subscription.name))
            parent.used_at = self._clock()
            parent.remove(subscription)
            parent.matcher.remove(subscription.owner)

            subscription.detach_all(EntityNotFound(subscription.path))
            for fragment in parent.fragments:
                for subqueue in subqueues_of(subscription.owner):
                    fragment.receiver_queues.pop(subqueue, None)
                    fragment.session_waiters.pop(subqueue, None)
            for fragment in parent.fragments:
                await self._engines.ask(fragment, RemoveSubscription(subscription.owner))
        log.info("entity deleted", entity=subscription.path)

    async def counts(self, topic: str, name: str) -> QueueCounts:
        return await self._engines.counts(self._existing(topic, name))

    # -- rules -------------------------------------------------------------------------------

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> None:
        async with self._changing:
            under = self._existing(topic, subscription)
            if under.rule(rule.name) is not None:
                raise EntityAlreadyExists(f"{under.topic}|{under.name}|{rule.name}")
            await self._put_rule(under, replace(rule, created_at=self._clock()))

    async def update_rule(
        self,
        topic: str,
        subscription: str,
        rule: RuleDescription,
        check: Callable[[RuleDescription], None] = unchecked,
    ) -> None:
        async with self._changing:
            under = self._existing(topic, subscription)
            there = under.rule(rule.name)
            if there is None:
                raise EntityNotFound(f"{under.path}/Rules/{rule.name}")
            check(there)
            await self._put_rule(under, replace(rule, name=there.name, created_at=there.created_at))

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        async with self._changing:
            under = self._existing(topic, subscription)
            there = under.rule(name)
            if there is None:
                raise EntityNotFound(f"{under.path}/Rules/{name}")
            await self._thread.run(
                partial(self._catalog.delete_rule, under.topic, under.owner, there.name)
            )
            under.remove_rule(there.name)
            under.parent.matcher.remove_rule(under.owner, there.name)
            under.used_at = self._clock()

    async def _put_rule(self, under: SubscriptionEntity, rule: RuleDescription) -> None:
        matcher = under.parent.matcher
        [compiled] = matcher.compile([rule])
        before = matcher.rules.rule(under.owner, rule.name)
        matcher.check_room([] if before is None else [before], [compiled])
        await self._thread.run(
            partial(self._catalog.put_rule, under.topic, under.owner, rule.name, rule.to_json())
        )
        under.put_rule(rule)
        matcher.put_rule(under.owner, compiled)
        under.used_at = self._clock()

    def _parent(self, topic: str) -> TopicEntity:
        found = self._find_topic(topic)
        if found is None:
            raise EntityNotFound(topic)
        return found

    def _existing(self, topic: str, name: str) -> SubscriptionEntity:
        found = self._parent(topic).subscription(name)
        if found is None:
            raise EntityNotFound(f"{topic}/Subscriptions/{name}")
        return found

"""The entities of a namespace: created, changed and deleted durably, found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

import structlog

from postbus.auth.namespace_key import new_access_key
from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded, ServiceBusError
from postbus.model.address import Address, check_entity_name
from postbus.model.authorization import Rules, settle_rules
from postbus.model.description import QueueCounts, QueueDescription, TopicDescription
from postbus.model.partitioning import FRAGMENTS
from postbus.model.times import Instant
from postbus.namespace.engines import Engines
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.namespace.entity import Entity, ReceivableEntity
from postbus.namespace.forwarding_targets import ForwardingTargets
from postbus.namespace.rule_matcher import TopicRuleMatcher
from postbus.namespace.subscriptions import Subscriptions, always, unchecked
from postbus.rules.grammar import prepare
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.runtime.upkeep import Upkeep
from postbus.settings import Settings
from postbus.store.ports.catalog import Catalog, EntityRecord

QUEUE: Final = "queue"
TOPIC: Final = "topic"
PARTITIONED_MAX: Final = 100
"""Partitioned queues and topics of a namespace (R-PART-20)."""
D = TypeVar("D", bound=QueueDescription | TopicDescription)

log = structlog.get_logger("namespace")


class Namespace:
    """Entities by name. Changes go one at a time, each durable before it is visible."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        catalog_thread: StoreThread,
        runtimes: list[Runtime],
        upkeeps: list[Upkeep],
        clock: Callable[[], Instant],
    ) -> None:
        self.name = settings.namespace_name
        self.settings = settings
        self.runtimes = runtimes
        self.upkeeps = upkeeps
        self._catalog = catalog
        self._thread = catalog_thread
        self._clock = clock
        self._changing = asyncio.Lock()
        self._knows_rules = False
        self._entities: dict[str, QueueEntity | TopicEntity] = {}
        self._fragments: dict[int, LoadedFragment] = {}
        self.engines = Engines(runtimes)
        self.forwarder = Forwarder(self._fragments.get, self.runtime)
        self._forwarding = ForwardingTargets(self.entity, self.received, self.engines)
        self.subscriptions = Subscriptions(
            catalog.subscriptions,
            catalog_thread,
            clock,
            self._changing,
            self.topic,
            self.engines,
            self._forwarding,
        )
        self._dropping: set[asyncio.Task[None]] = set()
        self.message_size_max = 0
        """The largest message, in bytes, that any entity has taken since the start."""
        self.created_at: Instant = catalog.namespace_created_at
        self.on_rules: Callable[[str, Rules | None], None] = _unwatched
        """Told of each entity's authorization rules, also where there are none; None: it is gone.
        On an update, before anything else of it takes effect."""
        self.on_former: Callable[[list[str]], None] = _unheard
        """Told of names that are an entity's no longer and the beginning of others."""

    async def open(self) -> None:
        """Find the entities that are there, and go on dropping those that are not."""
        for record in await self._thread.run(self._catalog.entities):
            entity = self._add(record)
            if isinstance(entity, TopicEntity):
                await self.subscriptions.open(entity)
        self.on_former(await self._thread.run(self._catalog.deleted_prefixes))
        for received in self.received():
            self._forwarding.resolve(received)
        for fragment_id in await self._thread.run(self._catalog.dropped):
            self._drop(fragment_id.id, fragment_id.store)

    def _add(self, record: EntityRecord) -> QueueEntity | TopicEntity:
        entity: QueueEntity | TopicEntity
        if record.kind == TOPIC:
            if not self._knows_rules:
                self._knows_rules = True
                asyncio.get_running_loop().run_in_executor(None, prepare)
            entity = TopicEntity(
                record,
                self.settings,
                self._clock(),
                TopicRuleMatcher(uuid4, self.settings.header_size_max_bytes),
            )
        else:
            entity = QueueEntity(record, self.settings, self._clock())
        self._entities[record.name.lower()] = entity
        self.message_size_max = max(self.message_size_max, entity.message_size_max)
        for fragment in entity.fragments:
            self._fragments[fragment.id] = fragment
            self.forwarder.serve(fragment)
        self.on_rules(entity.name, entity.description.authorization_rules)
        return entity

    # -- finding -----------------------------------------------------------------------------

    def runtime(self, fragment: LoadedFragment) -> Runtime:
        return self.runtimes[fragment.store]

    def entity(self, name: str) -> QueueEntity | TopicEntity | None:
        return self._entities.get(name.lower())

    def entities(self) -> list[QueueEntity | TopicEntity]:
        return [entity for _, entity in sorted(self._entities.items())]

    def queue(self, name: str) -> QueueEntity | None:
        entity = self.entity(name)
        return entity if isinstance(entity, QueueEntity) else None

    def queues(self) -> list[QueueEntity]:
        return [entity for entity in self.entities() if isinstance(entity, QueueEntity)]

    def topic(self, name: str) -> TopicEntity | None:
        entity = self.entity(name)
        return entity if isinstance(entity, TopicEntity) else None

    def topics(self) -> list[TopicEntity]:
        return [entity for entity in self.entities() if isinstance(entity, TopicEntity)]

    def every(self) -> Iterator[Entity]:
        """Queues, topics and subscriptions."""
        for entity in self.entities():
            yield entity
            if isinstance(entity, TopicEntity):
                yield from entity.subscriptions()

    def received(self) -> Iterator[ReceivableEntity]:
        """Everything that clients can receive from."""
        for entity in self.entities():
            if isinstance(entity, QueueEntity):
                yield entity
            else:
                yield from entity.subscriptions()

    def at(self, address: Address) -> Entity | None:
        """The entity that an address is about, subqueue and management node aside."""
        entity = self.entity(address.entity)
        if address.subscription is None or entity is None:
            return entity
        return (
            entity.subscription(address.subscription) if isinstance(entity, TopicEntity) else None
        )

    # -- changing ----------------------------------------------------------------------------

    async def create_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        entity = await self._create(name, QUEUE, description)
        assert isinstance(entity, QueueEntity)
        return entity

    async def create_topic(self, name: str, description: TopicDescription) -> TopicEntity:
        entity = await self._create(name, TOPIC, description)
        assert isinstance(entity, TopicEntity)
        return entity

    async def _create(
        self, name: str, kind: str, description: QueueDescription | TopicDescription
    ) -> QueueEntity | TopicEntity:
        check_entity_name(name)
        description.validate()
        async with self._changing:
            if self.entity(name) is not None:
                raise EntityAlreadyExists(name)
            if len(self._entities) >= self.settings.entities_max:
                raise QuotaExceeded(
                    f"The namespace has {len(self._entities)} entities and may have no more."
                )
            if description.enable_partitioning:
                self._check_partitioned(name)
            if isinstance(description, QueueDescription):
                self._forwarding.check(description)
            now = self._clock()
            description = _with_keys(description, (), now)
            # One store so far; more of them are dealt out here (R-PART-02).
            stores = [0] * (FRAGMENTS if description.enable_partitioning else 1)
            record = await self._thread.run(
                partial(self._catalog.create, name, kind, description.to_json(), now, stores)
            )
            entity = self._add(record)
            if isinstance(entity, QueueEntity):
                self._forwarding.resolve(entity)
            await self._forwarding.resolve_again(name)
        log.info("entity created", entity=name, kind=kind)
        return entity

    def _check_partitioned(self, name: str) -> None:
        """Raise the reason why no partitioned entity of this name can be made."""
        there = sum(entity.partitioned for entity in self._entities.values())
        if there >= PARTITIONED_MAX:
            raise QuotaExceeded(
                f"The namespace has {there} partitioned entities and may have no more."
            )
        self._forwarding.check_not_destination(name)

    async def update_queue(
        self,
        name: str,
        description: QueueDescription,
        check: Callable[[QueueEntity], None] = unchecked,
    ) -> QueueEntity:
        """`check` may refuse the change when nothing else changes any more."""
        description.validate()
        return await self.change_queue(name, lambda _: description, check)

    async def change_queue(
        self,
        name: str,
        change: Callable[[QueueDescription], QueueDescription],
        check: Callable[[QueueEntity], None] = unchecked,
    ) -> QueueEntity:
        """Replace the description by what `change` makes of the one that is there by then."""
        async with self._changing:
            entity = self.queue(name)
            if entity is None:
                raise EntityNotFound(name)
            check(entity)
            before = entity.description
            after = change(before)
            self._forwarding.check(after)
            entity.description = await self._store(entity, before, after)
            if entity.description.meaning != before.meaning:
                self._forwarding.resolve(entity)
                await self.engines.apply(entity)
        return entity

    async def update_topic(
        self,
        name: str,
        description: TopicDescription,
        check: Callable[[TopicEntity], None] = unchecked,
    ) -> TopicEntity:
        description.validate()
        return await self.change_topic(name, lambda _: description, check)

    async def change_topic(
        self,
        name: str,
        change: Callable[[TopicDescription], TopicDescription],
        check: Callable[[TopicEntity], None] = unchecked,
    ) -> TopicEntity:
        async with self._changing:
            entity = self.topic(name)
            if entity is None:
                raise EntityNotFound(name)
            check(entity)
            before = entity.description
            entity.description = await self._store(entity, before, change(before))
            if entity.description.meaning != before.meaning:
                policy = entity.policy()
                for fragment in entity.fragments:
                    fragment.policy = policy
                resized = entity.description.max_message_size_kb != before.max_message_size_kb
                below = entity.subscriptions() if resized else []
                for subscription in below:
                    self._forwarding.resolve(subscription)
                for each in (entity, *below):
                    await self.engines.apply(each)
        return entity

    async def _store(self, entity: Entity, previous: D, description: D) -> D:
        """Make the description durable. Returns it with its keys, which are known by then."""
        description.validate()
        now = entity.next_version(self._clock())
        description = _with_keys(description, previous.authorization_rules, now)
        record = await self._thread.run(
            partial(self._catalog.update, entity.name, description.to_json(), now)
        )
        entity.updated_at = record.updated_at
        entity.used_at = now
        self.message_size_max = max(self.message_size_max, description.max_message_size_kb * 1024)
        self.on_rules(entity.name, description.authorization_rules)
        log.info("entity updated", entity=entity.name)
        return description

    async def delete_entity(self, name: str, if_so: Callable[[Entity], bool] = always) -> None:
        """`if_so` is asked when nothing else changes any more: others may have waited as we did."""
        async with self._changing:
            entity = self.entity(name)
            if entity is not None and not if_so(entity):
                return
            if entity is None:
                raise EntityNotFound(name)
            former = await self._thread.run(partial(_delete, self._catalog, entity.name))
            self.on_former(former)
            del self._entities[entity.name.lower()]
            gone = EntityNotFound(entity.name)
            for fragment in entity.fragments:
                del self._fragments[fragment.id]
                fragment.gone = gone
            if isinstance(entity, TopicEntity):
                for subscription in entity.subscriptions():
                    subscription.detach_all(gone)
            entity.detach_all(gone)
            # After the links: that the entity is gone says more than that its keys are.
            self.on_rules(entity.name, None)
            await self._forwarding.resolve_again(name)
        for fragment in entity.fragments:
            self.runtime(fragment).discard(fragment, gone)
            self._drop(fragment.id, fragment.store)
        log.info("entity deleted", entity=entity.name)

    # -- the engines -------------------------------------------------------------------------

    async def counts(self, name: str) -> QueueCounts:
        entity = self.entity(name)
        if entity is None:
            raise EntityNotFound(name)
        return await self.engines.counts(entity)

    def survey(self) -> None:
        """Learn of the entities what must be known without loading them."""
        self.engines.survey([each for entity in self.entities() for each in entity.fragments])

    def _drop(self, fragment_id: int, store: int) -> None:
        """Remove what a deleted entity left, in slices, and only then forget its id."""

        async def drop() -> None:
            try:
                await self.upkeeps[store].drop(fragment_id)
                await self._thread.run(partial(self._catalog.forget, fragment_id))
            except ServiceBusError as error:
                # It stays on the catalog's list, and the next start goes on with it.
                log.warning("fragment not dropped", fragment=fragment_id, error=str(error))

        task = asyncio.get_running_loop().create_task(drop())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)


def _unwatched(name: str, rules: Rules | None) -> None:
    """Nobody has asked to be told."""


def _unheard(names: list[str]) -> None:
    """Nobody is told."""


def _delete(catalog: Catalog, name: str) -> list[str]:
    """On the catalog's thread. Returns the former names from then on."""
    catalog.delete(name)
    return catalog.deleted_prefixes()


def _with_keys(description: D, previous: Rules, now: Instant) -> D:
    rules = settle_rules(description.authorization_rules, previous, now, new_access_key)
    return replace(description, authorization_rules=rules)

"""The entities of a namespace: created, changed and deleted durably, found by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import structlog

from postbus.amqp.link import Link
from postbus.broker.pages import Pages
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.errors import (
    DetachForced,
    EntityDisabled,
    EntityNotFound,
    QuotaExceeded,
    ServiceBusError,
)
from postbus.model.address import check_entity_name
from postbus.model.authorization import Rules, settle_rules
from postbus.model.description import QueueCounts, QueueDescription
from postbus.model.instant import Instant
from postbus.server.host import Host
from postbus.server.keys import new_access_key
from postbus.server.meters import EntityMeter
from postbus.server.prefetch import PrefetchWatch
from postbus.server.requests import Call
from postbus.server.residence import counts_of
from postbus.server.runtime import Runtime
from postbus.server.storethread import StoreThread
from postbus.server.upkeep import Upkeep
from postbus.settings import Settings
from postbus.store.catalog import Catalog, EntityRecord

QUEUE: Final = "queue"

T = TypeVar("T")

log = structlog.get_logger("namespace")


class QueueEntity:
    """A queue as the rest of the server knows it."""

    def __init__(self, record: EntityRecord, settings: Settings, now: Instant) -> None:
        self.name = record.name
        self.description = QueueDescription.from_json(record.description)
        self.created_at = record.created_at
        self.updated_at = record.updated_at
        self.accessed_at: Instant = 0
        self._settings = settings
        [fragment] = record.fragments
        self.host = Host(fragment.id, fragment.index, fragment.store, record.name, self.policy())
        self.meter = self.host.meter = EntityMeter()
        self.prefetch = PrefetchWatch(now)
        self.links: set[Link] = set()
        """Links of clients to it and to its management node."""

    @property
    def message_size_max(self) -> int:
        return min(self.description.max_message_size_kb, self._settings.message_size_max_kb) * 1024

    def policy(self) -> Policy:
        description = self.description
        return Policy(
            lock_ms=description.lock_duration_ms,
            max_delivery_count=description.max_delivery_count,
            default_ttl_ms=description.default_ttl_ms,
            dead_letter_on_expiry=description.dead_lettering_on_expiration,
            size_bytes_max=description.max_size_mb << 20,
            message_size_max=self.message_size_max,
            header_size_max=self._settings.header_size_max_bytes,
            sends=description.status.sends,
            receives=description.status.receives,
        )

    def touch(self, now: Instant) -> None:
        self.accessed_at = now

    def findings(self, now: Instant) -> list[str]:
        """What an operator should hear of (R-PRE-05)."""
        description = self.description
        return self.prefetch.findings(description.lock_duration_ms, description.default_ttl_ms, now)

    def warn(self, now: Instant) -> None:
        findings = self.findings(now)
        if findings and self.prefetch.may_warn(now):
            log.warning("prefetch outlasts locks", entity=self.name, findings=findings)

    def message_links(self) -> list[Link]:
        """Those of its links that carry messages, and no questions."""
        return [link for link in self.links if getattr(link.owner, "host", None) is not None]


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
        self._queues: dict[str, QueueEntity] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self.created_at: Instant = catalog.namespace_created_at
        self.on_rules: Callable[[str, Rules | None], None] = _unwatched
        """Told of each entity's authorization rules, also where there are none; None: it is gone.
        On an update, before anything else of it takes effect."""

    async def open(self) -> None:
        """Find the entities that are there, and go on dropping those that are not."""
        for record in await self._thread.run(self._catalog.entities):
            entity = self._queues[record.name.lower()] = self._entity(record)
            self.on_rules(entity.name, entity.description.authorization_rules)
        for fragment in await self._thread.run(self._catalog.dropped):
            self._drop(fragment.id, fragment.store)

    def _entity(self, record: EntityRecord) -> QueueEntity:
        return QueueEntity(record, self.settings, self._clock())

    def runtime(self, host: Host) -> Runtime:
        return self.runtimes[host.store]

    def queue(self, name: str) -> QueueEntity | None:
        return self._queues.get(name.lower())

    def queues(self) -> list[QueueEntity]:
        return [entity for _, entity in sorted(self._queues.items())]

    async def create_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        check_entity_name(name)
        description.validate()
        async with self._changing:
            if len(self._queues) >= self.settings.entities_max:
                raise QuotaExceeded(
                    f"The namespace has {len(self._queues)} entities and may have no more."
                )
            now = self._clock()
            description = _with_keys(description, (), now)
            # One store so far; more of them are dealt out here (R-PART-02).
            record = await self._thread.run(
                partial(self._catalog.create, name, QUEUE, description.to_json(), now, [0])
            )
            entity = self._queues[name.lower()] = self._entity(record)
            self.on_rules(name, description.authorization_rules)
        log.info("entity created", entity=name)
        return entity

    async def update_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        description.validate()
        async with self._changing:
            entity = self._existing(name)
            now = self._clock()
            description = _with_keys(description, entity.description.authorization_rules, now)
            record = await self._thread.run(
                partial(self._catalog.update, entity.name, description.to_json(), now)
            )
            entity.description = description
            entity.updated_at = record.updated_at
            self.on_rules(entity.name, description.authorization_rules)
            await self._apply(entity)
        log.info("entity updated", entity=entity.name)
        return entity

    async def _apply(self, entity: QueueEntity) -> None:
        """Let the engine have the new policy; links and locks end by that (R-SETTLE-10)."""
        host = entity.host
        host.policy = entity.policy()

        def update(queue: Queue, now: Instant, pages: Pages) -> None:
            queue.update(host.policy, now)

        await self._call(host, update)
        for link in entity.message_links():
            status = entity.description.status
            allowed = status.sends if link.role == "receiver" else status.receives
            error: ServiceBusError = (
                DetachForced(f"The entity '{entity.name}' was updated.")
                if allowed
                else EntityDisabled(entity.name)
            )
            link.owner.gateway.detach(link, error, entity.name)

    async def delete_queue(self, name: str) -> None:
        async with self._changing:
            entity = self._existing(name)
            await self._thread.run(partial(self._catalog.delete, entity.name))
            del self._queues[entity.name.lower()]
        gone = EntityNotFound(f"sb://{self.name}/{entity.name}")
        host = entity.host
        host.gone = gone
        for link in list(entity.links):
            link.owner.gateway.detach(link, gone, entity.name)
        self.on_rules(entity.name, None)
        self.runtime(host).discard(host, gone)
        self._drop(host.fragment, host.store)
        log.info("entity deleted", entity=entity.name)

    async def counts(self, name: str) -> QueueCounts:
        host = self._existing(name).host
        if host.queue is None and host.counts is not None:
            return host.counts  # or a list of all entities would load every engine
        return await self._call(host, _counts)

    def known_counts(self, entity: QueueEntity) -> QueueCounts | None:
        """Counts without asking the engine; None while it was never in memory, or is on its way."""
        queue = entity.host.queue
        return entity.host.counts if queue is None else counts_of(queue.ledger)

    def survey(self) -> None:
        """Learn of the entities what must be known without loading them."""
        hosts = [entity.host for entity in self.queues()]
        for store, runtime in enumerate(self.runtimes):
            runtime.survey([host for host in hosts if host.store == store])

    def _existing(self, name: str) -> QueueEntity:
        entity = self.queue(name)
        if entity is None:
            raise EntityNotFound(f"sb://{self.name}/{name}")
        return entity

    async def _call(self, host: Host, call: Callable[[Queue, Instant, Pages], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def failed(error: ServiceBusError) -> None:
            if not future.done():
                future.set_exception(error)

        self.runtime(host).submit(Call(host, call, done, failed))
        return await future

    def _drop(self, fragment: int, store: int) -> None:
        """Remove what a deleted entity left, in slices, and only then forget its id."""

        async def drop() -> None:
            try:
                await self.upkeeps[store].drop(fragment)
                await self._thread.run(partial(self._catalog.forget, fragment))
            except ServiceBusError as error:
                # It stays on the catalog's list, and the next start goes on with it.
                log.warning("fragment not dropped", fragment=fragment, error=str(error))

        task = asyncio.get_running_loop().create_task(drop())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)


def _unwatched(name: str, rules: Rules | None) -> None:
    """Nobody has asked to be told."""


def _with_keys(description: QueueDescription, previous: Rules, now: Instant) -> QueueDescription:
    rules = settle_rules(description.authorization_rules, previous, now, new_access_key)
    return replace(description, authorization_rules=rules)


def _counts(queue: Queue, now: Instant, pages: Pages) -> QueueCounts:
    return counts_of(queue.ledger)

"""Entities that delete themselves when nobody has used them for as long as they say.

A queue is used by sends, receives (even empty ones), peeks and updates; a scheduled message keeps
it. A topic is used when one of its subscriptions is; a subscription is not used by what its topic
gives it (semantics B §11). A restart counts as use.
"""

from collections.abc import Callable

import structlog

from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import EntityNotFound
from postbus.model.times import Instant
from postbus.namespace.entities import SubscriptionEntity, TopicEntity
from postbus.namespace.entity import Entity
from postbus.namespace.namespace import Namespace

log = structlog.get_logger("namespace")


class IdleDeletion:
    """Looks now and then who has become idle."""

    def __init__(self, namespace: Namespace, clock: Callable[[], Instant]) -> None:
        self._namespace = namespace
        self._clock = clock
        self._seen: dict[Entity, int] = {}
        """Messages that had come in when each was last looked at."""

    async def look(self) -> None:
        """Delete what has been idle for too long."""
        now = self._clock()
        seen, self._seen = self._seen, {}
        for entity in self._namespace.entities():
            try:
                if isinstance(entity, TopicEntity):
                    await self._look_at_subscriptions(entity, seen, now)
                if self._is_idle(entity, seen, now):
                    log.info("entity idle", entity=entity.path, idle_ms=now - entity.used_at)
                    await self._namespace.delete_entity(entity.name, self._still(entity))
            except EntityNotFound:
                continue  # somebody else was faster

    async def _look_at_subscriptions(
        self, topic: TopicEntity, seen: dict[Entity, int], now: Instant
    ) -> None:
        for subscription in topic.subscriptions():
            if self._is_idle(subscription, seen, now):
                log.info(
                    "entity idle", entity=subscription.path, idle_ms=now - subscription.used_at
                )
                await self._namespace.subscriptions.delete(
                    topic.name, subscription.name, self._still(subscription)
                )
            else:
                topic.used_at = max(topic.used_at, subscription.used_at)

    def _is_idle(self, entity: Entity, seen: dict[Entity, int], now: Instant) -> bool:
        after_ms = entity.auto_delete_ms
        came_in = entity.meter.sends + entity.meter.arrivals
        self._seen[entity] = came_in
        if seen.get(entity, came_in) != came_in or self._is_waited_at(entity):
            entity.used_at = now
        if after_ms is None or now - entity.used_at < after_ms:
            return False
        counts = self._namespace.engines.known_counts(entity)
        scheduled = counts is None or counts.scheduled > 0
        return not scheduled or isinstance(entity, SubscriptionEntity)

    def _still(self, idle: Entity) -> Callable[[Entity], bool]:
        """Is it the same one, and has nobody used it since?"""
        used_at = idle.used_at

        def check(found: Entity) -> bool:
            return found is idle and found.used_at == used_at

        return check

    @staticmethod
    def _is_waited_at(entity: Entity) -> bool:
        """Does a receiver with credit wait? Then it receives all the time."""
        return any(
            receivers is not None and receivers.members and receivers.waiting
            for fragment in entity.fragments
            for receivers in (
                fragment.receiver_queues.get(entity.subqueue(kind)) for kind in (MAIN, DEAD_LETTER)
            )
        )

"""Which fragments an entity forwards to, while the entities that it names come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from postbus.broker.destination import Destination
from postbus.errors import NotSupported, ServiceBusError
from postbus.model.description import QueueDescription, SubscriptionDescription
from postbus.model.limits import check_partitioned_forward
from postbus.namespace.engines import Engines
from postbus.namespace.entities import QueueEntity, SubscriptionEntity, TopicEntity
from postbus.namespace.entity import ReceivableEntity

GONE: Final = 0
"""Where messages go that are forwarded to an entity that is not there: no fragment has this id."""

log = structlog.get_logger("namespace")


class ForwardingTargets:
    """Finds the fragments, and gives the entities that forward the policy that names them."""

    def __init__(
        self,
        find: Callable[[str], QueueEntity | TopicEntity | None],
        received: Callable[[], Iterable[ReceivableEntity]],
        engines: Engines,
    ) -> None:
        """`received` are the entities that may forward: queues and subscriptions."""
        self._find = find
        self._received = received
        self._engines = engines

    def resolve(self, entity: ReceivableEntity) -> None:
        """Find the fragments that an entity forwards to, and give it the policy that says so."""
        description = entity.description
        entity.forward_to = self._destination(description.forward_to)
        entity.forward_dead_letters_to = self._destination(description.forward_dead_letters_to)
        policy = entity.policy()
        for fragment in entity.fragments:
            if isinstance(entity, SubscriptionEntity):
                fragment.subscriptions[entity.owner] = entity.path, policy
            else:
                fragment.policy = policy

    def check(
        self, description: QueueDescription | SubscriptionDescription, partitioned: bool = False
    ) -> None:
        """Raise NotSupported where messages would go from or to a partitioned entity."""
        names = [description.forward_to, description.forward_dead_letters_to]
        found = [self._find(name) for name in names if name is not None]
        to_partitioned = any(entity is not None and entity.partitioned for entity in found)
        check_partitioned_forward(partitioned or to_partitioned, *names)

    def check_not_destination(self, name: str) -> None:
        """Raise NotSupported where an entity already forwards to this name, which is to be that
        of a partitioned entity."""
        for entity in self._forwarding_to(name):
            raise NotSupported(
                f"'{name}' cannot be partitioned, because '{entity.path}' forwards to it: Postbus "
                "does not support forwarding to partitioned entities yet."
            )

    def _forwarding_to(self, name: str) -> list[ReceivableEntity]:
        wanted = name.lower()
        return [
            entity
            for entity in self._received()
            if wanted
            in (
                (entity.description.forward_to or "").lower(),
                (entity.description.forward_dead_letters_to or "").lower(),
            )
        ]

    async def resolve_again(self, name: str) -> None:
        """An entity of this name came or went: tell the entities that forward to it."""
        forwarding = self._forwarding_to(name)
        for entity in forwarding:
            self.resolve(entity)
        for entity in forwarding:
            for fragment in entity.fragments:
                if fragment.engine is None and fragment.waiting is None:
                    continue  # its engine will be loaded with the new policy
                try:
                    await self._engines.set_policy(entity, fragment)
                except ServiceBusError as error:
                    # An engine that does not answer is loaded anew, and learns it then.
                    log.warning("forwarder not told", entity=entity.path, error=str(error))

    def _destination(self, name: str | None) -> Destination | None:
        if name is None:
            return None
        entity = self._find(name)
        if entity is None:
            return Destination((GONE,))
        return Destination(
            tuple(fragment.id for fragment in entity.fragments),
            entity.description.requires_duplicate_detection,
        )

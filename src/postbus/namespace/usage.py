"""What each entity has cost since the start: operations and bytes (R-COST-01).

The numbers are those of `/metrics`, for programs that want one entity, or JSON.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from postbus.errors import EntityNotFound, InvalidArgument
from postbus.model.address import Address, SubQueue, resolve_path
from postbus.model.times import Instant
from postbus.namespace.entities import TopicEntity
from postbus.namespace.entity import Entity
from postbus.namespace.namespace import Namespace

_COUNTED: Final = {
    "sends": "sends",
    "receives": "receives",
    "emptyReceives": "empty_receives",
    "pings": "pings",
    "managementRequests": "requests",
    "resubmissions": "resubmissions",
    "bytesIn": "bytes_in",
    "bytesOut": "bytes_out",
}
"""By name in a reply, the fields of a meter."""
_ABOVE_RULES: Final = re.compile("(.+/subscriptions/[^/]+)/rules(?:/[^/]*)?", re.IGNORECASE)


class Usage:
    """The meters of a namespace."""

    def __init__(self, namespace: Namespace, clock: Callable[[], Instant]) -> None:
        self._namespace = namespace
        self._clock = clock
        self._since = clock()

    def of_all(self) -> dict[str, object]:
        """Of every entity, by name."""
        return self._told(self._namespace.every())

    def of_one(self, address: Address) -> dict[str, object]:
        """Of one entity; of a topic with its subscriptions."""
        if address.subqueue is not SubQueue.MAIN or address.management:
            raise InvalidArgument(f"'{address.path}' is counted with its entity.")
        entity = self._namespace.at(address)
        if entity is None:
            raise EntityNotFound(address.written)
        with_it = entity.subscriptions() if isinstance(entity, TopicEntity) else []
        return self._told([entity, *with_it])

    def managed(self, path: str) -> None:
        """A request about what is at this path was carried out: count it there."""
        entity = self._namespace.at(resolve_path(path))
        if entity is None and (above := _ABOVE_RULES.fullmatch(path)):
            entity = self._namespace.at(resolve_path(above[1]))
        if entity is not None:
            entity.meter.requests += 1

    def _told(self, entities: Iterable[Entity]) -> dict[str, object]:
        return {
            "since": self._since,
            "now": self._clock(),
            "entities": [
                {
                    "entity": entity.path,
                    "kind": entity.kind,
                    **{name: getattr(entity.meter, field) for name, field in _COUNTED.items()},
                }
                for entity in entities
            ],
        }

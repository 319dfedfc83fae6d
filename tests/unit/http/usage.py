"""What entities cost, in memory, for tests of the HTTP side of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from postbus.errors import EntityNotFound
from postbus.model.address import Address


@dataclass
class MemoryUsage:
    """Stands in for `postbus.namespace.usage.Usage`."""

    entities: set[str] = field(default_factory=lambda: {"orders"})
    counted: list[str] = field(default_factory=list)

    def of_all(self) -> dict[str, object]:
        return {"entities": sorted(self.entities)}

    def of_one(self, address: Address) -> dict[str, object]:
        if address.entity not in self.entities:
            raise EntityNotFound(address.path)
        return {"entities": [address.path]}

    def managed(self, path: str) -> None:
        self.counted.append(path)

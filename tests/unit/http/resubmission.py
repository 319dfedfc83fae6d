"""Dead letters in memory, for tests of the HTTP side of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from postbus.errors import ServiceBusError
from postbus.model.address import Address
from postbus.model.plain_message import Edits


@dataclass
class MemoryResubmission:
    """Stands in for `postbus.namespace.resubmit.Resubmission`, and keeps what it was asked."""

    asked: list[tuple[object, ...]] = field(default_factory=list)
    outcomes: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By number; the others are moved, or removed."""
    failure: ServiceBusError | None = None

    async def resubmit(
        self, source: Address, to: Address | None, asked: Sequence[tuple[int, Edits]]
    ) -> list[tuple[str, str]]:
        self._check()
        self.asked.append(("resubmit", source.path, None if to is None else to.path, list(asked)))
        return [self.outcomes.get(number, ("moved", "")) for number, _ in asked]

    async def discard(self, source: Address, numbers: Sequence[int]) -> list[tuple[str, str]]:
        self._check()
        self.asked.append(("discard", source.path, list(numbers)))
        return [self.outcomes.get(number, ("removed", "")) for number in numbers]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

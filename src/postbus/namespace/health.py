"""Healthy means that a message can be stored and read, at this moment."""

from collections.abc import Callable
from typing import Final

from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.namespace.namespace import Namespace

PROBE_EVERY_MS: Final = 1_000
"""`/health` is open to all, so asking often must cost neither writes nor walks over all
entities."""
FULL: Final = (
    "Messages can be received and settled; the disk has no room for new ones, which are refused."
)


class Health:
    """Asks the stores and looks at the entities, at most once a second."""

    def __init__(self, namespace: Namespace, clock: Callable[[], Instant]) -> None:
        self._namespace = namespace
        self._clock = clock
        self._asked_at: Instant = 0
        self._trouble: str | None = None
        self._warnings: list[str] = []

    async def check(self) -> tuple[bool, dict[str, object]]:
        now = self._clock()
        if now >= self._asked_at + PROBE_EVERY_MS:
            self._asked_at = now
            self._warnings = [
                f"{entity.path}: {finding}"
                for entity in self._namespace.received()
                for finding in entity.findings(now)
            ]
            self._trouble = await self._probe()
        warnings = self._warnings
        details: dict[str, object] = {"warnings": warnings} if warnings else {}
        if self._trouble is not None:
            return False, {"message": self._trouble, **details}
        if not all(upkeep.has_room for upkeep in self._namespace.upkeeps):
            # Not unhealthy: who restarts or removes the broker for it makes no room by that.
            return True, {"status": "degraded", "message": FULL, **details}
        return True, {"message": "Messages can be stored and read.", **details}

    async def _probe(self) -> str | None:
        for number, upkeep in enumerate(self._namespace.upkeeps):
            try:
                await upkeep.probe(self._clock())
            except ServiceBusError as error:
                return f"Store {number} does not take writes: {error}"
        return None

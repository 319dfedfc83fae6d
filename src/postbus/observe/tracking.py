"""Tracking ids: what ties the words a client was told to the line in our log (R-SETTLE-02).

A refusal carries no id of its own; it is given one here, once, where it leaves the process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from postbus.model.instant import Instant

# An address in a refusal is the client's own text: it is quoted back, but not without end.
_TEXT_LENGTH_MAX = 2_048


def _random_id() -> str:
    return str(uuid4())


@dataclass(frozen=True, slots=True)
class Tracking:
    """One request, as both sides can name it. Made once, where the refusal is answered."""

    id: str
    system: str
    at: Instant

    def describe(self, error: BaseException | str) -> str:
        """The words of a refusal with Azure's suffix (wire §7.2)."""
        text = str(error)
        if len(text) > _TEXT_LENGTH_MAX:
            text = text[: _TEXT_LENGTH_MAX - 1] + "…"
        at = datetime.fromtimestamp(self.at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{text} TrackingId:{self.id}, SystemTracker:{self.system}, Timestamp:{at}"


class TrackingIds:
    """Hands out tracking ids for one namespace."""

    __slots__ = ("_clock", "_new_id", "namespace")

    def __init__(
        self,
        namespace: str,
        clock: Callable[[], Instant],
        new_id: Callable[[], str] = _random_id,
    ) -> None:
        self.namespace = namespace
        self._clock = clock
        self._new_id = new_id

    def track(self, entity: str | None = None) -> Tracking:
        """An id for what happened on `entity`, or on the namespace where no entity is known."""
        # "_G0": gateway 0, the part that speaks to clients (semantics A §6).
        system = f"{self.namespace}:{entity}" if entity else self.namespace
        return Tracking(f"{self._new_id()}_G0", system, self._clock())

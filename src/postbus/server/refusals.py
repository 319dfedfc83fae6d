"""Put a refusal into the form the wire wants, once, with a tracking id that the log has too."""

import structlog

from postbus.amqp.outcomes import Error, Rejected
from postbus.errors import ServiceBusError
from postbus.server.tracking import TrackingIds

log = structlog.get_logger()


class Refusals:
    """Turns ServiceBusError into AMQP errors (R-SETTLE-02)."""

    __slots__ = ("_tracking",)

    def __init__(self, tracking: TrackingIds) -> None:
        self._tracking = tracking

    def describe(self, error: ServiceBusError, entity: str | None) -> str:
        """The words a client is told; logged under the same id."""
        tracking = self._tracking.track(entity)
        log.info(
            "refused",
            entity=entity,
            condition=error.condition,
            error=str(error),
            tracking=tracking.id,
        )
        return tracking.describe(error)

    def fault(self, condition: str, text: str) -> str:
        """The words for a peer that broke the protocol; logged under the same id."""
        tracking = self._tracking.track()
        log.info("peer at fault", condition=condition, error=text, tracking=tracking.id)
        return tracking.describe(text)

    def error(self, error: ServiceBusError, entity: str | None) -> Error:
        return Error(error.condition, self.describe(error, entity))

    def rejected(self, error: ServiceBusError, entity: str | None) -> Rejected:
        return Rejected(self.error(error, entity))

"""Put a refusal into the form the wire wants, once, with a tracking id that the log has too."""

import structlog

from postbus.amqp.faults import ProtocolError
from postbus.amqp.frames.outcomes import Error, Rejected
from postbus.errors import ServiceBusError
from postbus.model.address import host_without_port
from postbus.observe.logs import Tracking, TrackingIds, Valve

log = structlog.get_logger("gateway")


class Refusals:
    """Turns what went wrong into AMQP errors (R-SETTLE-02)."""

    __slots__ = ("_tracking", "_valve", "host")

    def __init__(self, tracking: TrackingIds) -> None:
        self._tracking = tracking
        self._valve = Valve()
        self.host = tracking.namespace
        """What the client calls the namespace: entities are named by it (wire §7.2)."""

    def at(self, hostname: str | None) -> "Refusals":
        """The same for a connection that was opened under this name."""
        made = Refusals(self._tracking)
        made._valve = self._valve
        made.host = host_without_port(hostname or "") or self.host
        return made

    def describe(self, error: ServiceBusError, entity: str | None, stranger: bool = False) -> str:
        """The words a client is told; logged under the same id.

        A stranger is a peer that has shown no token: it must not fill the log at will.
        """
        tracking = self._tracking.track(entity)
        text = error.told_at(self.host)
        self._log(tracking, "refused", error.condition, text, stranger, entity)
        return tracking.describe(text)

    def describe_fault(self, fault: ProtocolError, stranger: bool) -> str:
        """The words for a peer that broke the protocol; logged under the same id."""
        tracking = self._tracking.track()
        self._log(tracking, "peer at fault", fault.condition, fault.text, stranger, None)
        return tracking.describe(fault.text)

    def error(self, error: ServiceBusError, entity: str | None, stranger: bool = False) -> Error:
        return Error(error.condition, self.describe(error, entity, stranger))

    def rejected(
        self, error: ServiceBusError, entity: str | None, stranger: bool = False
    ) -> Rejected:
        return Rejected(self.error(error, entity, stranger))

    def note_login(self, mechanism: str, error: Exception) -> None:
        """A login was refused, without words: SASL has none. Whoever tries is a stranger."""
        tracking = self._tracking.track()
        held = self._valve.passes("login refused", tracking.at)
        if held is not None:
            log.info("login refused", mechanism=mechanism, error=str(error), more=held)

    def _log(
        self,
        tracking: Tracking,
        event: str,
        condition: str,
        text: str,
        stranger: bool,
        entity: str | None,
    ) -> None:
        facts: dict[str, object] = {} if entity is None else {"entity": entity}
        if stranger:
            held = self._valve.passes(f"{event} {condition}", tracking.at)
            if held is None:
                return
            facts["more"] = held
        log.info(event, condition=condition, error=text, tracking=tracking.id, **facts)

"""Which peers may connect, and which connections must go when there is no room.

A connection has a place from its first byte to its last, whatever its protocol. A peer that has
proven its identity keeps its place. Where all places are taken, a new connection gets the place of
the oldest stranger. So strangers cannot keep others out by staying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from postbus.errors import ServerBusy, ServiceBusError
from postbus.model.times import Instant
from postbus.net.budgets import Account, Budgets
from postbus.observe.logs import Valve, get_logger
from postbus.observe.meters import ConnectionMeter

HTTP_PLACES: Final = 64
"""Places beyond the bound, for HTTP alone. Where known peers take every other place, an operator
can still ask for health and look at entities."""
LEAVING_MAX: Final = 128
"""Connections that were closed for their places and are not gone yet."""

_log = get_logger("places")


class Tenant(Protocol):
    """The current protocol of a connection."""

    def weigh(self) -> None:
        """Tell the place how much is held for the peer now."""

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        """Close the connection, and drop all that is held for it. A protocol that can give a reason
        gives it."""


class Place:
    """The place of one connection."""

    __slots__ = (
        "_carrier",
        "_places",
        "_protocol",
        "_replies",
        "_strange",
        "_unfinished",
        "below",
        "encrypted",
        "framed_bytes",
        "holds",
        "known",
        "leaving",
        "spare",
        "tenant",
    )

    def __init__(
        self, places: Places, below: asyncio.Transport, tenant: Tenant, spare: bool
    ) -> None:
        budgets = places.budgets
        self._places = places
        self._strange = Account(budgets.strangers)
        self._unfinished = Account(budgets.unfinished)
        self._replies = Account(budgets.replies)
        self._protocol = "undecided"
        self._carrier: str | None = None
        self.below = below
        """The TCP connection below all other layers."""
        self.encrypted = False
        self.tenant: Tenant | None = tenant
        self.known = False
        """The peer has proven its identity."""
        self.spare = spare
        """It is one of the places for HTTP alone."""
        self.leaving = False
        self.holds = False
        """Its accounts are not empty."""
        self.framed_bytes = 0
        """Bytes of WebSocket frames that are not whole."""

    def become(self, protocol: str, carrier: str, tenant: Tenant) -> None:
        """The protocol of the peer is known now, and the carrier below it."""
        self._places.count(self._protocol, self._carrier, -1)
        self._protocol, self._carrier = protocol, carrier
        self._places.count(protocol, carrier, 1)
        self.tenant = tenant

    def log_in(self) -> None:
        """The peer has proven its identity."""
        if not self.known:
            self.known = True
            self._places.strangers.pop(self, None)
            self._strange.hold(self, 0)
            self.weigh()

    def unwritten_bytes(self, transport: asyncio.Transport) -> int:
        """Bytes that were written and have not left; `transport` is the topmost one."""
        size = transport.get_write_buffer_size()
        # TLS does not count the bytes that it has passed on to the TCP connection.
        return size + self.below.get_write_buffer_size() if self.encrypted else size

    def hold(self, incoming: int, outgoing: int) -> None:
        """Set how many bytes are held: `incoming` of unfinished requests, `outgoing` of unread
        answers.

        The broker may close the connection before this returns.
        """
        if self.tenant is None:
            return
        incoming += self.framed_bytes
        self.holds = incoming > 0 or outgoing > 0
        if self.known:
            self._unfinished.hold(self, incoming)
            self._replies.hold(self, outgoing)
        else:
            self._strange.hold(self, incoming + outgoing)

    def weigh(self) -> None:
        """Have the protocol report how much is held now."""
        if self.tenant is not None:
            self.tenant.weigh()

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        tenant = self._leave()
        if tenant is not None:
            self.leaving = True
            self._places.note_leaving(self, error, reason)
            tenant.give_up(error, reason)

    def release(self) -> None:
        """The connection is gone."""
        self._leave()
        self._places.gone(self)
        self._places.count(self._protocol, self._carrier, -1)

    def _leave(self) -> Tenant | None:
        tenant, self.tenant = self.tenant, None
        self._places.strangers.pop(self, None)
        self.framed_bytes = 0
        self.holds = False
        for account in (self._strange, self._unfinished, self._replies):
            account.hold(self, 0)
        return tenant


class Places:
    """All places of the process."""

    def __init__(
        self,
        connections_max: int,
        budgets: Budgets,
        clock: Callable[[], Instant],
        meter: ConnectionMeter,
    ) -> None:
        self.connections_max = connections_max
        self.budgets = budgets
        self.meter = meter
        meter.budgets = budgets.meters
        self.strangers: dict[Place, None] = {}
        """The places whose peers have proven nothing, the oldest first."""
        self._clock = clock
        self._valve = Valve()
        self._leaving = 0

    @property
    def full(self) -> bool:
        return self.meter.open_count >= self.connections_max + self._leaving

    def take(self, below: asyncio.Transport, tenant: Tenant) -> Place | None:
        """A place for a new connection; None where all are taken."""
        spare = False
        if self.full:
            oldest = next((each for each in self.strangers if not each.spare), None)
            spare = oldest is None
            if spare and self.meter.open_count >= (
                self.connections_max + HTTP_PLACES + self._leaving
            ):
                oldest = next(iter(self.strangers), None)
                if oldest is None:
                    return None
            if oldest is not None:
                if self._leaving >= LEAVING_MAX:
                    return None
                error = ServerBusy("The place of a connection without a token was needed.")
                oldest.give_up(error, "place_needed")
        place = Place(self, below, tenant, spare)
        self.strangers[place] = None
        self.meter.open["undecided"] += 1
        return place

    def count(self, protocol: str, carrier: str | None, step: int) -> None:
        """Update the meter: a connection has taken up this protocol, or left it."""
        self.meter.open[protocol] += step
        if carrier is not None:
            self.meter.carried[carrier] += step
            if step > 0:
                self.meter.accepted[protocol] += 1

    def note_leaving(self, place: Place, error: ServiceBusError, reason: str) -> None:
        self._leaving += 1
        self.meter.turned_away(reason)
        held = self._valve.passes(reason, self._clock())
        if held is not None:
            peer = str(place.below.get_extra_info("peername"))
            _log.warning("connection given up", reason=reason, peer=peer, why=str(error), more=held)

    def gone(self, place: Place) -> None:
        if place.leaving:
            self._leaving -= 1

"""The two kinds of links that carry messages: clients that send, and clients that receive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.faults import DecodeError
from postbus.amqp.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.performatives import SND_SETTLED, DeliveryState
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.amqp.transactions import TransactionalState
from postbus.broker.message import Message
from postbus.errors import InvalidArgument, NotSupported, ServiceBusError
from postbus.server import enlisting
from postbus.server.envelope import Changes, read_message, write_delivery
from postbus.server.line import Parcel, parcel_size, share_of
from postbus.server.requests import GiveBack, Send, Settle
from postbus.server.unpacking import Unpacking, open_batch

if TYPE_CHECKING:
    from postbus.server.entities import Entity, QueueEntity, Received, TopicEntity
    from postbus.server.gateway import Gateway

log = structlog.get_logger("links")


class Inlet:
    """A client's sender link: every transfer becomes a Send."""

    def __init__(
        self,
        gateway: Gateway,
        link: ReceiverLink,
        entity: QueueEntity | TopicEntity,
        credit: int,
        route: enlisting.Route | None = None,
    ) -> None:
        self.gateway = gateway
        self._link = link
        self.entity = entity
        self.host = entity.host
        self._runtime = gateway.runtime(entity.host)
        self._property_size_max = gateway.service.settings.property_size_max_bytes
        self._header_size_max = gateway.service.settings.header_size_max_bytes
        self._credit = credit
        self.route = route
        """Set where messages are sent through this entity, or through another one to it."""

    def open(self) -> None:
        self._link.grant(self._credit)

    def received(self, delivery: IncomingDelivery) -> None:
        sizes = self._property_size_max, self._header_size_max
        try:
            if delivery.message_format == 0:
                self._take(delivery, [read_message(delivery.payload, *sizes)])
                return
            unpacking = open_batch(delivery.payload, delivery.message_format, *sizes)
        except (ServiceBusError, DecodeError) as fault:
            self._refuse(delivery, fault)
            return
        if self._unpack(delivery, unpacking):
            self.gateway.proceed(partial(self._unpack, delivery, unpacking))

    def _unpack(self, delivery: IncomingDelivery, unpacking: Unpacking) -> bool:
        """Go on with a batch; says whether there is more of it to read."""
        try:
            if not unpacking.read():
                return True
            self._take(delivery, unpacking.messages)
        except (ServiceBusError, DecodeError) as fault:
            self._refuse(delivery, fault)
        return False

    def _take(self, delivery: IncomingDelivery, messages: list[Message]) -> None:
        gateway = self.gateway
        if (delivery.state is not None or self.route is not None) and enlisting.send(
            self, delivery, messages
        ):
            self.entity.touch(gateway.now)
            return
        self.entity.touch(gateway.now)
        send = Send(self.host, messages, self._link, delivery, gateway.refusals, self)
        self._runtime.submit(send)

    def _refuse(self, delivery: IncomingDelivery, fault: Exception) -> None:
        gateway = self.gateway
        error = fault if isinstance(fault, ServiceBusError) else InvalidArgument(str(fault))
        meter = self.host.meter
        if meter is not None:
            meter.refused(error.condition)
        if delivery.state is not None:
            enlisting.spoil(gateway, delivery.state, error)
        self._link.settle(delivery, gateway.refusals.rejected(error, self.entity.path))
        self._top_up()

    def answered(self) -> None:
        self._top_up()
        self.gateway.touch()

    def _top_up(self) -> None:
        if self._link.credit * 2 <= self._credit:
            self._link.grant(self._credit)


class Promises:
    """What the links of one AMQP session share: messages that are on their way to them and not
    sent yet, and the entity that transactions in the session go through."""

    __slots__ = ("count", "cross_entity", "via")

    def __init__(self) -> None:
        self.count = 0
        self.cross_entity = False
        """Its transactions may reach several entities (`postbus.server.via`)."""
        self.via: Entity | None = None


class Outlet:
    """A client's receiver link: takes messages from a line, and their settlements back."""

    def __init__(
        self,
        gateway: Gateway,
        link: SenderLink,
        entity: Received | TopicEntity,
        subqueue: int,
    ) -> None:
        self.gateway = gateway
        self._link = link
        self.entity = entity
        self.host = entity.host
        self.subqueue = subqueue
        self._line = entity.host.line(subqueue)
        self._meter = entity.host.meter_of(subqueue)
        self._runtime = gateway.runtime(entity.host)
        self.deletes = link.snd_settle_mode == SND_SETTLED
        self.holder = gateway.id
        self.draining = False
        self._reserved = 0
        self._reserved_bytes = 0
        if link.session.owner is None:
            link.session.owner = Promises()
        self._promises: Promises = link.session.owner
        self._waited = False
        self.tokens: set[bytes] = set()
        """Locks given out on this link and not settled on it."""

    # -- joining and leaving -----------------------------------------------------------------

    def open(self) -> None:
        self._line.join(self)
        self._count_receivers()
        self.host.on_lost[self._lost] = None

    def close(self) -> None:
        self._line.leave(self)
        # What was promised comes no more where a commit has failed, and is given back where it
        # comes.
        self._return(self._reserved, self._reserved_bytes)
        self._count_receivers()
        self.host.on_lost.pop(self._lost, None)
        if self._waited and self._meter is not None:
            self._meter.empty_receives += 1

    def _count_receivers(self) -> None:
        if self.host.engine is not None:
            self.host.engine.set_receivers(self.subqueue, len(self._line.receivers))

    def _lost(self, error: ServiceBusError) -> None:
        """The engine was thrown away, with every lock: let the client attach again."""
        self.gateway.detach(self._link, error, self.entity.path)

    # -- giving out --------------------------------------------------------------------------

    def credited(self) -> None:
        """The client granted credit, took it back, or asked to drain."""
        link = self._link
        self.draining = link.drain
        if link.credit > 0:
            self._waited = True
            self.entity.prefetch.credited(link.credit)
        self.entity.touch(self.gateway.now)
        if link.credit > 0 or link.drain:
            self.wake()

    @property
    def credit(self) -> int:
        return self._link.credit

    def wake(self) -> None:
        self._line.wants(self)
        self._runtime.wake(self.host)

    def capacity(self) -> int:
        if self.gateway.full:
            return 0
        return self._link.room_beside(self._reserved, self._promises.count)

    def reserve(self, message: Message, raw: bytes) -> Parcel:
        self._reserved += 1
        size = parcel_size(message, raw)
        self._reserved_bytes += size
        self._promises.count += 1
        self.gateway.promised_bytes += size
        payload: tuple[bytes, ...] | None = None
        try:
            payload = write_delivery(message, raw)
        except Exception:  # whatever is wrong with one, the others must go out
            log.exception("message unreadable", entity=self.entity.path, number=message.number)
        return Parcel(message, raw, payload, 1 if payload is None else share_of(message, payload))

    def deliver(self, parcels: list[Parcel]) -> None:
        if self._reserved:  # and not returned by a close
            self._return(len(parcels), sum([parcel.size for parcel in parcels]))
        for parcel in parcels:
            self._deliver(parcel)
        self.gateway.touch()

    def _return(self, count: int, size: int) -> None:
        self._reserved -= count
        self._reserved_bytes -= size
        self._promises.count -= count
        self.gateway.promised_bytes -= size

    def _deliver(self, parcel: Parcel) -> None:
        link = self._link
        token, payload = parcel.token, parcel.payload
        if payload is None:
            return
        if not link.attached or (token is not None and link.credit <= 0):
            self._runtime.submit(GiveBack(self.host, parcel))
            return
        self._waited = False
        if token is None:
            # No lock, no token: Azure leaves the tag of a settled delivery empty, and the SDKs
            # take any other for a lock token.
            link.send(b"", payload, settled=True, in_flight=True)
        else:
            self.tokens.add(token)
            link.send(token, payload, settled=False, context=parcel.delivered_at)
        meter = self._meter
        if meter is not None:
            meter.receives += 1
            meter.bytes_out += len(parcel.raw)

    def drained(self) -> None:
        if self._waited and self._meter is not None:
            self._meter.empty_receives += 1
        self._waited = False
        self.draining = False
        self._link.drained()
        self.gateway.touch()

    # -- settling ----------------------------------------------------------------------------

    def disposed(
        self, deliveries: list[OutgoingDelivery], state: DeliveryState | None, settled: bool
    ) -> None:
        """The client's verdict. One that says nothing, or nothing final, changes nothing."""
        gateway = self.gateway
        if self.deletes:
            return  # JS, Java and .NET settle what was settled already (wire contract §10, 33)
        if state is None and settled:
            # Forgotten without a verdict: unread, as far as we can know, unless the client has
            # said what that is to mean (AMQP 3.5.3).
            source = self._link.source
            state = (None if source is None else source.default_outcome) or Released()
        if isinstance(state, TransactionalState):
            enlisting.settle(self, deliveries, state, settled)
            return
        if not isinstance(state, (Accepted, Rejected, Released, Modified)):
            if state is not None:
                error = NotSupported("The disposition has a state that is no outcome.")
                rejected = gateway.refusals.rejected(error, self.entity.path)
                for delivery in deliveries:
                    self._link.settle(delivery, rejected)
                gateway.touch()
            return
        self._submit(deliveries, state)

    def _submit(self, deliveries: list[OutgoingDelivery], state: Outcome) -> None:
        gateway = self.gateway
        watch = self.entity.prefetch
        now = gateway.now
        for delivery in deliveries:
            watch.settled(now - delivery.context)
        # One by one where each has properties to be written: a turn may have no time for all.
        changing = (
            len(deliveries) > 1
            and isinstance(state, (Modified, Rejected))
            and Changes.of(state).properties is not None
        )
        for each in [[delivery] for delivery in deliveries] if changing else [deliveries]:
            self._runtime.submit(Settle(self.host, self._link, each, state, gateway.refusals, self))

    def settled(self, deliveries: list[OutgoingDelivery]) -> None:
        for delivery in deliveries:
            self.tokens.discard(delivery.tag)
        gateway = self.gateway
        gateway.touch()
        # Room in the session may be what another link of it waits for (at most 2,048 unsettled).
        for link in self._link.session.senders():
            owner = link.owner
            if isinstance(owner, Outlet) and link.credit > 0:
                owner.wake()

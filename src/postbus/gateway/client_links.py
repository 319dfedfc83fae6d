"""The two kinds of links that carry messages: clients that send, and clients that receive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from postbus.amqp.deliveries import IncomingDelivery, OutgoingDelivery
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.outcomes import Accepted, Modified, Outcome, Rejected, Released
from postbus.amqp.frames.performatives import SND_SETTLED, DeliveryState
from postbus.amqp.frames.transactions import TransactionalState
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.broker.message import Message
from postbus.errors import DetachForced, InvalidArgument, NotSupported, ServiceBusError
from postbus.gateway.settlement import DispositionOrigin, Send, Settle, TransferOrigin
from postbus.gateway.transactions import enlisting
from postbus.messages.batches import BatchReader, open_batch
from postbus.messages.envelope import Changes, read_message, write_delivery
from postbus.runtime.receivers import OutgoingMessage, outgoing_size, share_of
from postbus.runtime.requests import GiveBack

if TYPE_CHECKING:
    from postbus.gateway.client_connection import ClientConnection
    from postbus.namespace.entities import QueueEntity, TopicEntity
    from postbus.namespace.entity import Entity, ReceivableEntity
    from postbus.runtime.loaded_fragment import LoadedFragment

log = structlog.get_logger("links")


class ClientSender(TransferOrigin):
    """A client's sender link to an entity of one fragment: every transfer becomes a Send."""

    carries_messages: Final = True

    def __init__(
        self,
        gateway: ClientConnection,
        link: ReceiverLink,
        entity: QueueEntity | TopicEntity,
        credit: int,
        route: enlisting.Route | None = None,
    ) -> None:
        self.gateway = gateway
        self._link = link
        self.entity = entity
        self.fragment = entity.fragments[0]
        self._runtime = gateway.runtime(self.fragment)
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
            batch_reader = open_batch(delivery.payload, delivery.message_format, *sizes)
        except (ServiceBusError, DecodeError) as fault:
            self._refuse(delivery, fault)
            return
        if self._unpack(delivery, batch_reader):
            self.gateway.proceed(partial(self._unpack, delivery, batch_reader))

    def _unpack(self, delivery: IncomingDelivery, batch_reader: BatchReader) -> bool:
        """Go on with a batch; says whether there is more of it to read."""
        try:
            if self._link.owner is not self:
                raise DetachForced("The link was detached before its batch was read.")
            if not batch_reader.read():
                return True
            self._take(delivery, batch_reader.messages)
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
        send = Send(self.fragment, messages, self._link, delivery, gateway.refusals, self)
        self._runtime.submit(send)

    def _refuse(self, delivery: IncomingDelivery, fault: Exception) -> None:
        gateway = self.gateway
        error = fault if isinstance(fault, ServiceBusError) else InvalidArgument(str(fault))
        meter = self.fragment.meter
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


class SessionLinks:
    """What the links of one AMQP session share: messages that are on their way to them and not
    sent yet, and the entity that transactions in the session go through."""

    __slots__ = ("count", "cross_entity", "held_back", "via")

    def __init__(self) -> None:
        self.count = 0
        self.held_back: dict[ClientReceiver, None] = {}
        """Receivers with credit that found no room in the session."""
        self.cross_entity = False
        """Its transactions may reach several entities (`postbus.gateway.transactions.send_via`)."""
        self.via: Entity | None = None


class ClientReceiver(DispositionOrigin):
    """A client's receiver link: takes the messages of a fragment, and their settlements back."""

    carries_messages: Final = True

    def __init__(
        self,
        gateway: ClientConnection,
        link: SenderLink,
        entity: ReceivableEntity | TopicEntity,
        fragment: LoadedFragment,
        subqueue: int,
    ) -> None:
        self.gateway = gateway
        self._link = link
        self.entity = entity
        self.fragment = fragment
        self.subqueue = subqueue
        self._receivers = fragment.receivers_of(subqueue)
        self._meter = fragment.meter_of(subqueue)
        self._runtime = gateway.runtime(fragment)
        self.deletes = link.snd_settle_mode == SND_SETTLED
        self.holder = gateway.id
        self.draining = False
        self._reserved = 0
        self._reserved_bytes = 0
        if link.session.owner is None:
            link.session.owner = SessionLinks()
        self._promises: SessionLinks = link.session.owner
        self._waited = False
        self.tokens: set[bytes] = set()
        """Locks given out on this link and not settled on it."""

    # -- joining and leaving -----------------------------------------------------------------

    def open(self) -> None:
        self._receivers.join(self)
        self._count_receivers()
        self.fragment.on_lost[self._lost] = None

    def close(self) -> None:
        self._receivers.leave(self)
        # What was promised comes no more where a commit has failed, and is given back where it
        # comes.
        self._return(self._reserved, self._reserved_bytes)
        self.gateway.held_back.pop(self, None)
        self._promises.held_back.pop(self, None)
        wake_all(self._promises.held_back)  # its unsettled deliveries take no room any more
        self._count_receivers()
        self.fragment.on_lost.pop(self._lost, None)
        if self._waited and self._meter is not None:
            self._meter.empty_receives += 1

    def _count_receivers(self) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(self.subqueue, len(self._receivers.members))

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
        self._receivers.wants(self)
        self._runtime.wake(self.fragment)

    def capacity(self) -> int:
        if self.gateway.holds_back(self):
            return 0
        link, promises = self._link, self._promises
        room = link.room_beside(self._reserved, promises.count)
        if room == 0 and link.credit > self._reserved:
            promises.held_back[self] = None
        return room

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self._reserved += 1
        size = outgoing_size(message, raw)
        self._reserved_bytes += size
        self._promises.count += 1
        self.gateway.promised_bytes += size
        payload: tuple[bytes, ...] | None = None
        try:
            payload = write_delivery(message, raw)
        except Exception:  # whatever is wrong with one, the others must go out
            log.exception("message unreadable", entity=self.entity.path, number=message.number)
        return OutgoingMessage(
            message, raw, payload, 1 if payload is None else share_of(message, payload)
        )

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        if self._reserved:  # and not returned by a close
            self._return(len(messages), sum([outgoing.size for outgoing in messages]))
        unsent = [outgoing for outgoing in messages if not self._deliver(outgoing)]
        if unsent:
            # What they were to take is free, of the credit and of the room in the session.
            self._promises.held_back[self] = None
            wake_all(self._promises.held_back)
        self.gateway.touch()

    def _return(self, count: int, size: int) -> None:
        self._reserved -= count
        self._reserved_bytes -= size
        self._promises.count -= count
        self.gateway.promised_bytes -= size

    def _deliver(self, outgoing: OutgoingMessage) -> bool:
        """Send a message; says whether it was sent."""
        link = self._link
        token, payload = outgoing.token, outgoing.payload
        if payload is None:
            return False
        if not link.attached or (token is not None and link.credit <= 0):
            self._give_back(outgoing)
            return False
        self._waited = False
        if token is None:
            # No lock, no token: Azure leaves the tag of a settled delivery empty, and the SDKs
            # take any other for a lock token.
            link.send(b"", payload, settled=True, in_flight=True)
        else:
            self.tokens.add(token)
            link.send(token, payload, settled=False, context=outgoing.delivered_at)
        meter = self._meter
        if meter is not None:
            meter.receives += 1
            meter.bytes_out += len(outgoing.raw)
        return True

    def _give_back(self, outgoing: OutgoingMessage) -> None:
        self._runtime.submit(GiveBack(self.fragment, outgoing))

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
            return  # JS, Java and .NET settle what was settled already (wire §10.33)
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

    def _submit(
        self,
        deliveries: list[OutgoingDelivery],
        state: Outcome,
        fragment: LoadedFragment | None = None,
    ) -> None:
        """Settle deliveries of one fragment, by default of that of the link."""
        gateway = self.gateway
        runtime = self._runtime if fragment is None else gateway.runtime(fragment)
        settled_in = self.fragment if fragment is None else fragment
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
            runtime.submit(Settle(settled_in, self._link, each, state, gateway.refusals, self))

    def locks(self) -> list[tuple[LoadedFragment, int, bytes]]:
        """The locks that were given out on this link: fragment, subqueue and token of each."""
        entity, subqueue = self.entity, self.subqueue
        return [(entity.fragment_of_token(each), subqueue, each) for each in self.tokens]

    def settled(self, deliveries: list[OutgoingDelivery]) -> None:
        for delivery in deliveries:
            self.tokens.discard(delivery.tag)
        self.gateway.touch()
        # Room in the session may be what a link of it waits for (at most 2,048 unsettled).
        if self._promises.held_back:
            wake_all(self._promises.held_back)


def wake_all(held_back: dict[ClientReceiver, None]) -> None:
    """Let the next turn look at receivers that had no room."""
    receivers = list(held_back)
    held_back.clear()
    for receiver in receivers:
        if receiver.credit > 0:
            receiver.wake()

"""The receiving end of a link: assembles deliveries within bounds, and settles them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from postbus.amqp.deliveries import (
    DELIVERY_TAG_MAX,
    SERIAL_HALF,
    SERIAL_MASK,
    IncomingDelivery,
    MessageReceived,
)
from postbus.amqp.events import Drained, Event
from postbus.amqp.faults import LinkError, MessageSizeExceeded, TransferLimitExceeded
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    Attach,
    DeliveryState,
    Flow,
    Rejected,
    Transfer,
)
from postbus.amqp.link import Link, LinkState

if TYPE_CHECKING:
    from postbus.amqp.session import Session


class _Assembly:
    """A delivery whose last frame has not come yet."""

    __slots__ = ("delivery", "discarding", "payload", "progress_size", "size")

    def __init__(self, delivery: IncomingDelivery) -> None:
        self.delivery = delivery
        self.payload = bytearray()
        self.size = 0
        # Its size when its time-out was last started anew.
        self.progress_size = 0
        # The delivery was refused: the rest is read and dropped.
        self.discarding = False


class ReceiverLink(Link):
    """A link on which the peer sends.

    `credit` is the rest of the credit that we granted. It may go below zero: the Python SDK starts
    with credit of its own making (wire §1.3), so more messages are accepted, within bounds.
    `unsettled` holds the received deliveries that are not settled, by delivery id.
    """

    __slots__ = (
        "_assembly",
        "_drain",
        "_early",
        "_early_bytes",
        "credit",
        "message_size_max",
        "unsettled",
    )

    role: ClassVar[Literal["sender", "receiver"]] = "receiver"
    wire_role: ClassVar[bool] = ROLE_RECEIVER

    def __init__(self, session: Session, handle: int, attach: Attach, state: LinkState) -> None:
        super().__init__(session, handle, attach, state)
        self.credit = 0
        self.delivery_count = attach.initial_delivery_count or 0
        self.message_size_max = session.connection.limits.message_size_max
        self.unsettled: dict[int, IncomingDelivery] = {}
        self._assembly: _Assembly | None = None
        self._drain = False
        self._early: list[IncomingDelivery] = []
        self._early_bytes = 0

    def grant(self, credit: int) -> None:
        """Allow the peer to send `credit` more messages."""
        if self.attached and credit != self.credit:
            self.credit = credit
            self.session.flow_due(self)

    def request_drain(self) -> None:
        """Ask the peer to use its credit now or return it. Drained reports its answer."""
        if self.attached:
            self._drain = True
            self.session.flow_due(self)

    def settle(
        self, delivery: IncomingDelivery, state: DeliveryState | None, settled: bool = True
    ) -> None:
        """Send our verdict on a delivery. Does nothing if the delivery is settled already.

        With settled=False the delivery stays unsettled until the peer settles it, as it does in
        receiver settle mode second. SettledBySender reports that.
        """
        delivery_id = delivery.delivery_id
        if self.unsettled.get(delivery_id) is delivery:
            if settled:
                self.forget(delivery)
            self.session.dispose(ROLE_RECEIVER, delivery_id, state, settled)

    def forget(self, delivery: IncomingDelivery) -> None:
        """Drop a delivery that we or its sender have settled."""
        del self.unsettled[delivery.delivery_id]
        session = self.session
        session.incoming_unsettled -= 1
        session.incoming_unsettled_bytes -= delivery.size

    # Transfers.

    def on_message(
        self, delivery_id: int, tag: bytes, message_format: int, body: bytes, start: int
    ) -> bool:
        """Take a message that came in one frame; return False if it needs on_transfer().

        This does the work of _begin() and _complete() in one go, because it runs for most messages.
        """
        size = len(body)
        if (
            self._assembly is not None
            or len(tag) > DELIVERY_TAG_MAX
            or delivery_id in self.unsettled
            or size - start > self.message_size_max
            or not self.attached
        ):
            return False
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.credit -= 1
        delivery = IncomingDelivery(
            self, delivery_id, tag, message_format, False, None, body[start:], size
        )
        self.unsettled[delivery_id] = delivery
        session = self.session
        session.incoming_unsettled += 1
        session.incoming_unsettled_bytes += size
        self.connection.events.append(MessageReceived(self, delivery))
        return True

    def _begin(self, transfer: Transfer) -> IncomingDelivery | None:
        """Start a delivery with its first frame. Fails the link if that frame lacks a field."""
        delivery_id = transfer.delivery_id
        tag = transfer.delivery_tag
        if delivery_id is None or tag is None or len(tag) > DELIVERY_TAG_MAX:
            text = "The first transfer of a delivery needs a delivery-id and a delivery-tag"
            self.fail(LinkError(f"{text} of at most 32 bytes.", "amqp:invalid-field"))
            return None
        earlier = self.unsettled.get(delivery_id)
        if earlier is not None:
            # Threads of the Python SDK that send at the same moment use one id twice. They get the
            # verdict on the later delivery. Failing the link would fail all their requests.
            self.forget(earlier)
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.credit -= 1
        return IncomingDelivery(
            self,
            delivery_id,
            tag,
            transfer.message_format or 0,
            transfer.settled is True,
            transfer.state,
            b"",
            0,
        )

    def _complete(self, delivery: IncomingDelivery) -> None:
        if not delivery.settled:
            self.unsettled[delivery.delivery_id] = delivery
            session = self.session
            session.incoming_unsettled += 1
            session.incoming_unsettled_bytes += delivery.size
        if self.attached:
            self.connection.events.append(MessageReceived(self, delivery))
        else:
            self._keep_early(delivery)

    def _keep_early(self, delivery: IncomingDelivery) -> None:
        if len(self._early) >= self.connection.limits.early_deliveries_max:
            self.fail(TransferLimitExceeded("Too many messages came before the link was open."))
            return
        # Its bytes were within bounds during assembly. They go on counting.
        self._early.append(delivery)
        self._early_bytes += delivery.size
        self.connection.usage.assembling_bytes += delivery.size

    def on_transfer(self, transfer: Transfer, body: bytes, start: int) -> None:
        """Take a transfer frame whose payload begins at `start` of its body."""
        if transfer.resume:
            self.fail(LinkError("Deliveries cannot be resumed here.", "amqp:not-implemented"))
            return
        assembly = self._assembly
        if assembly is None:
            delivery = self._begin(transfer)
            if delivery is None:
                return
            self._assembly = assembly = _Assembly(delivery)
            if transfer.more:
                self.connection.usage.unfinished[self] = self.connection.now
        else:
            delivery = assembly.delivery
            if transfer.delivery_id is not None and transfer.delivery_id != delivery.delivery_id:
                text = f"Delivery {transfer.delivery_id} came inside {delivery.delivery_id}."
                self.fail(LinkError(text, "amqp:invalid-field"))
                return
            # AMQP 2.7.5: a delivery is settled if any of its transfers is.
            delivery.settled = delivery.settled or transfer.settled is True
        if transfer.aborted:
            self._drop_assembly()
        elif self._add(assembly, body, start) and not transfer.more:
            self._drop_assembly()
            if not assembly.discarding:
                delivery.payload = bytes(assembly.payload)
                delivery.size = assembly.size
                self._complete(delivery)

    def _add(self, assembly: _Assembly, body: bytes, start: int) -> bool:
        """Add a frame to a delivery, within bounds; return False if the link failed."""
        if assembly.discarding:
            return True
        payload_size = len(assembly.payload) + len(body) - start
        # The first frame counts whole, because its delivery state is kept.
        growth = len(body) if assembly.size == 0 else len(body) - start
        if payload_size > self.message_size_max:
            text = f"A message may have {self.message_size_max} bytes on this link."
            return self._refuse(assembly, MessageSizeExceeded(text))
        held = self.connection.usage.assembling_bytes
        # A single delivery may be as large as its link allows, even beyond the common bound.
        if held > assembly.size and held + growth > self.connection.limits.assembling_bytes_max:
            text = "Too many unfinished messages on this connection."
            return self._refuse(assembly, LinkError(text, "amqp:resource-limit-exceeded"))
        assembly.payload += memoryview(body)[start:]
        assembly.size += growth
        usage = self.connection.usage
        usage.assembling_bytes += growth
        if assembly.size - assembly.progress_size >= self.connection.limits.progress_bytes:
            assembly.progress_size = assembly.size
            if usage.unfinished.pop(self, None) is not None:
                usage.unfinished[self] = self.connection.now
        return True

    def _refuse(self, assembly: _Assembly, fault: LinkError) -> bool:
        """Reject a delivery if its sender waits for a verdict, else fail the link.

        Returns whether the link goes on.
        """
        delivery = assembly.delivery
        if delivery.settled:
            self.fail(fault)
            return False
        self.connection.usage.assembling_bytes -= assembly.size
        assembly.size = 0
        assembly.payload = bytearray()
        assembly.discarding = True
        self.session.dispose(
            ROLE_RECEIVER,
            delivery.delivery_id,
            Rejected(self.connection.error_of(fault)),
            settled=True,
        )
        return True

    def _drop_assembly(self) -> None:
        if self._assembly is not None:
            usage = self.connection.usage
            usage.assembling_bytes -= self._assembly.size
            usage.unfinished.pop(self, None)
            self._assembly = None

    # The abstract methods of Link.

    def on_flow(self, flow: Flow) -> None:
        """Take over the sender's delivery-count: draining uses up credit (AMQP 2.6.7)."""
        if flow.delivery_count is not None:
            advance = (flow.delivery_count - self.delivery_count) & SERIAL_MASK
            if 0 < advance <= SERIAL_HALF:
                self.delivery_count = flow.delivery_count
                self.credit = max(self.credit - advance, 0)
        if flow.echo:
            self.session.flow_due(self if self.attached else None)
        if self._drain and flow.drain:
            self._drain = False
            self.connection.report(Drained(self))

    def flow_fields(self) -> tuple[int, int, bool]:
        return self.delivery_count, max(self.credit, 0), self._drain

    def _accepted(self, max_message_size: int | None, initial_delivery_count: int) -> int | None:
        if max_message_size is not None:
            self.message_size_max = max_message_size
        return self.message_size_max

    def _early_events(self) -> list[Event]:
        events: list[Event] = []
        for delivery in self._take_early():
            if len(delivery.payload) <= self.message_size_max:
                events.append(MessageReceived(self, delivery))
            else:
                text = f"A message may have {self.message_size_max} bytes on this link."
                self.settle(delivery, Rejected(self.connection.error_of(MessageSizeExceeded(text))))
        return events

    def _take_early(self) -> list[IncomingDelivery]:
        early, self._early = self._early, []
        self.connection.usage.assembling_bytes -= self._early_bytes
        self._early_bytes = 0
        return early

    def initial_delivery_count(self) -> int | None:
        return None

    def _refused_by(self, attach: Attach) -> bool:
        return attach.source is None

    def on_attach(self, attach: Attach) -> bool:
        accepted = super().on_attach(attach)
        self.delivery_count = attach.initial_delivery_count or 0
        return accepted

    def _release(self) -> None:
        self._drop_assembly()
        self._take_early()
        session = self.session
        session.incoming_unsettled -= len(self.unsettled)
        session.incoming_unsettled_bytes -= sum(d.size for d in self.unsettled.values())
        self.unsettled.clear()
        self.credit = 0

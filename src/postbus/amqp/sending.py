"""The sending end of a link: credit, drain, messages and their settlement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from postbus.amqp.deliveries import SERIAL_HALF, SERIAL_MASK, OutgoingDelivery
from postbus.amqp.events import CreditChanged, Event
from postbus.amqp.frames.performatives import (
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    DeliveryState,
    Flow,
    encode_transfer_frame,
)
from postbus.amqp.link import Link, LinkState

if TYPE_CHECKING:
    from postbus.amqp.session import Session


class SenderLink(Link):
    """A link on which we send.

    `credit` is the number of messages that the peer still allows. `drain` is set while the peer
    waits for drained(). `unsettled` counts deliveries that the peer has not settled, `sent_count`
    counts all deliveries.
    """

    __slots__ = ("_outgoing", "_reported_turn", "credit", "drain", "sent_count", "unsettled")

    role: ClassVar[Literal["sender", "receiver"]] = "sender"
    wire_role: ClassVar[bool] = ROLE_SENDER

    def __init__(self, session: Session, handle: int, attach: Attach, state: LinkState) -> None:
        super().__init__(session, handle, attach, state)
        self._outgoing = session.outgoing
        self._reported_turn = -1
        # If the peer attached the link, accept() sets it.
        self.delivery_count = attach.initial_delivery_count or 0
        self.credit = 0
        self.drain = False
        self.sent_count = 0
        self.unsettled = 0

    @property
    def sendable(self) -> int:
        """How many messages may be sent now: the least of the credit, the session's window and its
        room for unsettled deliveries."""
        return self.room_beside(0, 0)

    def room_beside(self, promised: int, promised_in_session: int) -> int:
        """How many messages may be sent besides those promised on this link and in its session."""
        outgoing = self._outgoing
        if not self.attached or outgoing.unsent:
            return 0
        room = outgoing.window
        if self.snd_settle_mode != SND_SETTLED:
            room = min(room, outgoing.unsettled_max - len(outgoing.unsettled))
        return max(min(self.credit - promised, room - promised_in_session), 0)

    def send(
        self,
        tag: bytes,
        payload: bytes | tuple[bytes, ...],
        settled: bool = False,
        message_format: int = 0,
        context: Any = None,
        state: DeliveryState | None = None,
        in_flight: bool = False,
    ) -> OutgoingDelivery:
        """Send one message, in one or more frames.

        The owner checks `sendable` first. A message larger than the rest of the peer's window is
        accepted, and finished when the window opens. A message that was promised before the peer
        withdrew its credit is `in_flight`. It may be sent, as if it had crossed the peer's flow.
        """
        if not self.attached or (self.credit <= 0 and not in_flight):
            raise ValueError(f"link {self.name!r} may not send now")
        outgoing = self._outgoing
        connection = self.connection
        self.credit = max(self.credit - 1, 0)
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.sent_count += 1
        parts = payload if isinstance(payload, tuple) else (payload,)
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size > outgoing.payload_max or outgoing.window <= 0 or state is not None:
            delivery = OutgoingDelivery(-1, tag, self, context)
            outgoing.send(delivery, b"".join(parts), settled, message_format, state)
            return delivery
        delivery_id = outgoing.next_delivery_id
        outgoing.next_delivery_id = (delivery_id + 1) & SERIAL_MASK
        outgoing.next_transfer_id = (outgoing.next_transfer_id + 1) & SERIAL_MASK
        outgoing.window -= 1
        delivery = OutgoingDelivery(delivery_id, tag, self, context)
        if not settled:
            outgoing.unsettled[delivery_id] = delivery
            self.unsettled += 1
        frame = encode_transfer_frame(
            self.session.channel,
            self.handle,
            delivery_id,
            tag,
            message_format,
            settled,
            False,
            parts,
        )
        connection.out.append(frame)
        connection.out_bytes += len(frame)
        return delivery

    def settle(self, delivery: OutgoingDelivery, state: DeliveryState | None) -> None:
        """Confirm the peer's verdict (wire §0.9). Does nothing if the delivery is settled."""
        unsettled = self._outgoing.unsettled
        delivery_id = delivery.delivery_id
        if unsettled.get(delivery_id) is delivery:
            del unsettled[delivery_id]
            self.unsettled -= 1
            self.session.dispose(ROLE_SENDER, delivery_id, state, True)

    def drained(self) -> None:
        """Tell a draining peer that nothing more comes. This uses up the rest of its credit
        (AMQP 2.6.7, wire §0.10)."""
        if self.drain and self.attached:
            self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
            self.credit = 0
            if self._outgoing.unsent:
                self.session.flow_due(self)
            else:
                self.session.write_flow(self)

    def on_flow(self, flow: Flow) -> None:
        """Take the credit that the peer grants (AMQP 2.6.7)."""
        if flow.link_credit is not None:
            # Before our attach the peer does not know our delivery-count: its credit counts whole.
            heard = flow.delivery_count if self.attached else None
            in_flight = 0 if heard is None else (self.delivery_count - heard) & SERIAL_MASK
            if in_flight > SERIAL_HALF:
                in_flight = 0
            self.credit = max(flow.link_credit - in_flight, 0)
        self.drain = flow.drain
        if not self.attached:
            if flow.echo:
                self.session.flow_due(None)
            return
        # While draining, drained() is the answer. The Node SDK closes the link if a flow says drain
        # and still shows credit (wire §3.5).
        if flow.echo and not flow.drain:
            self.session.flow_due(self)
        self.report_credit()

    def report_credit(self) -> None:
        """Ask the owner to look at the link again, at most once a turn."""
        if self._reported_turn != self.connection.turn:
            self._reported_turn = self.connection.turn
            self.connection.report(CreditChanged(self))

    def flow_fields(self) -> tuple[int, int, bool]:
        drain = self.drain
        if self.credit == 0:
            self.drain = False
        return self.delivery_count, self.credit, drain

    def _accepted(self, max_message_size: int | None, initial_delivery_count: int) -> int | None:
        self.delivery_count = initial_delivery_count
        return max_message_size

    def _early_events(self) -> list[Event]:
        # Proton and other clients grant credit together with their attach.
        return [CreditChanged(self)] if self.credit > 0 or self.drain else []

    def initial_delivery_count(self) -> int | None:
        return self.delivery_count

    def _refused_by(self, attach: Attach) -> bool:
        return attach.target is None

    def _release(self) -> None:
        self.credit = 0
        self.drain = False
        self._outgoing.forget(self)

"""The sending half of a session: transfer and delivery ids, the peer's window, unsettled."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from postbus.amqp.deliveries import (
    SERIAL_HALF,
    SERIAL_MASK,
    Disposed,
    OutgoingDelivery,
    known_in_range,
)
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import (
    DeliveryState,
    Received,
    Transfer,
    encode_transfer_frame,
)

if TYPE_CHECKING:
    from postbus.amqp.connection_base import ConnectionBase
    from postbus.amqp.handles import Handles
    from postbus.amqp.sending import SenderLink

# At least the size of a frame header and a transfer with a tag of 32 bytes.
_TRANSFER_OVERHEAD = 96


class _Unsent:
    """A delivery with frames that do not fit into the peer's window yet."""

    __slots__ = ("delivery", "message_format", "offset", "payload", "settled", "state")

    def __init__(
        self,
        delivery: OutgoingDelivery,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> None:
        self.delivery = delivery
        self.payload = payload
        self.settled = settled
        self.message_format = message_format
        self.state = state
        self.offset = 0


class Outgoing:
    """The sending half of a session (AMQP 2.5.6).

    Delivery ids have no gaps over all links of the session (wire §0.8). So a delivery gets its id
    when its first frame is written, not when the owner calls send().
    """

    __slots__ = (
        "_channel",
        "_connection",
        "_handles",
        "_reported_turn",
        "next_delivery_id",
        "next_transfer_id",
        "payload_max",
        "unsent",
        "unsettled",
        "unsettled_max",
        "window",
    )

    def __init__(self, channel: int, handles: Handles, connection: ConnectionBase) -> None:
        # The session itself would make a reference cycle, which only the garbage collector frees.
        self._channel = channel
        self._handles = handles
        self._connection = connection
        self._reported_turn = -1
        self.next_transfer_id = 0
        self.next_delivery_id = 0
        self.window = 0
        self.payload_max = 0
        self.unsettled: dict[int, OutgoingDelivery] = {}
        self.unsettled_max = connection.limits.unsettled_outgoing_max
        self.unsent: deque[_Unsent] = deque()

    def begin(self, window: int) -> None:
        """Start with the peer's window. The peer's maximum frame size is known by now."""
        self.window = window
        self.payload_max = self._connection.outgoing_frame_max - _TRANSFER_OVERHEAD

    def send(
        self,
        delivery: OutgoingDelivery,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: DeliveryState | None,
    ) -> None:
        """Send a delivery that is large or carries a state, or for which the window is closed."""
        waiting = _Unsent(delivery, payload, settled, message_format, state)
        self.unsent.append(waiting)
        self._connection.usage.unsent_bytes += len(payload)
        if len(self.unsent) == 1:
            self._send_waiting()

    def _send_waiting(self) -> None:
        unsent = self.unsent
        while unsent and self._send_frames(unsent[0]):
            unsent.popleft()

    def _send_frames(self, waiting: _Unsent) -> bool:
        """Write as many frames of a delivery as the window allows; return whether that was all."""
        size = len(waiting.payload)
        while self.window > 0:
            start = waiting.offset
            end = min(start + self.payload_max, size)
            self._send_frame(waiting, waiting.payload[start:end], more=end < size)
            waiting.offset = end
            self._connection.usage.unsent_bytes -= end - start
            if end == size:
                return True
        return False

    def _send_frame(self, waiting: _Unsent, piece: bytes, more: bool) -> None:
        delivery = waiting.delivery
        channel = self._channel
        handle = delivery.link.handle
        self.window -= 1
        self.next_transfer_id = (self.next_transfer_id + 1) & SERIAL_MASK
        if delivery.delivery_id >= 0:
            frame = encode_transfer_frame(
                channel, handle, None, None, None, waiting.settled, more, (piece,)
            )
        else:
            delivery.delivery_id = delivery_id = self.next_delivery_id
            self.next_delivery_id = (delivery_id + 1) & SERIAL_MASK
            if not waiting.settled:
                self.unsettled[delivery_id] = delivery
                delivery.link.unsettled += 1
            transfer = Transfer(
                handle,
                delivery_id,
                delivery.tag,
                waiting.message_format,
                waiting.settled,
                more,
                state=waiting.state,
            )
            frame = encode_frame(channel, transfer, piece)
        self._connection.write(frame)

    def on_window(self, next_incoming_id: int | None, incoming_window: int) -> bool:
        """Take the window from the peer's flow; return whether that opened a closed window."""
        was_shut = self.window <= 0 or bool(self.unsent)
        # Null means our first transfer id, which is 0 (AMQP 2.7.4).
        in_flight = (self.next_transfer_id - (next_incoming_id or 0)) & SERIAL_MASK
        if in_flight > SERIAL_HALF:
            in_flight = 0
        self.window = incoming_window - in_flight
        if self.unsent:
            self._send_waiting()
        return was_shut and self.window > 0 and not self.unsent

    def on_disposition(
        self, first: int, last: int | None, state: DeliveryState | None, settled: bool
    ) -> None:
        """Report the peer's verdict on deliveries that we sent, once for each delivery.

        Unknown deliveries are ignored. So is a disposition without a verdict and a settlement.
        """
        if not settled and (state is None or isinstance(state, Received)):
            return
        unsettled = self.unsettled
        was_full = len(unsettled) >= self.unsettled_max
        events = self._connection.events
        if last is None or last == first:
            delivery = unsettled.get(first)
            if delivery is None:
                return
            if settled:
                del unsettled[first]
                delivery.link.unsettled -= 1
            elif delivery.disposed:
                return
            delivery.disposed = True
            events.append(Disposed(delivery.link, [delivery], state, settled))
        else:
            by_link: dict[SenderLink, list[OutgoingDelivery]] = {}
            for delivery_id in known_in_range(unsettled, first, last):
                delivery = unsettled[delivery_id]
                if settled:
                    del unsettled[delivery_id]
                    delivery.link.unsettled -= 1
                elif delivery.disposed:
                    continue
                delivery.disposed = True
                by_link.setdefault(delivery.link, []).append(delivery)
            for link, deliveries in by_link.items():
                events.append(Disposed(link, deliveries, state, settled))
        if was_full and len(unsettled) < self.unsettled_max:
            self.report_room()

    def report_room(self) -> None:
        """Report that every link with credit can send again, at most once a turn. This bounds the
        cost of a peer that opens and closes its window all the time."""
        if self._reported_turn != self._connection.turn:
            self._reported_turn = self._connection.turn
            for link in self._handles.senders():
                if link.attached and link.credit > 0:
                    link.report_credit()

    def forget(self, link: SenderLink) -> None:
        """Drop the unsent and unsettled deliveries of a link that is gone."""
        if self.unsent:
            for waiting in self.unsent:
                if waiting.delivery.link is link:
                    self._connection.usage.unsent_bytes -= len(waiting.payload) - waiting.offset
            self.unsent = deque(w for w in self.unsent if w.delivery.link is not link)
        if link.unsettled:
            link.unsettled = 0
            for delivery_id in [i for i, d in self.unsettled.items() if d.link is link]:
                del self.unsettled[delivery_id]

    def clear(self) -> None:
        """Drop all deliveries: the session is gone."""
        for waiting in self.unsent:
            self._connection.usage.unsent_bytes -= len(waiting.payload) - waiting.offset
        self.unsent.clear()
        self.unsettled.clear()

"""Deliveries, the events that come with them, their serial numbers, and runs of verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postbus.amqp.frames.performatives import DeliveryState

if TYPE_CHECKING:
    from postbus.amqp.receiving import ReceiverLink
    from postbus.amqp.sending import SenderLink

# Delivery ids, transfer ids and delivery counts are 32-bit serial numbers (AMQP 2.8.10, RFC 1982).
# They wrap around. Of two numbers, the later is less than half the circle ahead.
SERIAL_MASK = 0xFFFFFFFF
SERIAL_HALF = 0x7FFFFFFF

# AMQP 2.8.7.
DELIVERY_TAG_MAX = 32


class OutgoingDelivery:
    """A message that we sent.

    `delivery_id` is -1 until the first frame is written. `disposed` says that the owner was told
    the peer's verdict. `context` is free for the owner.
    """

    __slots__ = ("context", "delivery_id", "disposed", "link", "tag")

    def __init__(self, delivery_id: int, tag: bytes, link: SenderLink, context: Any) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.link = link
        self.context = context
        self.disposed = False


class IncomingDelivery:
    """A message that we received. `size` includes its frames; it counts while it is unsettled."""

    __slots__ = (
        "delivery_id",
        "link",
        "message_format",
        "payload",
        "settled",
        "size",
        "state",
        "tag",
    )

    def __init__(
        self,
        link: ReceiverLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: DeliveryState | None,
        payload: bytes,
        size: int,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.payload = payload
        self.size = size


# The two events that come with every message. The others are dataclasses in events.py, which mypyc
# does not compile.


class MessageReceived:
    """A whole message has come. Unless it is settled, the sender waits for link.settle()."""

    __slots__ = ("delivery", "link")

    def __init__(self, link: ReceiverLink, delivery: IncomingDelivery) -> None:
        self.link = link
        self.delivery = delivery


class Disposed:
    """The peer's verdict on deliveries that we sent, in the order in which we sent them.

    Unless `settled`, the peer waits for our link.settle(). If a peer gives its verdict first and
    settles later, the settlement is reported too, unless link.settle() was called in between.
    """

    __slots__ = ("deliveries", "link", "settled", "state")

    def __init__(
        self,
        link: SenderLink,
        deliveries: list[OutgoingDelivery],
        state: DeliveryState | None,
        settled: bool,
    ) -> None:
        self.link = link
        self.deliveries = deliveries
        self.state = state
        self.settled = settled


def known_in_range(known: dict[int, Any], first: int, last: int) -> list[int]:
    """Return the known ids from first to last, both included, in the order of the dict or range.

    A peer may name four billion ids in one frame. The cost is bounded by the number of known ids.
    """
    span = (last - first) & SERIAL_MASK
    if span < len(known):
        ids = [(first + step) & SERIAL_MASK for step in range(span + 1)]
        return [delivery_id for delivery_id in ids if delivery_id in known]
    return [delivery_id for delivery_id in known if (delivery_id - first) & SERIAL_MASK <= span]


class DispositionRun:
    """Equal verdicts on consecutive deliveries, saved so that one disposition frame carries all."""

    __slots__ = ("count", "first", "next", "settled", "state")

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.next = 0
        self.state: DeliveryState | None = None
        self.settled = False

    def extend(self, delivery_id: int, state: DeliveryState | None, settled: bool) -> bool:
        """Add a verdict if it continues the run; return whether it did."""
        if self.count == 0:
            self.first = delivery_id
            self.state = state
            self.settled = settled
        # A run never crosses zero: the Python and Node SDKs compare the ends of a range as plain
        # numbers.
        elif (
            delivery_id != self.next
            or delivery_id == 0
            or settled is not self.settled
            or (state is not self.state and state != self.state)
        ):
            return False
        self.count += 1
        self.next = (delivery_id + 1) & SERIAL_MASK
        return True

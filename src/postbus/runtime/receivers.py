"""The receivers of one subqueue, in the order in which their credit came."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.model.times import Instant

SERVED_AT_ONCE: Final = 32
"""A receiver with much credit lets the next one have a turn after so many messages."""
USUAL_ANNOTATIONS: Final = 256
"""Bytes of header and annotations that cost no more than others."""
BYTES_OF_A_SHARE: Final = 32
"""Bytes of a section that take as long to write anew as a message takes to be passed on."""
TOIL_OF_A_SHARE: Final = 6
"""Microseconds, about: what a look at messages adds to `SharedState.toil`."""
LOOK_TOIL_MAX: Final = 8_192
"""A look is over when it has taken this much: the next one goes on from there."""


class OutgoingMessage:
    """A message on its way to a receiver, as it was when it was taken: it leaves after the commit,
    and by then more may have been decided about it."""

    __slots__ = ("delivered_at", "message", "payload", "raw", "share", "size", "token")

    def __init__(
        self, message: Message, raw: bytes, payload: tuple[bytes, ...] | None, share: int = 1
    ) -> None:
        self.message = message
        self.raw = raw
        self.payload = payload
        """As the client gets it; None if it cannot be put into words."""
        self.token = message.token
        """Its lock; None if it was removed for good."""
        self.delivered_at = message.delivered_at
        self.size = outgoing_size(message, raw)
        self.share = share
        """What it takes of a turn, in messages that are passed on as they came."""


def outgoing_size(message: Message, raw: bytes) -> int:
    """Bytes of a message and of the properties in place of its own."""
    changed = message.properties
    return len(raw) if changed is None else len(raw) + len(changed)


def share_of(message: Message, payload: tuple[bytes, ...]) -> int:
    """What a delivery has taken of its turn: some of its sections were read and written anew."""
    rewritten = max(len(payload[0]) + len(payload[1]) - USUAL_ANNOTATIONS, 0)
    if len(payload) > 3:
        rewritten += len(payload[5])  # the footer
    if message.reason is not None or message.description is not None:
        rewritten += len(payload[3])
    return 1 + rewritten // BYTES_OF_A_SHARE


class Receiver(Protocol):
    """One who wants messages: a link, or a long poll over HTTP."""

    deletes: bool
    """Receive-and-delete; otherwise peek-lock."""
    holder: int
    """Who holds the locks; a connection, in practice."""
    draining: bool
    """Tell it at once when there is nothing more to be had now."""

    def capacity(self) -> int:
        """How many messages it can take right now."""

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        """The message is taken for it, and on its way."""

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        """These messages are its own: locked for it or removed, durably."""

    def drained(self) -> None:
        """There is nothing more."""


class ReceiverQueue:
    """Hands ready messages to waiting receivers."""

    __slots__ = ("_subqueue", "_waiting", "_waiting_subqueues", "given", "members")

    def __init__(self, subqueue: int, waiting_subqueues: dict[int, None]) -> None:
        self._subqueue = subqueue
        self._waiting_subqueues = waiting_subqueues
        """Where to say that somebody waits: the subqueues that the next turn looks at."""
        self._waiting: OrderedDict[Receiver, None] = OrderedDict()
        self.members: set[Receiver] = set()
        self.given = 0
        """Messages that were given out when it was last dispatched."""

    def join(self, receiver: Receiver) -> None:
        self.members.add(receiver)

    def leave(self, receiver: Receiver) -> None:
        self.members.discard(receiver)
        self._waiting.pop(receiver, None)

    def wants(self, receiver: Receiver) -> None:
        """The receiver has credit, or asked to be drained."""
        if receiver in self.members:
            self._waiting.setdefault(receiver)
            self._waiting_subqueues[self._subqueue] = None

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def dispatch(
        self, queue: Queue, now: Instant, limit: int, outputs: list[Callable[[], None]]
    ) -> bool:
        """Give out up to `limit` messages; what leaves the process is put into `outputs`.

        Returns whether there is more to give at once: the bound was reached, or a slice of
        nothing but expired messages was gone through.
        """
        self.given = 0
        waiting, subqueue = self._waiting, self._subqueue
        window = queue.windows[subqueue]
        while waiting and self.given < limit:
            receiver = next(iter(waiting))
            left = limit - self.given
            served = min(receiver.capacity(), SERVED_AT_ONCE, left)
            taken = _take(queue, subqueue, receiver, served, left, now)
            shares = sum([outgoing.share for outgoing in taken])
            if taken:
                outputs.append(partial(receiver.deliver, taken))
                self.given += shares
            if len(taken) == served or shares >= left:
                if receiver.capacity() > 0:
                    waiting.move_to_end(receiver)
                    continue
                del waiting[receiver]
                if receiver.draining:
                    outputs.append(receiver.drained)
                continue
            head = window.head()
            if head is not None:
                return head.raw is not None
            if window.complete:
                self._drain(outputs)
            return False
        return bool(waiting)

    def _drain(self, outputs: list[Callable[[], None]]) -> None:
        """Nothing is ready: whoever asked to hear of it does."""
        for receiver in [r for r in self._waiting if r.draining]:
            del self._waiting[receiver]
            outputs.append(receiver.drained)


def _take(
    queue: Queue, subqueue: int, receiver: Receiver, wanted: int, shares: int, now: Instant
) -> list[OutgoingMessage]:
    """As many messages as are wanted, or as can be had now and the turn has shares for."""
    taken: list[OutgoingMessage] = []
    deletes, holder = receiver.deletes, receiver.holder
    while len(taken) < wanted and shares > 0:
        found = (
            queue.take_and_delete(subqueue, now) if deletes else queue.take(subqueue, holder, now)
        )
        if found is None:
            break
        outgoing = receiver.reserve(*found)
        taken.append(outgoing)
        shares -= outgoing.share
    return taken

"""The receivers of one subqueue, served in the order in which their credit came."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.model.times import Instant

if TYPE_CHECKING:
    from postbus.runtime.loaded_fragment import LoadedFragment
    from postbus.runtime.turn import Turn

SERVED_AT_ONCE: Final = 32
"""After so many messages, the next receiver has its turn."""
USUAL_ANNOTATIONS: Final = 256
"""Bytes of header and annotations that a share of 1 includes."""
BYTES_OF_A_SHARE: Final = 32
"""Writing so many bytes of a section anew takes as long as passing on a whole message."""
TOIL_OF_A_SHARE: Final = 6
"""Microseconds, about, that a peek adds to `SharedState.toil` for a share."""
LOOK_TOIL_MAX: Final = 8_192
"""A peek ends when it has taken this much. The next one continues from there."""


class OutgoingMessage:
    """A message on its way to a receiver, as it was when it was taken. It may leave after a commit;
    by then the engine may have changed the message."""

    __slots__ = ("delivered_at", "message", "payload", "raw", "share", "size", "token")

    def __init__(
        self, message: Message, raw: bytes, payload: tuple[bytes, ...] | None, share: int = 1
    ) -> None:
        self.message = message
        self.raw = raw
        self.payload = payload
        """The sections for the client; None if the message cannot be encoded."""
        self.token = message.token
        """Its lock; None after receive-and-delete."""
        self.delivered_at = message.delivered_at
        self.size = outgoing_size(message, raw)
        self.share = share
        """Its part of a turn. A message that is passed on unchanged has the share 1."""


def outgoing_size(message: Message, raw: bytes) -> int:
    """Bytes of a message, and of the properties that replace its own."""
    changed = message.properties
    return len(raw) if changed is None else len(raw) + len(changed)


def share_of(message: Message, payload: tuple[bytes, ...]) -> int:
    """The share of a delivery: sections that are read and written anew take longer."""
    rewritten = max(len(payload[0]) + len(payload[1]) - USUAL_ANNOTATIONS, 0)
    if len(payload) > 3:
        rewritten += len(payload[5])  # the footer
    if message.reason is not None or message.description is not None:
        rewritten += len(payload[3])
    return 1 + rewritten // BYTES_OF_A_SHARE


class Receiver(Protocol):
    """A client that wants messages: a link, or a long poll over HTTP."""

    deletes: bool
    """Receive-and-delete; otherwise peek-lock."""
    holder: int
    """The number of the lock holder: one for each connection."""
    draining: bool
    """The receiver wants to know at once when no message is ready."""

    def capacity(self) -> int:
        """How many messages it can take right now."""

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        """Prepare a message that was taken for the receiver. It is delivered when it is durable."""

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        """Take messages that are locked for the receiver, or removed, durably."""

    def drained(self) -> None:
        """Note that no more messages are ready."""


class ReceiverQueue:
    """Hands ready messages to waiting receivers, in turn."""

    __slots__ = ("_held", "_subqueue", "_waiting", "_waiting_subqueues", "given", "members")

    def __init__(self, subqueue: int, waiting_subqueues: dict[int, None]) -> None:
        self._subqueue = subqueue
        self._waiting_subqueues = waiting_subqueues
        """The subqueues that the next turn looks at, of the whole fragment."""
        self._waiting: OrderedDict[Receiver, None] = OrderedDict()
        self._held: dict[Receiver, int] = {}
        """The last turn that had an output for a receiver which waited for a commit."""
        self.members: set[Receiver] = set()
        self.given = 0
        """Shares that the last dispatch() gave out."""

    def join(self, receiver: Receiver) -> None:
        self.members.add(receiver)

    def leave(self, receiver: Receiver) -> None:
        self.members.discard(receiver)
        self._waiting.pop(receiver, None)
        self._held.pop(receiver, None)

    def wants(self, receiver: Receiver) -> None:
        """Let the next turn look at a receiver: it has credit, or drains."""
        if receiver in self.members:
            self._waiting.setdefault(receiver)
            self._waiting_subqueues[self._subqueue] = None

    def wants_nothing(self, receiver: Receiver) -> None:
        """Let no turn look at a receiver: its credit is promised elsewhere."""
        self._waiting.pop(receiver, None)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def dispatch(self, queue: Queue, turn: Turn, fragment: LoadedFragment, limit: int) -> bool:
        """Give out messages of up to `limit` shares. Deliveries are added to the turn.

        Returns whether there is more to give out at once: the limit was reached, or only expired
        messages were found.
        """
        self.given = 0
        waiting, subqueue = self._waiting, self._subqueue
        window = queue.windows[subqueue]
        while waiting and self.given < limit:
            receiver = next(iter(waiting))
            left = limit - self.given
            served = min(receiver.capacity(), SERVED_AT_ONCE, left)
            taken = _take(queue, subqueue, receiver, served, left, turn.now)
            shares = sum([outgoing.share for outgoing in taken])
            if taken:
                turn.deliver(fragment, queue.ledger, receiver, taken, self._held)
                self.given += shares
            if len(taken) == served or shares >= left:
                if receiver.capacity() > 0:
                    waiting.move_to_end(receiver)
                    continue
                del waiting[receiver]
                if receiver.draining:
                    turn.drained(fragment, receiver, self._held)
                continue
            head = window.head()
            if head is not None:
                return head.raw is not None
            if window.complete:
                self._drain(turn, fragment)
            return False
        return bool(waiting)

    def _drain(self, turn: Turn, fragment: LoadedFragment) -> None:
        """Tell draining receivers that no message is ready."""
        for receiver in [r for r in self._waiting if r.draining]:
            del self._waiting[receiver]
            turn.drained(fragment, receiver, self._held)


def _take(
    queue: Queue, subqueue: int, receiver: Receiver, wanted: int, shares: int, now: Instant
) -> list[OutgoingMessage]:
    """Take as many messages as are wanted, ready, and within the shares of the turn."""
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

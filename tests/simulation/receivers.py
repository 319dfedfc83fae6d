"""Receivers with credit, waiting in line for messages: peek-lock, or receive and delete."""

from __future__ import annotations

from typing import Protocol

from postbus.broker.message import Message
from postbus.runtime.receivers import OutgoingMessage


class Watch(Protocol):
    """Who wants to know what a receiver is given."""

    def before_take(self) -> None: ...
    def after_take(self, receiver: SimReceiver) -> None: ...
    def delivered(self, receiver: SimReceiver, outgoing: OutgoingMessage) -> None: ...
    def give_back(self, outgoing: OutgoingMessage) -> None: ...


class SimReceiver:
    """One link. A detached one gives back what was on its way to it."""

    def __init__(self, watch: Watch, holder: int, subqueue: int, deletes: bool) -> None:
        self.watch = watch
        self.holder = holder
        self.subqueue = subqueue
        self.deletes = deletes
        self.draining = False
        self.attached = True
        self.credit = 0
        self._reserved = 0

    def capacity(self) -> int:
        self.watch.before_take()
        return max(0, self.credit - self._reserved)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self._reserved += 1
        self.watch.after_take(self)
        return OutgoingMessage(message, raw, (b"%d" % message.delivery_count,))

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        self._reserved -= len(messages)
        for outgoing in messages:
            if self.attached:
                self.credit -= 1
                self.watch.delivered(self, outgoing)
            else:
                self.watch.give_back(outgoing)

    def drained(self) -> None:
        self.credit = 0
        self.draining = False

    def lost(self) -> None:
        """The engine was thrown away: what was reserved will not come."""
        self._reserved = 0


def shown_count(outgoing: OutgoingMessage) -> int:
    """The delivery count as the receiver is told."""
    assert outgoing.payload is not None
    return int(outgoing.payload[0])

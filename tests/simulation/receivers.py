"""Receivers with credit, waiting in line for messages: peek-lock, or receive and delete."""

from __future__ import annotations

from typing import Protocol

from postbus.broker.message import Message


class Watch(Protocol):
    """Who wants to know what a receiver is given."""

    def before_take(self) -> None: ...
    def after_take(self, receiver: SimReceiver) -> None: ...
    def delivered(self, receiver: SimReceiver, message: Message, raw: bytes) -> None: ...
    def give_back(self, message: Message, raw: bytes) -> None: ...


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

    def reserve(self, size: int) -> None:
        self._reserved += 1
        self.watch.after_take(self)

    def deliver(self, taken: list[tuple[Message, bytes]]) -> None:
        self._reserved -= len(taken)
        for message, raw in taken:
            if self.attached:
                self.credit -= 1
                self.watch.delivered(self, message, raw)
            else:
                self.watch.give_back(message, raw)

    def drained(self) -> None:
        self.credit = 0
        self.draining = False

    def lost(self) -> None:
        """The engine was thrown away: what was reserved will not come."""
        self._reserved = 0

"""One receiver of several fragments: it waits in the receiver queue of each of them.

The receiver has one credit, and all fragments of this process are asked on one event loop. So the
credit is not split: whichever fragment has a message first asks how much the receiver can take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import owner_of
from postbus.errors import InternalError, ServiceBusError
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage, Receiver
from postbus.runtime.runtime import Runtime

AGAIN_S: Final = 1.0
"""A fragment whose engine was lost is asked again after this time."""
DAMAGED_AGAIN_S: Final = 10.0
"""The same for a fragment that cannot be read, which an operator must mend."""


class MergedReceiver(Receiver, Protocol):
    """A client that wants messages of several fragments."""

    def satisfied(self) -> bool:
        """Whether it takes no more messages until its client asks anew."""

    def returned(self, count: int, size: int) -> None:
        """Note that so many reserved messages, of so many bytes, do not come."""

    def engine_lost(self, fragment: LoadedFragment, error: ServiceBusError) -> None:
        """Note that every lock of a fragment has ended."""


class FragmentReceiver:
    """The place of a merged receiver in the receiver queue of one fragment."""

    def __init__(
        self,
        whole: FragmentReceivers,
        fragment: LoadedFragment,
        runtime: Runtime,
        subqueue: int,
        receiver: MergedReceiver,
    ) -> None:
        self._whole = whole
        self._receiver = receiver
        self.fragment = fragment
        self._runtime = runtime
        self._subqueue = subqueue
        self._owner = owner_of(subqueue)
        self._receivers = fragment.receivers_of(subqueue)
        self.deletes = receiver.deletes
        self.holder = receiver.holder
        self.draining = False
        self.waiting = False
        """It stands in the queue, so the next message there finds it."""
        self.said_empty = False
        """The fragment had nothing ready, since the client asked to drain."""
        self.out = False
        """The engine was lost, and is not asked for a while."""
        self._open = False
        self._reserved = 0
        self._reserved_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._open = True
        self._receivers.join(self)
        self._count_receivers()
        self.fragment.on_lost[self._lost] = None

    def leave(self) -> None:
        """Take no more messages. Those that are on their way still come."""
        self._receivers.leave(self)
        self._count_receivers()

    def close(self) -> None:
        self._open = False
        self.leave()
        self.fragment.on_lost.pop(self._lost, None)
        self._reserved = self._reserved_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_receivers(self) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(self._subqueue, len(self._receivers.members))

    def want(self) -> None:
        """Stand in the queue. A fragment without messages is not woken for it: its next message
        looks at the queue anyway."""
        self.waiting = True
        self._receivers.wants(self)
        if self.draining or not self.is_empty():
            self._runtime.wake(self.fragment)

    def is_empty(self) -> bool:
        """Whether it is known that no message is ready."""
        engine = self.fragment.engine
        queue = None if engine is None else engine.queues.get(self._owner)
        if queue is None:
            return False
        window = queue.windows[self._subqueue]
        return window.complete and window.head() is None

    # -- called by the receiver queue ----------------------------------------------------------

    def capacity(self) -> int:
        capacity = self._receiver.capacity()
        if capacity == 0 and self.waiting:
            self.waiting = False  # the queue lets go of it
            self._whole.step_back()
        return capacity

    def step_back(self) -> None:
        """Leave the queue to receivers that can take a message."""
        self.waiting = False
        self._receivers.wants_nothing(self)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        outgoing = self._receiver.reserve(message, raw)
        self._reserved += 1
        self._reserved_bytes += outgoing.size
        self._whole.reserved_from(self.fragment.index)
        return outgoing

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        count, size = len(messages), sum([outgoing.size for outgoing in messages])
        if self._open:
            # Messages of an earlier commit may come after the engine was lost.
            missing = max(count - self._reserved, 0)
            if missing:
                self._receiver.returned(-missing, -size)
                self._whole.reserved += missing
                self._reserved, self._reserved_bytes = count, size
            self._reserved -= count
            self._reserved_bytes -= size
            self._whole.reserved -= count
        self._receiver.deliver(messages)
        self._whole.check_drained()

    def drained(self) -> None:
        """The queue let go of it: the fragment has nothing ready, or the credit is promised."""
        self.waiting = False
        if not self._open:
            return
        if self._receiver.draining:
            self.said_empty = self.is_empty()
            self._whole.check_drained()
        elif self._receiver.capacity() > 0:
            self.want()

    # -- the engine ----------------------------------------------------------------------------

    def _lost(self, error: ServiceBusError) -> None:
        """The engine was thrown away: the other fragments serve the receiver meanwhile."""
        count, size = self._reserved, self._reserved_bytes
        self._reserved = self._reserved_bytes = 0
        self.out, self.waiting = True, False
        self.fragment.on_lost[self._lost] = None
        if count:
            self._whole.reserved -= count
            self._receiver.returned(count, size)
        self._receiver.engine_lost(self.fragment, error)
        if self._timer is None and self.fragment.gone is None:
            delay_s = DAMAGED_AGAIN_S if isinstance(error, InternalError) else AGAIN_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ask_again)
        if count and self._receiver.capacity() > 0:
            self._whole.wake()  # the others may use the credit that was promised here
        self._whole.check_drained()

    def _ask_again(self) -> None:
        self._timer = None
        self.out = False
        if self._receiver.draining or self._receiver.capacity() > 0:
            self.want()


class FragmentReceivers:
    """All places of one merged receiver."""

    def __init__(
        self,
        receiver: MergedReceiver,
        fragments: Sequence[LoadedFragment],
        runtimes: Sequence[Runtime],
        subqueue: int,
        start: int,
    ) -> None:
        """`start` is the fragment that is asked first."""
        self._receiver = receiver
        self.places = [
            FragmentReceiver(self, fragment, runtime, subqueue, receiver)
            for fragment, runtime in zip(fragments, runtimes, strict=True)
        ]
        self._start = start
        self.reserved = 0
        """Messages that were taken for the receiver and are not delivered yet."""

    def open(self) -> None:
        for place in self.places:
            place.open()

    def leave(self) -> None:
        for place in self.places:
            place.leave()

    def close(self) -> None:
        for place in self.places:
            place.close()
        self.reserved = 0

    def reserved_from(self, index: int) -> None:
        """A fragment gave a message. The next one is asked first from now on, or the messages of
        this one would come before all others."""
        self._start = index + 1
        self.reserved += 1

    def step_back(self) -> None:
        """The credit is promised. Each queue would find that out by itself, but for each receiver
        and each message again."""
        for place in self.places:
            if place.waiting:
                place.step_back()

    def wake(self) -> None:
        """The receiver has credit, or asks to drain."""
        places, draining = self.places, self._receiver.draining
        if not draining and self._receiver.capacity() == 0:
            return  # whatever makes room wakes it again
        count = len(places)
        for n in range(count):
            place = places[(self._start + n) % count]
            if draining:
                place.said_empty = place.waiting = False
            place.draining = draining
            if not place.waiting and not place.out:
                place.want()

    def check_drained(self) -> None:
        """Answer a client that drains, once nothing is on its way to it and no fragment has a
        message for it."""
        receiver = self._receiver
        if not receiver.draining or self.reserved:
            return
        pending = False
        if not receiver.satisfied():
            can_take = receiver.capacity() > 0
            for place in self.places:
                if place.out:
                    continue
                if place.said_empty and place.is_empty():
                    continue
                # Not asked yet, or a message came since it said that it had none.
                pending = True
                place.said_empty = False
                if can_take and not place.waiting:
                    place.want()
        if not pending:
            receiver.drained()

"""A receive over HTTP: one message, or the news that none came in time.

It stands in the same line as the links do and is served by the same commits. Its locks belong to no
connection (wire §3.6): the one it came over may be gone when the message is settled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import structlog

from postbus.broker.message import Message
from postbus.errors import (
    SHUTTING_DOWN,
    ConnectionForced,
    InternalError,
    ServerBusy,
    ServiceBusError,
)
from postbus.messages.translation import to_received
from postbus.model.plain_message import ReceivedMessage
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import GiveBack
from postbus.runtime.runtime import Runtime

if TYPE_CHECKING:
    from postbus.runtime.fragment import LoadedFragment

NO_CONNECTION: Final = 0
"""Gateways count from one."""
NOTHING_WITHIN_S: Final = 10.0
"""How long it may take to find out that there is nothing: the engine may have to be loaded."""

log = structlog.get_logger("longpoll")


class LongPoll:
    """One place in the line of a subqueue, for one message."""

    def __init__(
        self, fragment: LoadedFragment, subqueue: int, runtime: Runtime, deletes: bool
    ) -> None:
        self.fragment = fragment
        self._subqueue = subqueue
        self._runtime = runtime
        self._receivers = fragment.receivers_of(subqueue)
        self.deletes = deletes
        self.holder = NO_CONNECTION
        self.draining = False
        self.size = 0
        """Bytes of the message that was taken, as links count them."""
        self._taken: ReceivedMessage | None = None
        self._outgoing: OutgoingMessage | None = None
        """What came for it, while nobody has it yet."""
        self._promised = False
        """A message is on its way, behind a commit."""
        self._left = False
        self._result: asyncio.Future[ReceivedMessage | None] = (
            asyncio.get_running_loop().create_future()
        )

    async def receive(self, wait_ms: int, gone: asyncio.Future[None]) -> ReceivedMessage | None:
        """The message; None when the wait is over. `gone` is done when nobody waits for it any
        more: then nothing is taken, and what was taken is given back."""
        self.draining = wait_ms == 0
        self._join()
        try:
            await self._wait(gone, NOTHING_WITHIN_S if self.draining else wait_ms / 1_000)
            self._leave()
            if self._promised:
                # Taken before the time was up: it comes with its commit, or that fails.
                await self._wait(gone, None)
            if gone.done():
                return None
            if self._result.done():
                received = self._result.result()
                self._outgoing = None
                return received
            if self.draining:
                raise ServerBusy(f"The messaging entity '{self.fragment.name}' cannot be read now.")
            return None
        finally:
            self._end()

    async def _wait(self, gone: asyncio.Future[None], timeout_s: float | None) -> None:
        either: set[asyncio.Future[Any]] = {self._result, gone}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)

    def end(self, refusal: ServiceBusError) -> None:
        """Nobody may wait here any longer. What is on its way goes back when it comes."""
        self._fail(refusal)

    def stop(self) -> None:
        """The broker stops: nobody waits any longer. What is on its way still arrives."""
        if not self._promised:
            self._fail(ConnectionForced(SHUTTING_DOWN))

    # -- the line ----------------------------------------------------------------------------

    def _join(self) -> None:
        self._receivers.join(self)
        self._count_receivers()
        self.fragment.on_lost[self._fail] = None
        self._receivers.wants(self)
        self.fragment.used = True
        self._runtime.wake(self.fragment)

    def _leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._receivers.leave(self)
        self._count_receivers()

    def _end(self) -> None:
        """Nobody waits here any more: whatever is here, or still comes, goes back."""
        self._leave()
        self.fragment.on_lost.pop(self._fail, None)
        if not self._result.done():
            self._result.cancel()
        elif not self._result.cancelled():
            self._result.exception()  # heard of, also where the client has gone
        self._give_back()

    def _count_receivers(self) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(self._subqueue, len(self._receivers.members))

    def _fail(self, error: ServiceBusError) -> None:
        """The engine was thrown away, with every lock, or there is another reason to end."""
        self._promised = False
        if not self._result.done():
            self._result.set_exception(error)

    # -- what the line calls -----------------------------------------------------------------

    def capacity(self) -> int:
        return 0 if self._promised or self._left or self._result.done() else 1

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self._promised = True
        self.size = len(raw)
        try:
            # Now, and not after the commit: by then more may have been decided about it.
            self._taken = to_received(message, raw)
        except Exception:  # whatever is wrong with one, the others must go out
            log.exception("message unreadable", entity=self.fragment.name, number=message.number)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        [self._outgoing] = messages
        self._promised = False
        if self._result.done():
            self._give_back()
        elif self._taken is None:
            # Back it goes: over AMQP it can still be had.
            self._give_back()
            self._result.set_exception(InternalError("The message cannot be read."))
        else:
            self._result.set_result(self._taken)

    def drained(self) -> None:
        self.draining = False
        if not self._result.done():
            self._result.set_result(None)

    def _give_back(self) -> None:
        outgoing, self._outgoing = self._outgoing, None
        if outgoing is not None:
            self._runtime.submit(GiveBack(self.fragment, outgoing))

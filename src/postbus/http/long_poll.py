"""A receive over HTTP: one message, or the answer that none came in time.

It waits in the same queue of receivers as the links, and the same commits serve it. Its locks
belong to no connection (wire §3.6): the client may settle the message over another connection.
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
    from postbus.runtime.loaded_fragment import LoadedFragment

NO_CONNECTION: Final = 0
"""The ids of gateways start at one."""
NOTHING_WITHIN_S: Final = 10.0
"""How long an empty answer may take: the engine may have to be loaded."""

log = structlog.get_logger("longpoll")


class LongPoll:
    """One receiver of a subqueue, for one message."""

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
        """Bytes of the taken message, as links count them."""
        self._taken: ReceivedMessage | None = None
        self._outgoing: OutgoingMessage | None = None
        """The delivered message, until the client has it."""
        self._promised = False
        """A message was taken, and waits for its commit."""
        self._left = False
        self._result: asyncio.Future[ReceivedMessage | None] = (
            asyncio.get_running_loop().create_future()
        )

    async def receive(self, wait_ms: int, gone: asyncio.Future[None]) -> ReceivedMessage | None:
        """The message; None when the wait is over.

        `gone` is done when the client has left. Then nothing is taken, and a taken message goes
        back.
        """
        self.draining = wait_ms == 0
        self._join()
        try:
            await self._wait(gone, NOTHING_WITHIN_S if self.draining else wait_ms / 1_000)
            self._leave()
            if self._promised:
                # Taken in time: the message comes with its commit, or the commit fails.
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
        """End the wait with a refusal. A message on its way goes back when it comes."""
        self._fail(refusal)

    def stop(self) -> None:
        """The broker stops: end the wait. A message on its way still arrives."""
        if not self._promised:
            self._fail(ConnectionForced(SHUTTING_DOWN))

    # -- joining and leaving -------------------------------------------------------------------

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
        """The wait is over: a message that is here, or still comes, goes back."""
        self._leave()
        self.fragment.on_lost.pop(self._fail, None)
        if not self._result.done():
            self._result.cancel()
        elif not self._result.cancelled():
            self._result.exception()  # retrieved, even if the client has left
        self._give_back()

    def _count_receivers(self) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(self._subqueue, len(self._receivers.members))

    def _fail(self, error: ServiceBusError) -> None:
        """End with an error, such as the loss of the engine with all its locks."""
        self._promised = False
        if not self._result.done():
            self._result.set_exception(error)

    # -- called by the receivers -------------------------------------------------------------

    def capacity(self) -> int:
        return 0 if self._promised or self._left or self._result.done() else 1

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self._promised = True
        self.size = len(raw)
        try:
            # Now, not after the commit: by then the message may have changed again.
            self._taken = to_received(message, raw)
        except Exception:  # one unreadable message must not stop the others
            log.exception("message unreadable", entity=self.fragment.name, number=message.number)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        [self._outgoing] = messages
        self._promised = False
        if self._result.done():
            self._give_back()
        elif self._taken is None:
            # Give it back: a client can still receive it over AMQP.
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

"""A sender of the SDK whose every call ends in time.

The SDK bounds a single send. It does not bound the opening of a link for a batch, or the closing of
a link whose peer is silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import OperationTimeoutError

log = logging.getLogger("postbus.paired")

CLOSE_TIMEOUT_S: Final = 5.0


class BoundedSender:
    """One call at a time. A sender whose call did not end is thrown away: its link is in doubt."""

    def __init__(
        self, make: Callable[[], ServiceBusSender], first: ServiceBusSender | None = None
    ) -> None:
        self._make = make
        self._sender = first
        self._scope: asyncio.Timeout | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, messages: Any, until: float) -> None:
        """Send a message, a list or a batch; `until` is a time of the monotonic clock."""
        await self.call("send_messages", messages, until=until, timed=True)

    async def call(self, method: str, *arguments: Any, until: float, timed: bool = False) -> Any:
        """Call a method of the SDK's sender; `timed` passes the rest of the time on to it."""
        left = until - time.monotonic()
        if left <= 0:
            raise OperationTimeoutError()
        if self._sender is None:
            self._sender = self._make()
        options = {"timeout": left} if timed else {}
        scope = asyncio.timeout(left)
        try:
            async with scope:
                self._scope = scope
                return await getattr(self._sender, method)(*arguments, **options)
        except TimeoutError:
            self.discard()
            raise OperationTimeoutError() from None
        except asyncio.CancelledError:
            self.discard()
            raise
        finally:
            self._scope = None

    def hurry(self, until: float) -> None:
        """Let the call that is under way, if there is one, end by this time."""
        scope = self._scope
        if scope is not None and not scope.expired():
            at = asyncio.get_running_loop().time() + until - time.monotonic()
            if (when := scope.when()) is None or when > at:
                scope.reschedule(at)

    def discard(self) -> None:
        """Let the next call begin with a link of its own."""
        sender, self._sender = self._sender, None
        if sender is not None:
            task = asyncio.create_task(close_in_time(sender))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self.discard()
        await asyncio.gather(*self._closing)


async def close_in_time(part: ServiceBusSender | ServiceBusClient) -> None:
    """Close a part of the SDK, even if its peer is silent."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await part.close()
    except Exception as error:
        log.debug("%s was not closed: %r", part, error)

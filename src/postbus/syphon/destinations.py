"""The entities of the primary namespace that a syphon sends back to (R-PAIR-10)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import Enum
from typing import Final

from postbus.amqp.sections import encode_data
from postbus.client.amqp_client import AmqpClient, AmqpRefused, SendingLink
from postbus.client.connection_string import Namespace
from postbus.messages.batches import BATCH_FORMAT

SEND_S: Final = 30.0
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
GONE_S: Final = 60.0
"""From the first time that a destination is not found to the second and last."""

DENIED: Final = "amqp:unauthorized-access"
_GONE: Final = "amqp:not-found"
_FOR_GOOD: Final = frozenset(
    {
        *("amqp:link:message-size-exceeded", "com.microsoft:argument-error", "amqp:not-allowed"),
        *("amqp:not-implemented", "amqp:invalid-field", "amqp:decode-error"),
    }
)


class Answer(Enum):
    """What becomes of a message that its destination did not accept."""

    STAYS = "stays"
    """It is tried again after a pause: quota, disabled, not reached, and everything unknown."""
    DEAD_LETTER = "dead letter"
    FAULT = "fault"
    """The key is refused: the syphon ends."""


class Destination:
    """One entity. After a failure it rests, with growing pauses."""

    def __init__(self, primary: PrimaryNamespace, path: str, gone_s: float) -> None:
        self.path = path
        self._primary = primary
        self._gone_s = gone_s
        self._pause_s = PAUSE_S
        self._rests_until = 0.0
        self._gone_since: float | None = None

    def rest_s(self) -> float:
        """How long to leave it alone from now on; 0 or less if it may be tried."""
        return self._rests_until - time.monotonic()

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Send these messages in one transfer: all are accepted, or none."""
        link = await self._primary.link(self.path)
        try:
            async with asyncio.timeout(SEND_S):
                if len(payloads) == 1:
                    await link.send(payloads[0])
                else:
                    await link.send(b"".join(map(encode_data, payloads)), BATCH_FORMAT)
        except (OSError, TimeoutError):
            self._primary.drop()
            raise
        self._pause_s, self._rests_until, self._gone_since = PAUSE_S, 0.0, None

    def failed(self, error: Exception) -> Answer:
        """Judge a failure, and rest where the message stays."""
        now = time.monotonic()
        condition = error.condition if isinstance(error, AmqpRefused) else ""
        if condition == DENIED:
            return Answer.FAULT
        if condition in _FOR_GOOD:
            return Answer.DEAD_LETTER
        if condition == _GONE:
            if self._gone_since is None:
                self._gone_since = now
            if now - self._gone_since >= self._gone_s:
                return Answer.DEAD_LETTER
            self._rests_until = self._gone_since + self._gone_s
            return Answer.STAYS
        self._rests_until = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
        return Answer.STAYS


class PrimaryNamespace:
    """One connection to the primary, made anew when it breaks, with a link for each path."""

    def __init__(self, namespace: Namespace, gone_s: float = GONE_S) -> None:
        self._namespace = namespace
        self._gone_s = gone_s
        self._client: AmqpClient | None = None
        self._links: dict[str, SendingLink] = {}
        self._turn = asyncio.Lock()
        self.destinations: dict[str, Destination] = {}

    def destination(self, path: str) -> Destination:
        found = self.destinations.get(path.lower())
        if found is None:
            found = self.destinations[path.lower()] = Destination(self, path, self._gone_s)
        return found

    async def link(self, path: str) -> SendingLink:
        async with self._turn:
            if self._client is None or self._client.is_over:
                self._links.clear()
                self._client = await AmqpClient.connect(self._namespace)
            link = self._links.get(path.lower())
            if link is None or link.is_over:
                link = self._links[path.lower()] = await self._client.sender(path)
            return link

    def drop(self) -> None:
        """The connection is in doubt."""
        if self._client is not None:
            self._client.drop()
            self._client = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

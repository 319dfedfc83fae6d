"""Messages in memory, for tests of the HTTP side of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from postbus.errors import EntityNotFound, ServiceBusError
from postbus.model.address import Address
from postbus.model.plain_message import PlainMessage, ReceivedMessage

ROOM = 1_000


@dataclass
class MemoryMailbox:
    """Stands in for `postbus.http.mailbox.Mailbox`, and keeps what it was asked."""

    entities: set[str] = field(default_factory=lambda: {"orders"})
    sent: list[tuple[str, list[PlainMessage]]] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    next: ReceivedMessage | None = None
    failure: ServiceBusError | None = None

    def room_for(self, address: Address) -> int:
        self._check(address)
        return ROOM

    async def send(
        self, address: Address, messages: list[PlainMessage], check: Callable[[], None]
    ) -> None:
        check()
        self._check(address)
        self.sent.append((address.path, messages))

    async def receive(
        self,
        address: Address,
        deletes: bool,
        wait_ms: int,
        gone: asyncio.Future[None],
        check: Callable[[], None],
    ) -> ReceivedMessage | None:
        self._check(address)
        self.asked.append(("receive", address.path, deletes, wait_ms))
        await asyncio.wait({gone}, timeout=0.01)
        return self.next

    async def complete(self, address: Address, reference: str, token: UUID) -> None:
        self._settle("complete", address, reference, token)

    async def unlock(self, address: Address, reference: str, token: UUID) -> None:
        self._settle("unlock", address, reference, token)

    async def renew(self, address: Address, reference: str, token: UUID) -> None:
        self._settle("renew", address, reference, token)

    def refused(self, address: Address, error: ServiceBusError) -> None:
        self.refusals.append(error.condition)

    def _settle(self, how: str, address: Address, reference: str, token: UUID) -> None:
        self._check(address)
        self.asked.append((how, address.path, reference, str(token)))

    def _check(self, address: Address) -> None:
        if self.failure is not None:
            raise self.failure
        if address.entity not in self.entities:
            raise EntityNotFound(address.path)

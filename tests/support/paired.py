"""A paired client in both its flavours under one asynchronous interface, and two namespaces."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from azure.servicebus import ServiceBusMessage

from postbus.paired import PairedServiceBusClient, PathChange, PathState, SendAvailability
from postbus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from tests.support.bus import Bus, Threaded
from tests.support.server import Server

_names: Iterator[int] = itertools.count(1)


class PairedBus:
    """A paired client. Each has backlog queues of its own in the secondary namespace."""

    def __init__(
        self,
        flavour: str,
        primary: str,
        secondary: str,
        sdk: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        self.changes: list[PathChange] = []
        self.name = given.setdefault("primary_name", f"primary{next(_names)}")
        given.setdefault("backlog_queue_count", 2)
        given.setdefault("ping_primary_interval", 1)
        given.setdefault("send_timeout", 20)
        is_sync = flavour == "sync"
        self._threads = ThreadPoolExecutor(8) if is_sync else None
        kind: Any = PairedServiceBusClient if is_sync else AsyncPairedServiceBusClient
        self.client = kind.from_connection_string(
            primary,
            secondary=secondary,
            options=SendAvailability(**given),
            on_change=self.changes.append,
            **{"retry_total": 0, **(sdk or {})},
        )

    @property
    def states(self) -> list[PathState]:
        return [change.state for change in self.changes]

    def sender(self, to: str, kind: str = "queue", **options: Any) -> Any:
        made = getattr(self.client, f"get_{kind}_sender")(to, **options)
        return made if self._threads is None else Threaded(made, self._threads)

    async def call(self, method: str, *arguments: Any) -> Any:
        found = getattr(self.client, method)
        if self._threads is None:
            result = found(*arguments)
            return await result if asyncio.iscoroutine(result) else result
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, found, *arguments)

    async def close(self) -> None:
        await self.call("close")
        if self._threads is not None:
            self._threads.shutdown()

    def backlog(self, index: int) -> str:
        return f"{self.name}/x-servicebus-transfer/{index}"


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for something that must come to be."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


async def drain(server: Server, *queues: str, **options: Any) -> list[Any]:
    """Everything that is in some queues, received and deleted."""
    bus = Bus("async", server.connection_string, retry_total=3)
    try:
        found: list[Any] = []
        for queue in queues:
            source = bus.receiver(queue, receive_mode="receiveanddelete", **options)
            async with source as receiver:
                while more := await receiver.receive_messages(500, 2):
                    found += more
        return found
    finally:
        await bus.close()


def ids(messages: list[Any]) -> list[str]:
    return [message.message_id for message in messages]


def sent(number: int, **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(f"body {number}", message_id=f"id-{number}", **fields)

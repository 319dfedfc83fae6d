"""One run of an official client: `python -m bench.sdk_client`, in a process of its own.

An ordinary program on azure-servicebus, with its synchronous or its asyncio client. Connecting,
filling the queue and the first call are not measured. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from bench.processes import machine_cpu_s, usage_of

FLAVOURS = ("sync", "aio")
SEND_ONE = "send one by one"
SEND_BATCHES = "send batches of 100"
RECEIVE = "receive and complete"
RECEIVE_AHEAD = "receive and complete, prefetch 200"
RECEIVE_DELETE = "receive and delete"
SEND_TOGETHER = "send one by one, 10 senders"
RECEIVE_TOGETHER = "receive and complete, 10 receivers"
WORK = (SEND_ONE, SEND_BATCHES, RECEIVE, RECEIVE_AHEAD, RECEIVE_DELETE)
# Asyncio only: tasks with a connection each. Several calls at a time on one link would measure the
# SDK's poll of 0.2 s: the task that reads first takes the others' answers off the socket.
WORK_TOGETHER = (SEND_TOGETHER, RECEIVE_TOGETHER)
SENDS = (SEND_ONE, SEND_BATCHES, SEND_TOGETHER)
_OPTIONS: dict[str, dict[str, Any]] = {
    RECEIVE: {"prefetch_count": 0},
    RECEIVE_TOGETHER: {"prefetch_count": 0},
    RECEIVE_AHEAD: {"prefetch_count": 200},
    RECEIVE_DELETE: {"receive_mode": "receiveanddelete"},
}
_AT_ONCE = 100
_TASKS = 10
_WAIT_S = 10.0


class WorkFailed(Exception):
    """Not everything that was asked for was done."""


class SyncClient:
    """The synchronous client; its calls block, and nothing else is there to be held up."""

    def __init__(self, connection: str, queue: str, options: dict[str, Any]) -> None:
        self._client = ServiceBusClient.from_connection_string(connection)
        self._sender = self._client.get_queue_sender(queue)
        self._receiver = self._client.get_queue_receiver(queue, **options)

    async def send(self, messages: Any) -> None:
        self._sender.send_messages(messages)

    async def receive(self, count: int) -> list[Any]:
        return self._receiver.receive_messages(count, max_wait_time=_WAIT_S)

    async def complete(self, message: Any) -> None:
        self._receiver.complete_message(message)

    async def aclose(self) -> None:
        self._sender.close()
        self._receiver.close()
        self._client.close()


class AsyncClient:
    """The asyncio client."""

    def __init__(self, connection: str, queue: str, options: dict[str, Any]) -> None:
        self._client = AsyncServiceBusClient.from_connection_string(connection)
        self._sender = self._client.get_queue_sender(queue)
        self._receiver = self._client.get_queue_receiver(queue, **options)

    async def send(self, messages: Any) -> None:
        await self._sender.send_messages(messages)

    async def receive(self, count: int) -> list[Any]:
        return await self._receiver.receive_messages(count, max_wait_time=_WAIT_S)

    async def complete(self, message: Any) -> None:
        await self._receiver.complete_message(message)

    async def aclose(self) -> None:
        await self._sender.close()
        await self._receiver.close()
        await self._client.close()


class Meter:
    """Time from start to stop, and what it cost on both sides."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid

    def start(self) -> None:
        self._server_s = usage_of(self._server_pid).cpu_s
        self._own_s = time.process_time()
        self._busy_s = machine_cpu_s()
        self._began = time.monotonic()

    def stop(self, count: int) -> dict[str, float]:
        seconds = time.monotonic() - self._began
        busy_s = machine_cpu_s() - self._busy_s
        own_s = time.process_time() - self._own_s
        server_s = usage_of(self._server_pid).cpu_s - self._server_s
        return {
            "rate": count / seconds,
            "seconds": seconds,
            "client_share": own_s / seconds,
            "server_share": server_s / seconds,
            "elsewhere_share": max(busy_s - own_s - server_s, 0.0) / seconds,
        }


async def send(client: SyncClient | AsyncClient, given: argparse.Namespace, count: int) -> int:
    """Send, each message made when its turn comes, as a program does."""
    body = b"x" * given.size
    if given.work != SEND_BATCHES:
        for _ in range(count):
            await client.send(ServiceBusMessage(body))
        return count
    batches = max(count // _AT_ONCE, 1)
    for _ in range(batches):
        await client.send([ServiceBusMessage(body) for _ in range(_AT_ONCE)])
    return batches * _AT_ONCE


async def receive(client: SyncClient | AsyncClient, given: argparse.Namespace, count: int) -> int:
    """Receive, and complete one message after the other."""
    received = 0
    while received < count:
        messages = await client.receive(min(_AT_ONCE, count - received))
        if not messages:
            raise WorkFailed(f"{received} of {count} messages came, then none")
        if given.work != RECEIVE_DELETE:
            for message in messages:
                await client.complete(message)
        received += len(messages)
    return received


async def run(given: argparse.Namespace) -> dict[str, float]:
    connection = (
        f"Endpoint=sb://localhost:{given.port};SharedAccessKeyName={given.user};"
        f"SharedAccessKey={given.password};UseDevelopmentEmulator=true"
    )
    kind = SyncClient if given.flavour == "sync" else AsyncClient
    tasks = _TASKS if given.work in WORK_TOGETHER else 1
    count = given.count // tasks
    meter = Meter(given.pid)
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(tasks):
            client = kind(connection, given.queue, _OPTIONS.get(given.work, {}))
            stack.push_async_callback(client.aclose)
            clients.append(client)
        first = [ServiceBusMessage(b"x" * given.size) for _ in range(_AT_ONCE)]
        for client in clients:
            await client.send(first)
        work = send
        if given.work not in SENDS:
            work = receive
            # More than is measured: the last calls find as much as those before them.
            for _ in range(given.count // _AT_ONCE + 2 * tasks):
                await clients[0].send(first)
            for client in clients:
                await receive(client, given, _AT_ONCE)
        meter.start()
        done = await asyncio.gather(*(work(client, given, count) for client in clients))
        return meter.stop(sum(done))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sdk_client", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--flavour", choices=FLAVOURS, required=True)
    parser.add_argument("--work", choices=WORK + WORK_TOGETHER, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the server")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--size", type=int, default=1_024)
    outcome = asyncio.run(run(parser.parse_args()))
    sys.stdout.write(json.dumps(outcome) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

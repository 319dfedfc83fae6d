"""A disk that is full, for a real process: a small file system, mounted for the test."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.support.administration import Administration
from tests.support.bus import Bus, text
from tests.support.server import Server
from tests.support.transacting import Refused, Transacting
from tests.support.waiting import until

DISK = "32m"
BODY = "x" * 100_000
STEP = 2
WITHIN_S = 90.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def server(make_server: Callable[..., Server], disk: Path) -> Iterator[Server]:
    made = make_server("--disk-reserve-mb", "64", data=disk.name).start()
    yield made
    made.discard()


class Sender:
    """Sends numbered messages, and remembers which of them were accepted."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.accepted: list[str] = []
        self._next = 0

    async def send(self, sender: Any) -> None:
        names = [f"{self._next + each}" for each in range(STEP)]
        self._next += STEP
        await sender.send_messages([ServiceBusMessage(BODY, message_id=each) for each in names])
        self.accepted += names

    async def until_refused(self, bus: Bus) -> ServiceBusError:
        async with bus.sender(self.queue) as sender:
            while True:
                try:
                    await self.send(sender)
                except ServiceBusError as refusal:
                    return refusal

    async def until_accepted(self, bus: Bus) -> None:
        async with bus.sender(self.queue) as sender:

            async def is_accepted() -> bool:
                try:
                    await self.send(sender)
                except ServiceBusServerBusyError:
                    return False
                return True

            await until("there is room again", is_accepted, WITHIN_S)


async def complete(bus: Bus, queue: str, wanted: int) -> list[str]:
    """Receive so many and settle each."""
    ids: list[str] = []
    async with bus.receiver(queue, prefetch_count=0) as receiver:
        while len(ids) < wanted:
            found = await receiver.receive_messages(
                max_message_count=min(10, wanted - len(ids)), max_wait_time=10
            )
            assert found, f"{len(ids)} of {wanted} came"
            for message in found:
                assert text(message) == BODY
                await receiver.complete_message(message)
                ids.append(message.message_id)
    return ids


def health(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.http}/health") as reply:  # 200, or it raises
        found: dict[str, Any] = json.load(reply)
    return found


def has_room(server: Server) -> float:
    with urllib.request.urlopen(f"{server.http}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    [line] = [line for line in lines if line.startswith("postbus_store_has_room")]
    return float(line.split()[-1])


def fill(disk: Path) -> None:
    """Another program takes every block that is left."""
    with (disk / "other").open("ab", buffering=0) as other:
        try:
            while True:
                other.write(bytes(4096))
        except OSError:
            pass


async def test_consumers_drain_a_full_disk_and_senders_go_on_by_themselves(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue(lock_s=60)
    bus, sender = open_bus(server), Sender(queue)
    received: list[str] = []
    for _ in range(2):

        async def is_full() -> bool:
            refusal = await sender.until_refused(bus)
            assert isinstance(refusal, ServiceBusServerBusyError)
            assert "no room for new messages" in str(refusal)
            # What was completed before may have made some room by now: then more is sent.
            return bool(health(server)["status"] == "degraded")

        await until("the disk is full", is_full, WITHIN_S)

        # Looking, receiving and settling go on.
        assert len(await bus.peek(queue)) >= 1
        waiting = len(sender.accepted) - len(received)
        assert waiting > 50, "the most part of the disk is for messages"
        received += await complete(bus, queue, waiting)
        assert received == sender.accepted, "none is missing, and none that was refused is there"

        await sender.until_accepted(bus)
        await until("said so", lambda: _equal(has_room, server, 1.0), WITHIN_S)


async def _equal(read: Callable[[Server], float], server: Server, value: float) -> bool:
    return (await asyncio.to_thread(read, server)) == value


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_a_start_on_a_full_disk_serves_what_is_there(
    server: Server, open_bus: Callable[..., Bus], disk: Path, ending: str
) -> None:
    queue = Administration(server.connection_string).make_queue(lock_s=60)
    sender = Sender(queue)
    await sender.until_refused(open_bus(server))
    fill(disk)
    assert os.statvfs(disk).f_bavail == 0
    if ending == "stop":
        server.stop()
    else:
        server.kill()
    fill(disk)
    server.start()

    assert "disk is full" in server.log.read_text()
    assert has_room(server) == 0.0
    assert health(server)["status"] == "degraded"
    bus = open_bus(server)
    count = len(sender.accepted)
    assert isinstance(await sender.until_refused(bus), ServiceBusServerBusyError)
    assert len(sender.accepted) == count, "not one"
    half = len(sender.accepted) // 2
    received = await complete(bus, queue, half)
    # An entity can be deleted and made on a full disk, and lists are answered.
    administration = Administration(server.connection_string)
    assert [each.name for each in administration.client.list_queues()] == [queue]
    other = administration.make_queue()
    administration.client.delete_queue(other)
    received += await complete(bus, queue, len(sender.accepted) - half)
    assert received == sender.accepted

    (disk / "other").unlink()
    await sender.until_accepted(bus)


async def test_no_message_comes_in_by_any_way_where_the_disk_is_full(
    server: Server, open_bus: Callable[..., Bus], disk: Path
) -> None:
    administration = Administration(server.connection_string)
    queue, other = administration.make_queue(), administration.make_queue()
    bus = open_bus(server)
    assert len(await bus.peek(queue)) == 0
    fill(disk)

    async def is_full() -> bool:
        return await asyncio.to_thread(has_room, server) == 0.0

    await until("the disk is full", is_full, WITHIN_S)
    async with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusServerBusyError, match="no room"):
            await sender.send_messages(ServiceBusMessage("sent"))
        with pytest.raises(ServiceBusServerBusyError, match="no room"):
            await sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC))
    with pytest.raises(Refused, match="no room"):
        await asyncio.to_thread(send_through, server, queue, other)
    assert all(await asyncio.gather(*(is_empty(bus, each) for each in (queue, other))))


def send_through(server: Server, queue: str, destination: str) -> None:
    with Transacting(server) as client:
        client.send(client.sender(queue, destination=destination), "x")


async def is_empty(bus: Bus, queue: str) -> bool:
    return not await bus.peek(queue)


async def test_a_disk_that_somebody_else_fills_takes_settlements(
    server: Server, open_bus: Callable[..., Bus], disk: Path
) -> None:
    """Nothing is noticed before a write fails; the reserve is what it is tried again with."""
    queue = Administration(server.connection_string).make_queue(lock_s=60)
    bus, sender = open_bus(server), Sender(queue)
    async with bus.sender(queue) as link:
        for _ in range(40):
            await sender.send(link)
    fill(disk)
    received = await complete(bus, queue, len(sender.accepted))
    assert received == sender.accepted
    assert isinstance(await sender.until_refused(bus), ServiceBusServerBusyError)
    (disk / "other").unlink()
    await sender.until_accepted(bus)

"""Sends that are repeated across restarts and kills: each message comes once, in its order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage

from postbus.amqp.events import Disposed
from postbus.amqp.frames.outcomes import Accepted
from postbus.amqp.sections import Properties, encode_data, encode_properties
from tests.e2e.storm import TROUBLE, seed_of_storm
from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.raw_client import RawClient
from tests.support.server import Server

KILLS = (
    pytest.param(3, marks=pytest.mark.timeout(200)),
    pytest.param(50, marks=(pytest.mark.long, pytest.mark.timeout(1_500))),
)


def make_queue(server: Server, **properties: object) -> str:
    administration = Administration(server.connection_string)
    name = administration.make_queue(requires_duplicate_detection=True, **properties)
    administration.close()
    return name


def pipeline(server: Server, queue: str, ids: list[str]) -> None:
    """Send them without waiting for answers, as far as credit goes; all are accepted."""
    with RawClient(server) as client:
        link = client.sender(queue)
        sent = accepted = 0
        while accepted < len(ids):
            while sent < len(ids) and link.sendable:
                payload = encode_properties(Properties(message_id=ids[sent])) + encode_data(b"x")
                link.send(sent.to_bytes(4, "big"), payload)
                sent += 1
            client.write()
            for event in client.read():
                if isinstance(event, Disposed):
                    assert isinstance(event.state, Accepted)
                    accepted += len(event.deliveries)


async def test_a_pipelined_senders_messages_keep_their_order(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """After a start every id may be known: each one is looked up, with the others behind it."""
    queue = make_queue(server)
    known = [f"known {n}" for n in range(2_000)]
    mixed = [f"new {n}" if n % 2 else known[n // 2] for n in range(4_000)]
    pipeline(server, queue, known)
    server.stop()
    server.start()
    pipeline(server, queue, mixed)
    pipeline(server, queue, mixed)
    found = await open_bus(server).receive(queue, count=4_000)
    assert [each.message_id for each in found] == [*known, *mixed[1::2]]


@pytest.mark.parametrize("kills", KILLS)
async def test_everything_sent_again_after_each_kill_comes_once(
    server: Server, open_bus: Callable[..., Bus], kills: int
) -> None:
    """R-SETTLE-11: a sender that does not know what arrived repeats all of it."""
    queue = make_queue(server)
    chance = random.Random(seed_of_storm())
    batches = [[f"{n}-{m}" for m in range(20)] for n in range(20)]

    async def send_all(bus: Bus) -> None:
        async with bus.sender(queue) as sender:
            for batch in batches:
                await sender.send_messages([ServiceBusMessage(x, message_id=x) for x in batch])

    for _ in range(kills):
        bus = open_bus(server, retry_total=0)
        sending = asyncio.ensure_future(send_all(bus))
        await asyncio.sleep(chance.uniform(0.05, 1.0))
        await asyncio.to_thread(server.kill)
        with contextlib.suppress(*TROUBLE):
            await sending
        await asyncio.to_thread(server.start)
    await send_all(open_bus(server))
    found = texts(await open_bus(server).receive(queue, count=500))
    assert sorted(found) == sorted(name for batch in batches for name in batch)

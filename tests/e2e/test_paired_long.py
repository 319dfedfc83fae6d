"""A hundred thousand messages through outages of the primary, with syphons that are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError

from postbus.paired import PathState
from tests.e2e.test_syphon import Syphons, backlog_size
from tests.support.administration import Administration
from tests.support.bus import Bus
from tests.support.paired import PairedBus, ids, sent, until
from tests.support.server import Server

COUNT = 100_000
BATCH = 200
SESSIONS = 8


async def send_all(pair: PairedBus, to: str, first: int, last: int, in_session: bool) -> None:
    """Send each batch until it is acknowledged, as an application would."""
    kind = "topic" if to == "news" else "queue"
    async with pair.sender(to, kind) as sender:
        for start in range(first, last, BATCH):
            session = {"session_id": f"s{start // BATCH % SESSIONS}"} if in_session else {}
            batch = [sent(number, **session) for number in range(start, start + BATCH)]
            while True:
                try:
                    await sender.send_messages(batch)
                    break
                except ServiceBusError:
                    await asyncio.sleep(0.1)


async def receive_all(bus: Bus, found: Counter[str], count: int) -> None:
    """From the queue and the subscription without sessions, and from each session."""

    async def from_one(receiver_of: Callable[[], object]) -> None:
        while found.total() < count:
            try:
                receiver: object = receiver_of()
                async with receiver:  # type: ignore[attr-defined]
                    while more := await receiver.receive_messages(500, 2):  # type: ignore[attr-defined]
                        found.update(ids(more))
            except ServiceBusError:
                await asyncio.sleep(0.2)

    client, mode = bus._client, {"receive_mode": "receiveanddelete"}
    await asyncio.gather(
        from_one(lambda: client.get_queue_receiver("plain", **mode)),
        from_one(lambda: client.get_subscription_receiver("news", "audit", **mode)),
        *(
            from_one(
                lambda name=f"s{n}": client.get_queue_receiver("sessions", session_id=name, **mode)
            )
            for n in range(SESSIONS)
        ),
    )


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_r_pair_10_a_hundred_thousand_messages_arrive_exactly_once(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    """R-PAIR-10.

    Queues, topics and sessions with duplicate detection; kills and freezes of the primary; ten
    kills of the syphon."""
    primary = make_server(data="primary").start()
    secondary = make_server(data="secondary").start()
    setup = Administration(primary.connection_string)
    setup.client.create_queue("plain", requires_duplicate_detection=True)
    setup.client.create_queue("sessions", requires_duplicate_detection=True, requires_session=True)
    setup.client.create_topic("news", requires_duplicate_detection=True)
    setup.client.create_subscription("news", "audit")
    setup.close()
    ends = primary.connection_string, secondary.connection_string
    pair = PairedBus("async", *ends, failover_interval=0.5, send_timeout=8)
    await pair.call("pair")
    syphons = Syphons(pair, primary, secondary, tmp_path / "syphon.log")
    third = COUNT // BATCH // 3 * BATCH
    sending = [
        asyncio.create_task(send_all(pair, "plain", 0, third, False)),
        asyncio.create_task(send_all(pair, "news", third, 2 * third, False)),
        asyncio.create_task(send_all(pair, "sessions", 2 * third, COUNT, True)),
    ]
    for kill in range(10):
        process = syphons.start()
        await asyncio.sleep(1.5)
        if kill % 2:
            primary.signal(signal.SIGSTOP)
            await asyncio.sleep(3)
            primary.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(primary.kill)
            await asyncio.sleep(1)
            await asyncio.to_thread(primary.start)
        await asyncio.sleep(2)
        process.kill()
        process.wait()
    assert PathState.FAILED_OVER in pair.states
    await asyncio.gather(*sending)
    diverted = sum(each.diverted for each in await pair.call("status"))
    await pair.close()
    syphons.start()
    bus = Bus("async", primary.connection_string, retry_total=3)
    found: Counter[str] = Counter()
    administration = Administration(secondary.connection_string)
    await until(lambda: backlog_size(administration, pair) == 0, 1_500)
    administration.close()
    # Only now: the SDK loses messages that come while it closes a receiver that deletes.
    await receive_all(bus, found, COUNT)
    await bus.close()
    syphons.discard()
    assert diverted > 0
    assert found.total() == len(found) == COUNT, "each of them once"

"""Backlogs of many entities take no more memory than the budget of their windows."""

from __future__ import annotations

from collections.abc import Callable

from azure.servicebus import ServiceBusReceiveMode

from tests.e2e.test_hostile_peers import MESSAGE, fill, resident_mb
from tests.support.administration import Administration
from tests.support.bus import Bus
from tests.support.server import Server

QUEUES = 8
BACKLOG_BYTES = 12 << 20
GROWTH_MAX_MB = 60
"""The budget of 4 MB, deltas and minimums, and what Python and the memory allocator add to it."""


async def test_eight_backlogs_take_the_memory_of_one_budget(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus]
) -> None:
    server = make_server("--windows-max-bytes", str(4 << 20))
    server.start()
    administration = Administration(server.connection_string)
    queues = [administration.make_queue() for _ in range(QUEUES)]
    count = BACKLOG_BYTES // len(MESSAGE)
    fill(server, queues[0], 50)
    before = resident_mb(server)
    for queue in queues:
        fill(server, queue, count)
    assert resident_mb(server) - before < GROWTH_MAX_MB, f"{QUEUES * BACKLOG_BYTES >> 20} MB wait"
    bus = open_bus(server)
    for queue in queues[:2]:
        received = 0
        async with bus.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as it:
            while received < 300:
                received += len(await it.receive_messages(100, max_wait_time=10))
    assert resident_mb(server) - before < GROWTH_MAX_MB

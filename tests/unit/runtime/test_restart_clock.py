"""A server that starts after its wall clock was set back goes on where the journal ends."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from postbus.broker import browse
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import MAIN
from postbus.config.content import Content, Queue
from postbus.model.description import QueueDescription
from postbus.ops.config_file import NamespaceConfig
from postbus.runtime.clock import SystemClock
from postbus.runtime.requests import Call
from postbus.server import ClockWrong, Server
from postbus.settings import Settings
from postbus.store.sqlite.folder import DataFolder
from tests.support.operations import Do

T0 = 1_700_000_000_000
HOUR = 3_600_000
_NS = 1_000_000


async def life(data: Path, wall: int, *bodies: bytes) -> list[int]:
    """Start at this time by the wall, send, and stop; returns when each message came."""
    settings = Settings(data=data, port=0, admin_port=0, shutdown_grace_ms=0)
    config = NamespaceConfig(content=Content((Queue("orders", QueueDescription()),)))
    clock = partial(SystemClock, wall_ns=lambda: wall * _NS, monotonic_ns=lambda: 0)
    with closing(DataFolder(data, wall)) as folder:
        server = Server(settings, config, folder, clock)
        await server.start()
        await ask(server, lambda q, now, _: q.send([Message(body) for body in bodies], now))
        found = await ask(
            server, lambda q, _, pages: browse.peek(q.queues[0], MAIN, 0, 9, 999, pages)
        )
        server._signalled()
        await server.serve()
    return [message.enqueued_at for message, _ in found]


async def ask(server: Server, call: Any) -> Any:
    fragment = server.namespace.queues()[0].only_fragment
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = Call(fragment, Do(call), future.set_result, future.set_exception)
    server.namespace.runtime(fragment).submit(request)
    return await future


@pytest.mark.usefixtures("capsys")
async def test_time_goes_on_after_a_restart_with_a_clock_that_was_set_back(tmp_path: Path) -> None:
    assert await life(tmp_path, T0 + HOUR, b"one") == [T0 + HOUR]
    # Nothing passes on the monotonic clock, so the time stands where the journal ended.
    assert await life(tmp_path, T0, b"two") == [T0 + HOUR] * 2
    assert await life(tmp_path, T0 + HOUR + 1, b"three") == [T0 + HOUR] * 2 + [T0 + HOUR + 1]


@pytest.mark.usefixtures("capsys")
async def test_a_clock_that_is_days_behind_is_not_believed(tmp_path: Path) -> None:
    await life(tmp_path, T0 + 25 * HOUR, b"one")
    with pytest.raises(ClockWrong, match=r"90000000 ms behind .* clock_behind_max_ms"):
        await life(tmp_path, T0, b"two")
    assert len(await life(tmp_path, T0 + HOUR, b"two")) == 2

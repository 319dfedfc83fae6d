"""A connection that is gone is gone: nothing of it waits for the garbage collector.

The collector looks at everything that is alive, which took 0.42 s with a large store; so nothing
may need it that comes and goes with connections.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from postbus.amqp.events import Disposed, MessageReceived
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.config.content import Content, Queue
from postbus.model.description import QueueDescription
from postbus.ops.config_file import NamespaceConfig
from postbus.runtime.clock import SystemClock
from postbus.server import Server
from postbus.settings import Settings
from postbus.store.memory.namespace_data import MemoryData
from tests.support.carriers import CARRIERS, make_local_ca
from tests.support.raw_client import RawClient
from tests.support.raw_socket import connect
from tests.support.transacting import Transacting

OURS = (
    "postbus.amqp",
    "postbus.gateway",
    "postbus.http",
    "postbus.net",
    "postbus.runtime",
    "uvicorn",
    "websockets",
    "httptools",
    "ssl",
)
# What the process has or is given for good, whoever comes.
KEPT = {"LoadedFragment", "EntityMeter", "Sections", "SSLContext", "TLSVersion", "Options"}
VISITS_COUNT = 4
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> Counter[str]:
    """The objects there are of what connections are made of, by class."""
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if str(kind.__module__).startswith(OURS) and kind.__name__ not in KEPT:
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return found


def use_amqp(server: Any, carrier: str) -> None:
    """Leave in the middle of everything."""
    with RawClient(server, carrier) as client:
        outgoing = client.sender("orders")
        body = encode_properties(Properties(message_id="m")) + encode_data(b"x" * 100_000)
        for tag in (b"1", b"2"):
            outgoing.send(tag, body)
            client.write()
            client.until(Disposed)
        incoming = client.receiver("orders")
        incoming.grant(10)
        client.write()
        client.until(MessageReceived)
        node = "orders/$management"
        client.receiver(node)
        asking = client.sender(node)
        question = (
            encode_properties(Properties(message_id="p", reply_to=node))
            + encode_application_properties({"operation": "com.microsoft:peek-message"})
            + encode_amqp_value({"from-sequence-number": 0, "message-count": 1})
        )
        asking.send(b"q", question)
        client.write()
        client.until(Disposed)
        outgoing.send(b"3", body)
        client.socket.sendall(client.core.data_to_send()[:70_000])


def use_transactions(server: Any, carrier: str) -> None:
    with Transacting(server, carrier=carrier) as client:
        coordinator = client.coordinator()
        client.declare(coordinator)


def use_http(server: Any, carrier: str) -> None:
    below: socket.socket = connect(server, carrier.replace("websocket", "tcp"))
    with below:
        for path in (b"health", b"metrics", b"orders"):
            below.sendall(GET % path)
            below.recv(200_000)
        below.sendall(b"PUT /orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nabc")


def say_nothing(server: Any, carrier: str) -> None:
    connect(server, carrier).close()


def break_off_tls(server: Any, carrier: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as below:
        below.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100)


Use = Callable[[Any, str], None]
VISITS: list[tuple[str, Use]] = [
    *[(carrier, use_amqp) for carrier in ("tcp", *CARRIERS)],
    *[(carrier, say_nothing) for carrier in ("tcp", *CARRIERS)],
    *[("tcp", use_http), ("tls", use_http), ("tcp", use_transactions), ("tcp", break_off_tls)],
]


@pytest.mark.parametrize(("carrier", "use"), VISITS)
@pytest.mark.usefixtures("capsys")
def test_what_a_connection_was_made_of_goes_with_it(tmp_path: Path, carrier: str, use: Use) -> None:
    async def story() -> None:
        make_local_ca(tmp_path)
        settings = Settings(
            data=tmp_path, ephemeral=False, port=0, admin_port=0, shutdown_grace_ms=0
        )
        config = NamespaceConfig(content=Content((Queue("orders", QueueDescription()),)))
        server = Server(settings, config, MemoryData(SystemClock().now()))
        await server.start()
        try:
            await visited(server)
        finally:
            server._signalled()
            await server.serve()

    async def visited(server: Server) -> None:
        sockets = server._listener._servers[0].sockets
        there = SimpleNamespace(port=sockets[0].getsockname()[1], data=tmp_path)
        meter = server._metrics.connections

        async def visit() -> None:
            await asyncio.to_thread(use, there, carrier)
            async with asyncio.timeout(10):
                while meter.open_count:
                    await asyncio.sleep(0.01)
            # What was under way for it is done.
            await asyncio.sleep(0.05)

        await visit()  # once for what is made on first use and stays
        with without_collector():
            before = alive()
            for _ in range(VISITS_COUNT):
                await visit()
            # The last of them may still be on its way: in a reply, or in a variable of the loop.
            for _ in range(30):
                many = {k: n for k, n in (alive() - before).items() if n >= VISITS_COUNT}
                if not many:
                    break
                await asyncio.sleep(0.1)
        assert many == {}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as on:
        on.run(story())

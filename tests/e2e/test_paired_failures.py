"""Each row of the table of failures, provoked on a real server with both flavours of the SDK.

The table decides what is an outage (R-PAIR-04). It runs again with each version of the SDK.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from postbus.paired.failures import Failure, failure_of
from tests.support.administration import Administration
from tests.support.bus import FLAVOURS, Bus
from tests.support.paired import PairedBus
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("failures") / "data", "--queue", "orders").start()
    yield server
    server.discard()


@pytest.fixture(scope="module")
def administration(server: Server) -> Iterator[Administration]:
    administration = Administration(server.connection_string)
    yield administration
    administration.close()


@pytest.fixture(params=FLAVOURS)
async def open_bus(
    request: pytest.FixtureRequest, server: Server
) -> AsyncIterator[Callable[..., Bus]]:
    opened: list[Bus] = []

    def make(connection_string: str = "", **options: Any) -> Bus:
        opened.append(Bus(request.param, connection_string or server.connection_string, **options))
        return opened[-1]

    yield make
    for bus in opened:
        await bus.close()


async def failure(bus: Bus, queue: str, message: ServiceBusMessage | None = None) -> Failure:
    sender = bus.sender(queue)
    try:
        await sender.send_messages(message or ServiceBusMessage("x"), timeout=5)
    except Exception as error:
        return failure_of(error)
    finally:
        await sender.close()
    raise AssertionError("the message was accepted")


async def test_nobody_listens(open_bus: Callable[..., Bus], server: Server) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        bus = open_bus(server.connection_string.replace(str(server.port), port))
        assert await failure(bus, "orders") is Failure.UNREACHABLE


async def test_no_host_has_this_name(open_bus: Callable[..., Bus], server: Server) -> None:
    bus = open_bus(server.connection_string.replace("localhost", "nobody.invalid"))
    assert await failure(bus, "orders") is Failure.UNREACHABLE


async def test_the_server_is_killed_under_an_open_link(
    open_bus: Callable[..., Bus], tmp_path: Path
) -> None:
    server = Server(tmp_path / "data", "--queue", "orders").start()
    try:
        sender = await open_bus(server.connection_string).open_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"))
        server.kill()
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its kind is what is asked
            await sender.send_messages(ServiceBusMessage("x"), timeout=5)
        assert failure_of(raised.value) is Failure.UNREACHABLE
    finally:
        server.discard()


async def test_the_server_is_frozen_under_an_open_link(
    open_bus: Callable[..., Bus], server: Server
) -> None:
    sender = await open_bus().open_sender("orders")
    await sender.send_messages(ServiceBusMessage("x"))
    server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its kind is what is asked
            await sender.send_messages(ServiceBusMessage("x"), timeout=2)
        assert failure_of(raised.value) is Failure.UNREACHABLE
    finally:
        server.signal(signal.SIGCONT)


async def test_the_key_is_wrong(open_bus: Callable[..., Bus], server: Server) -> None:
    wrong = server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=A")
    assert await failure(open_bus(wrong), "orders") is Failure.DENIED


async def test_the_entity_does_not_exist(open_bus: Callable[..., Bus]) -> None:
    assert await failure(open_bus(), "nowhere") is Failure.GONE


async def test_the_entity_is_deleted_under_an_open_link(
    open_bus: Callable[..., Bus], administration: Administration
) -> None:
    """Without a retry the SDK only says that the link is gone."""
    queue = administration.make_queue()
    sender = await open_bus(retry_total=1).open_sender(queue)
    await sender.send_messages(ServiceBusMessage("x"))
    administration.client.delete_queue(queue)
    await asyncio.sleep(0.5)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - its kind is what is asked
        await sender.send_messages(ServiceBusMessage("x"), timeout=5)
    assert failure_of(raised.value) is Failure.GONE


async def test_the_entity_is_disabled(
    open_bus: Callable[..., Bus], administration: Administration
) -> None:
    queue = administration.make_queue()
    administration.update(queue, status="SendDisabled")
    assert await failure(open_bus(), queue) is Failure.DISABLED


async def test_the_message_is_too_large(open_bus: Callable[..., Bus]) -> None:
    large = ServiceBusMessage(b"x" * 300_000)
    assert await failure(open_bus(), "orders", large) is Failure.TOO_LARGE


async def test_the_message_lacks_a_session(
    open_bus: Callable[..., Bus], administration: Administration
) -> None:
    queue = administration.make_queue(requires_session=True)
    assert await failure(open_bus(), queue) is Failure.REFUSED


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_r_pair_04_a_disabled_entity_or_a_large_message_is_no_outage(
    flavour: str, server: Server, administration: Administration, tmp_path: Path
) -> None:
    """R-PAIR-04."""
    secondary = Server(tmp_path / "secondary").start()
    queue = administration.make_queue()
    administration.update(queue, status="SendDisabled")
    ends = server.connection_string, secondary.connection_string
    pair = PairedBus(flavour, *ends, failover_interval=0)
    try:
        for to, message in (
            (queue, ServiceBusMessage("x")),
            ("orders", ServiceBusMessage(b"x" * 300_000)),
        ):
            sender = pair.sender(to)
            with pytest.raises(Exception) as raised:  # noqa: PT011 - its kind is what is asked
                await sender.send_messages(message)
            assert failure_of(raised.value) in (Failure.DISABLED, Failure.TOO_LARGE)
        assert pair.changes == []
    finally:
        await pair.close()
        secondary.discard()

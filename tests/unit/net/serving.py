"""A listener on a real port, with stand-ins for the protocols behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from typing import Any, cast

from postbus.errors import ServiceBusError
from postbus.net.budgets import Bounds, Budgets
from postbus.net.http_protocol import HttpHost, HttpLimits
from postbus.net.listener import Listener
from postbus.net.places import Place, Places
from postbus.observe.logs import TrackingIds
from postbus.observe.meters import ConnectionMeter
from postbus.tls.certificates import Certificates

AMQP_OPENING = b"AMQP\x00\x01\x00\x00"
GET = b"GET /greeting HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIMITS = HttpLimits(
    header_max_bytes=16_384,
    body_max_bytes=100_000,
    request_timeout_ms=5_000,
    keep_alive_timeout_ms=5_000,
    websocket_frame_max_bytes=100_000,
)


BOUNDS = Bounds(1 << 26, 1 << 26, 1 << 26)


class Echo(asyncio.Protocol):
    """Stands for AMQP: says back what it hears."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"echo:" + data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.place.release()

    def weigh(self) -> None:
        self.place.hold(0, 0)

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        self._transport.close()


async def greet(scope: Any, receive: Any, send: Any) -> None:
    """Stands for the HTTP application: reads the whole body and tells its length."""
    if scope["path"] == "/early":
        await _reply(send, 401, b"no token")
        return
    if scope["path"] == "/large":
        await _reply(send, 200, b"x" * 8_000_000)
        return
    length, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        length += len(event["body"])
        more = event["more_body"]
    if scope["path"] == "/slow":
        await asyncio.sleep(0.2)
    await _reply(send, 200, f"{scope['method']} {length}".encode())


async def _reply(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def place_for(below: Any, meter: ConnectionMeter) -> Place:
    """A place of its own for a protocol without a listener."""
    places = Places(1, Budgets(BOUNDS, lambda: 0), lambda: 0, meter)
    place = places.take(below, Echo(cast(Any, None)))
    assert place is not None
    return place


class Harness:
    def __init__(self, limits: HttpLimits, check_host: bool, **options: Any) -> None:
        self.meter = ConnectionMeter()
        tracking = TrackingIds("ns", lambda: 0, lambda: "id")
        self.http = HttpHost(
            options.get("app", greet),
            limits,
            check_host=check_host,
            tracking=tracking,
            meter=self.meter,
            known_as=options.get("known_as", tuple),
        )
        self.places = Places(
            options.get("connections_max", 50),
            Budgets(options.get("bounds", BOUNDS), lambda: 0),
            lambda: 0,
            self.meter,
        )
        self.listener = Listener(
            amqp=options.get("amqp", Echo),
            http=self.http,
            places=self.places,
            first_bytes_timeout_ms=options.get("first_bytes_timeout_ms", 5_000),
            clock=lambda: 0,
            certificates=options.get("certificates", Certificates(None)),
            allow_plaintext=options.get("allow_plaintext", True),
        )
        self.port = 0

    async def connect(self, trust: SSLContext | None = None) -> Client:
        return Client(
            *await asyncio.open_connection(
                "127.0.0.1",
                self.port,
                ssl=trust,
                server_hostname="localhost" if trust is not None else None,
            )
        )

    async def ask(self, *pieces: bytes) -> bytes:
        """Send on a connection of its own, and return all that comes back until it is closed."""
        client = await self.connect()
        try:
            for piece in pieces:
                await client.send(piece)
            return await client.rest()
        finally:
            await client.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def rest(self) -> bytes:
        received = b""
        with suppress(ConnectionError):
            while data := await asyncio.wait_for(self.reader.read(65_536), 10):
                received += data
        return received

    async def reply(self) -> bytes:
        """One reply with a content-length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def serving(
    limits: HttpLimits = LIMITS, *, check_host: bool = True, **options: Any
) -> AsyncIterator[Harness]:
    harness = Harness(limits, check_host, **options)
    harness.port = await harness.listener.listen("127.0.0.1", 0)
    try:
        yield harness
    finally:
        harness.listener.stop()
        await harness.listener.drain(1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)

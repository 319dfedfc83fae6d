"""Bytes that no client should send: refused narrowly, bounded, and unnoticed by everybody else."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from proton import ProtonException

from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.proton_client import plain_connection
from tests.support.server import Server
from tests.support.waiting import until_blocking

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
PLAIN = b"\x00RootManageSharedAccessKey\x00SAS_KEY_VALUE"


def frame(body: bytes, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def sasl_plain() -> bytes:
    """sasl-init with PLAIN, spelled out: described list, code 0x41."""
    mechanism = b"\xa3\x05PLAIN"
    response = b"\xa0" + bytes([len(PLAIN)]) + PLAIN
    items = mechanism + response
    listed = b"\xc0" + bytes([len(items) + 1, 2]) + items
    return frame(b"\x00\x53\x41" + listed, kind=1)


def open_frame() -> bytes:
    """open with container-id and host name only."""
    items = b"\xa1\x01x\xa1\x09localhost"
    return frame(b"\x00\x53\x10\xc0" + bytes([len(items) + 1, 2]) + items)


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def closed_by_server(connection: socket.socket) -> bytes:
    """Read until the server closes; what it said before. A time-out fails the test."""
    said = b""
    try:
        while more := connection.recv(65536):
            said += more
    except ConnectionResetError:
        pass
    return said


def resident_mb(server: Server) -> float:
    status = Path(f"/proc/{server.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


OPENED = SASL + sasl_plain() + AMQP + open_frame()
WRONG = {
    "garbage": bytes(range(256)),
    "another protocol": b"SSH-2.0-OpenSSH_9.0\r\n",
    "another version of AMQP": b"AMQP\x00\x02\x00\x00",
    "a frame before any header": frame(b"\x00\x53\x10\xc0\x01\x00"),
    "an unknown mechanism": SASL + frame(b"\x00\x53\x41\xc0\x08\x01\xa3\x05CRAM5", kind=1),
    "a frame of two gigabytes": OPENED + struct.pack(">IBBH", 2**31, 2, 0, 0),
    "a frame shorter than its header": OPENED + struct.pack(">IBBH", 4, 2, 0, 0),
    "a data offset beyond the frame": OPENED + struct.pack(">IBBH", 8, 200, 0, 0),
    "a body that is no performative": OPENED + frame(b"\x40"),
    "an unknown performative": OPENED + frame(b"\x00\x53\x7f\x45"),
    "a list that ends too early": OPENED
    + frame(b"\x00\x53\x11\xd0\x00\x00\xff\xff\x00\x00\x00\x09"),
    "a begin with the wrong types": OPENED + frame(b"\x00\x53\x11\xc0\x05\x04\xa1\x01a\x40\x40"),
    "a transfer without a session": OPENED + frame(b"\x00\x53\x14\xc0\x03\x01\x52\x01", channel=9),
    "a second open": OPENED + open_frame(),
    "HTTP that is none": b"GET nonsense\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_connection_that_breaks_the_protocol_is_closed_and_nobody_else_notices(
    server: Server, open_bus: Callable[..., Bus], kind: str
) -> None:
    """The narrowest refusal that is legal; other clients go on."""
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    sender = await bus.open_sender(queue)
    await sender.send_messages(ServiceBusMessage("before"))

    with closing(connect(server)) as connection:
        connection.sendall(WRONG[kind])
        said = closed_by_server(connection)
    if WRONG[kind].startswith(OPENED):
        assert b"amqp:" in said, "a close with a condition comes before the end"

    await sender.send_messages(ServiceBusMessage("after"))
    assert texts(await bus.peek(queue)) == ["before", "after"]


async def test_many_bad_connections_leave_nothing_behind(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """The process does not grow."""
    queue = Administration(server.connection_string).make_queue()
    chance = random.Random(7)

    def storm(rounds: int) -> None:
        for _ in range(rounds):
            with closing(connect(server)) as connection:
                noise = chance.randbytes(chance.randrange(1, 4000))
                connection.sendall(chance.choice((b"", SASL, AMQP, OPENED)) + noise)

    storm(50)
    before = resident_mb(server)
    storm(400)
    bus = open_bus(server)
    await bus.send(queue, ServiceBusMessage("fine"))
    assert texts(await bus.receive(queue)) == ["fine"]
    until_blocking("memory is as before", lambda: resident_mb(server) < before + 25)


def test_a_connection_that_says_nothing_is_dropped(make_server: Callable[..., Server]) -> None:
    server = make_server("--first-bytes-timeout-ms", "500").start()
    with closing(connect(server)) as connection:
        assert closed_by_server(connection) == b""


def test_a_connection_that_never_authenticates_is_dropped(
    make_server: Callable[..., Server],
) -> None:
    """wire §2.2: Azure gives it 20 s."""
    server = make_server("--authentication-timeout-ms", "500").start()
    anonymous = b"\x00\x53\x41\xc0\x0c\x01\xa3\x09ANONYMOUS"
    with closing(connect(server)) as connection:
        connection.sendall(SASL + frame(anonymous, kind=1) + AMQP + open_frame())
        assert b"amqp:" in closed_by_server(connection)


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
    ],
    ids=["headers", "body"],
)
def test_an_unfinished_request_is_cut_off(
    make_server: Callable[..., Server], request_text: bytes
) -> None:
    server = make_server("--http-request-timeout-ms", "500").start()
    with closing(connect(server)) as connection:
        connection.sendall(request_text)
        closed_by_server(connection)


def test_headers_without_end_are_refused_and_not_kept(server: Server) -> None:
    before = resident_mb(server)
    with closing(connect(server)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(20_000):
                connection.sendall(b"X-Filler: " + b"f" * 1000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 431")
        assert resident_mb(server) < before + 5


def test_a_body_over_the_limit_is_refused(server: Server) -> None:
    with closing(connect(server)) as connection:
        connection.sendall(
            b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        )
        said = closed_by_server(connection)
        assert said.startswith((b"HTTP/1.1 413", b"HTTP/1.1 401", b"HTTP/1.1 400"))


def test_links_without_end_are_bounded(make_server: Callable[..., Server]) -> None:
    """A peer that opens links without end is refused the one past the bound."""
    server = make_server("--links-per-connection-max", "20").start()
    queue = Administration(server.connection_string).make_queue()
    opened = 0
    with plain_connection(server) as connection:
        try:
            while opened < 30:
                connection.create_sender(queue, name=f"link-{opened}")
                opened += 1
        except ProtonException as refused:
            why = str(refused)
    assert opened == 20
    assert "amqp:" in why
    assert "TrackingId:" in why

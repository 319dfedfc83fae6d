"""R-PIPE-02: readers of the feed that do not read hold neither memory nor anybody up."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from postbus.feed.service import PER_FRAGMENT_MAX
from tests.support import feed
from tests.support.administration import administration_client
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

QUEUES = ("a", "b", "c", "d")
READERS_EACH = PER_FRAGMENT_MAX - 1
"""One place is left for a reader who reads."""
ASKED = 8 << 20
ROOM_MB = 150
"""A slice and what lies in the buffers of the socket, for each; all they asked for is 480 MB."""


def resident_mb(server: Server) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1_024


def deaf(server: Server, token: str, queue: str, accept: str) -> socket.socket:
    """A client that asks for much and reads nothing of it."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.connect(("127.0.0.1", server.port))
    request = (
        f"GET /{queue}/$feed/0?from=0&max={ASKED} HTTP/1.1\r\n"
        f"Host: localhost\r\nAuthorization: {token}\r\nAccept: {accept}\r\n\r\n"
    )
    made.sendall(request.encode())
    return made


def connections(client: RestClient) -> int:
    """Those of HTTP that are open, this one among them."""
    text = client.request("GET", "/metrics").body.decode()
    found = re.search(r'postbus_connections\{protocol="http"\} (\d+)', text)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    ("accept", "count", "size"),
    [("*/*", 45, 200_000), ("*/*", 2, 7_000_000), ("application/x-ndjson", 4, 1_500_000)],
)
def test_slow_readers_are_given_little_and_cut_off(
    make_server: Callable[..., Server], accept: str, count: int, size: int
) -> None:
    """However large a message is, and so the batch that it is stored in."""
    flags = ("--http-request-timeout-ms", "3000", "--message-size-max-kb", "8192")
    server = make_server(*flags).start()
    with administration_client(server.connection_string) as admin:
        for queue in QUEUES:
            admin.create_queue(queue)
    with RestClient(server.connection_string) as client:
        for _ in range(count):
            for queue in QUEUES:
                assert client.send(queue, b"x" * size).status == 201
        assert len(feed.read_all(client, "a")) == count
        before = resident_mb(server)
        readers = [
            deaf(server, client.token, queue, accept)
            for queue in QUEUES
            for _ in range(READERS_EACH)
        ]
        # while they hang, everybody else goes on
        assert client.send("a", b"1").status == 201
        assert len(feed.read_all(client, "a")) == count + 1
        assert resident_mb(server) - before < ROOM_MB
        until_blocking("they are cut off", lambda: connections(client) == 1, within_s=30)
        for each in readers:
            each.close()
        assert len(feed.read_all(client, "a")) == count + 1

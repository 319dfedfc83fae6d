"""Peers that take and do not give: bounded, and other clients go on."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from azure.servicebus import ServiceBusMessage
from websockets.frames import CloseCode, Frame, Opcode

from postbus.amqp.events import Disposed, LinkDetached, MessageReceived
from postbus.amqp.frames.performatives import SND_SETTLED, Detach
from postbus.amqp.sections import Properties, encode_data, encode_properties
from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.carriers import CARRIERS, make_local_ca
from tests.support.raw_client import RawClient
from tests.support.raw_socket import connect
from tests.support.server import Server
from tests.support.waiting import until, until_blocking

MESSAGE = encode_properties(Properties(message_id="m")) + encode_data(b"x" * 10_000)


def resident_mb(server: Server) -> float:
    with open(f"/proc/{server.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 1e6


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    server = make_server()
    make_local_ca(server.data)
    return server.start()


@pytest.fixture
def administration(server: Server) -> Administration:
    return Administration(server.connection_string)


@pytest.fixture
def queue(administration: Administration) -> str:
    return administration.make_queue()


def fill(server: Server, queue: str, count: int) -> None:
    with RawClient(server) as client:
        link = client.sender(queue)
        confirmed = sent = 0
        while confirmed < count:
            while sent < count and link.sendable:
                link.send(sent.to_bytes(4, "big"), MESSAGE)
                sent += 1
            client.write()
            for event in client.read():
                if isinstance(event, Disposed):
                    confirmed += len(event.deliveries)


@pytest.mark.parametrize("carrier", ["tcp", *CARRIERS])
async def test_a_peer_that_never_reads_is_given_no_more_than_its_buffer(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], carrier: str
) -> None:
    """R-SETTLE-12: 40 MB wait for a peer with credit for all of it that reads nothing."""
    server = make_server("--write-buffer-max-bytes", "200000")
    make_local_ca(server.data)
    server.start()
    administration = Administration(server.connection_string)
    deaf, other = administration.make_queue(), administration.make_queue()
    fill(server, deaf, 4_000)
    with RawClient(server, carrier) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        link = client.receiver(deaf, SND_SETTLED)
        before = resident_mb(server)
        link.grant(4_000)
        client.write()
        bus = open_bus(server)
        for n in range(5):
            await bus.send(other, ServiceBusMessage(str(n)))
        assert texts(await bus.peek(other, 10)) == ["0", "1", "2", "3", "4"]
        assert resident_mb(server) - before < 30

        async def most_are_left() -> bool:
            return administration.counts(deaf).active_message_count > 3_000

        await until("most of the messages are still in the queue", most_are_left)


def test_a_peer_that_never_grants_credit_is_told_nothing_and_costs_little(
    server: Server, queue: str
) -> None:
    """Responses that wait for credit are bounded by their size (wire §6)."""
    fill(server, queue, 100)
    with RawClient(server) as client:
        node = f"{queue}/$management"
        client.receiver(node)
        requests = client.sender(node)
        from postbus.amqp.sections import encode_amqp_value, encode_application_properties

        payload = (
            encode_properties(Properties(message_id="p", reply_to=node))
            + encode_application_properties({"operation": "com.microsoft:peek-message"})
            + encode_amqp_value({"from-sequence-number": 0, "message-count": 25})
        )
        detached = None
        for n in range(5_000):
            if requests.sendable:
                requests.send(n.to_bytes(4, "big"), payload)
                client.write()
            for event in client.read():
                if isinstance(event, LinkDetached):
                    detached = event
            if detached is not None:
                break
        assert detached is not None and detached.error is not None
        assert detached.error.condition == "amqp:resource-limit-exceeded"
        assert "TrackingId:" in (detached.error.description or "")


@pytest.mark.parametrize("carrier", ["tcp", *CARRIERS])
def test_bytes_that_come_one_at_a_time_are_understood(
    server: Server, queue: str, carrier: str
) -> None:
    """Over TLS a record for each byte, over a WebSocket a frame for each."""
    with RawClient(server, carrier) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = client.sender(queue)
        link.send(
            b"tag", encode_properties(Properties(message_id="slow")) + encode_data(b"x" * 300)
        )
        for byte in client.core.data_to_send():
            client.socket.sendall(bytes((byte,)))
        assert client.until(Disposed).settled


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_stranger_that_says_nothing_is_dropped_whatever_it_came_by(
    make_server: Callable[..., Server], carrier: str
) -> None:
    server = make_server("--authentication-timeout-ms", "300", "--first-bytes-timeout-ms", "300")
    make_local_ca(server.data)
    server.start()
    connection = connect(server, carrier)
    with suppress(ssl.SSLEOFError):
        assert connection.recv(65_536) == b""
    connection.close()
    if carrier != "tls":
        assert connection.protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE


@pytest.mark.parametrize("carrier", ["websocket", "websocket_tls"])
async def test_a_peer_that_sends_pings_and_reads_nothing_is_not_listened_to(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], carrier: str
) -> None:
    """Every ping has to be answered (RFC 6455 5.5.2), and the answers would pile up."""
    server = make_server("--write-buffer-max-bytes", "65536")
    make_local_ca(server.data)
    server.start()
    queue = Administration(server.connection_string).make_queue()
    with RawClient(server, carrier) as client:
        client.sender(queue)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        below = client.socket.below
        below.settimeout(2)
        before = resident_mb(server)
        pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500
        with pytest.raises(TimeoutError):
            drown(below, pings, 200_000_000)
        assert resident_mb(server) - before < 20
        bus = open_bus(server)
        await bus.send(queue, ServiceBusMessage("others go on"))
        assert texts(await bus.peek(queue, 1)) == ["others go on"]


@pytest.mark.parametrize("carrier", ["websocket", "websocket_tls"])
async def test_a_flood_of_empty_frames_leaves_room_for_others(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], carrier: str
) -> None:
    """Six bytes each, and an object each to the parser."""
    server = make_server()
    make_local_ca(server.data)
    server.start()
    queue = Administration(server.connection_string).make_queue()
    with RawClient(server, carrier) as client:
        client.sender(queue)
        before = resident_mb(server)
        flood = threading.Thread(target=pour, args=(client.socket.below, 300_000))
        flood.start()
        bus = open_bus(server)
        for n in range(5):
            await bus.send(queue, ServiceBusMessage(str(n)))
        assert texts(await bus.peek(queue, 10)) == ["0", "1", "2", "3", "4"]
        flood.join(60)
        assert not flood.is_alive()
        assert resident_mb(server) - before < 30


def drown(below: socket.socket, data: bytes, size: int) -> None:
    """Send until the peer takes no more; the socket's time-out tells."""
    sent = 0
    while sent < size:
        sent += below.send(data)


def pour(below: socket.socket, count: int) -> None:
    below.settimeout(60)
    empty = Frame(Opcode.BINARY, b"").serialize(mask=True)
    for _ in range(count // 1_000):
        below.sendall(empty * 1_000)


def test_a_message_taken_while_its_receiver_leaves_is_not_lost(
    server: Server, queue: str, administration: Administration
) -> None:
    """R-SETTLE-05: what the broker did not send is not settled."""
    fill(server, queue, 50)
    received = 0
    for _ in range(30):
        with RawClient(server) as client:
            link = client.receiver(queue, SND_SETTLED)
            link.grant(1)
            client.write()
            # Behind the core's back: it would drop what still comes, and the test counts that.
            client.session.write(Detach(link.handle, closed=True))
            client.write()
            while True:
                events = client.read()
                received += sum(isinstance(event, MessageReceived) for event in events)
                if any(isinstance(event, LinkDetached) for event in events):
                    break

    def all_are_there() -> bool:
        return administration.counts(queue).active_message_count + received == 50

    until_blocking("every message was received or is in the queue", all_are_there)


@pytest.mark.parametrize("count", [200])
def test_strangers_who_ask_for_link_after_link_are_cut_off(server: Server, count: int) -> None:
    from postbus.amqp.connection import Connection
    from postbus.amqp.events import Closed
    from postbus.amqp.frames.performatives import ROLE_RECEIVER, Attach
    from postbus.amqp.frames.terminus import Source, Target
    from postbus.amqp.limits import Limits
    from postbus.amqp.receiving import ReceiverLink

    core = Connection(
        Limits(), container_id="stranger", server=False, now=0, mechanisms=["ANONYMOUS"]
    )
    core.open()
    session = core.begin()
    closed: Closed | None = None
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for n in range(count):
            session.attach(
                ReceiverLink,
                Attach(f"r{n}", 0, ROLE_RECEIVER, source=Source("secret"), target=Target("t")),
            )
        connection.sendall(core.data_to_send())
        while closed is None:
            for event in core.receive_data(connection.recv(65_536), 0):
                if isinstance(event, Closed):
                    closed = event
            connection.sendall(core.data_to_send())
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"

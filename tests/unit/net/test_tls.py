"""TLS on the one port: looked into, bounded, and demanded where it must be."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from postbus.net import listener as listening
from postbus.tls.certificates import CertificateFiles, Certificates
from tests.unit.net.serving import AMQP_OPENING, GET, Client, serving, until

CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture
def certificates(tls_folder: Path) -> Certificates:
    found = Certificates(CertificateFiles(tls_folder / "server.pem", tls_folder / "server.key"))
    found.start()
    return found


@pytest.fixture
def trust(tls_folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=tls_folder / "ca.pem")


async def echoed(client: Client, data: bytes) -> None:
    """Say it to the stand-in for AMQP, and hear it back."""
    await client.send(data)
    heard = b""
    while len(heard.replace(b"echo:", b"")) < len(data):
        more = await asyncio.wait_for(client.reader.read(65_536), 10)
        assert more
        heard += more
    assert heard.replace(b"echo:", b"") == data


# Looking inside


def test_amqp_and_http_are_recognised_inside(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            amqp, http = await bus.connect(trust), await bus.connect(trust)
            await echoed(amqp, AMQP_OPENING)
            await http.send(GET)
            assert (await http.reply()).endswith(b"GET 0")
            assert bus.meter.open == {"amqp": 1, "http": 1, "undecided": 0}
            assert bus.meter.carried["tls"] == 2
            plain = await bus.connect()
            await echoed(plain, AMQP_OPENING)
            assert bus.meter.carried == {"tcp": 1, "tls": 2, "websocket": 0, "websocket_tls": 0}
            for client in (amqp, http, plain):
                await client.close()
            await until(lambda: bus.meter.open_count == 0)
            assert sum(bus.meter.carried.values()) == 0

    run(story())


@pytest.mark.parametrize("split", range(1, 6))
def test_the_opening_inside_may_come_in_pieces(
    run: Any, certificates: Certificates, trust: ssl.SSLContext, split: int
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect(trust)
            await client.send(AMQP_OPENING[:split])
            await asyncio.sleep(0.01)
            await echoed_rest(client)
            await client.close()

    async def echoed_rest(client: Client) -> None:
        await client.send(AMQP_OPENING[split:])
        heard = b""
        while len(heard.replace(b"echo:", b"")) < len(AMQP_OPENING):
            heard += await asyncio.wait_for(client.reader.read(100), 10)

    run(story())


def test_a_hello_that_comes_byte_by_byte_and_with_the_first_request_behind_it(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    """The bytes read before TLS was put in are not lost, in whatever pieces they came."""

    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            for size in (1, 7, 100_000):
                incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                layer = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
                client = await bus.connect()
                client.writer.transport.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
                await hands_shaken(client, layer, incoming, outgoing, size)
                layer.write(GET)
                await pieces(client, outgoing.read(), size)
                reply = b""
                while not reply.endswith(b"GET 0"):
                    try:
                        reply += layer.read(65_536)
                    except ssl.SSLWantReadError:
                        incoming.write(await asyncio.wait_for(client.reader.read(65_536), 10))
                await client.close()

    async def hands_shaken(
        client: Client,
        layer: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        size: int,
    ) -> None:
        while True:
            try:
                layer.do_handshake()
                return
            except ssl.SSLWantReadError:
                await pieces(client, outgoing.read(), size)
                incoming.write(await asyncio.wait_for(client.reader.read(65_536), 10))

    async def pieces(client: Client, data: bytes, size: int) -> None:
        for start in range(0, len(data), size):
            await client.send(data[start : start + size])
            await asyncio.sleep(0)

    run(story())


def test_large_requests_and_replies_pass_unharmed(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect(trust)
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
            await client.send(head + b"z" * 100_000)
            assert (await client.reply()).endswith(b"POST 100000")
            await client.send(GET.replace(b"/greeting", b"/large"))
            assert len(await client.reply()) > 8_000_000
            await client.close()

    run(story())


def test_tls_inside_tls_is_no_protocol_we_speak(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect(trust)
            await client.send(CLIENT_HELLO)
            assert await client.rest() == b"AMQP\x03\x01\x00\x00"
            await client.close()
            assert bus.meter.refused == {"unknown_protocol": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_http_that_is_refused_inside_tls_hears_why(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect(trust)
            await client.send(GET.replace(b"localhost", b"evil.example"))
            assert (await client.reply()).startswith(b"HTTP/1.1 421 ")
            await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


# Peers that do not finish


@pytest.mark.parametrize("hello", [b"\x16", CLIENT_HELLO])
def test_a_peer_that_stalls_in_the_handshake_is_dropped(
    run: Any, certificates: Certificates, hello: bytes
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates, first_bytes_timeout_ms=100) as bus:
            client = await bus.connect()
            await client.send(hello)
            await until(lambda: bus.meter.open["undecided"] == 1)
            assert await client.rest() == b""
            await client.close()
            assert bus.meter.refused == {"tls_handshake": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_peer_that_says_nothing_after_the_handshake_is_dropped(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates, first_bytes_timeout_ms=300) as bus:
            client = await bus.connect(trust)
            assert await client.rest() == b""
            await client.close()
            assert bus.meter.refused == {"silent": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


@pytest.mark.parametrize("end", ["close", "reset", "garbage"])
def test_a_peer_that_leaves_in_the_handshake_gives_its_place_back(
    run: Any, certificates: Certificates, end: str
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect()
            await client.send(CLIENT_HELLO)
            await until(lambda: bus.meter.open["undecided"] == 1)
            await asyncio.sleep(0.02)
            if end == "garbage":
                await client.send(b"\x00" * 600)
                await client.rest()
            elif end == "reset":
                client.writer.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                client.writer.transport.abort()
            await client.close()
            await until(lambda: bus.meter.open_count == 0)
            assert bus.meter.refused == {"tls_handshake": 1}

    run(story())


def test_handshakes_count_against_the_bound_on_connections(
    run: Any, certificates: Certificates, trust: ssl.SSLContext
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates, connections_max=2) as bus:
            stalled = [await bus.connect(), await bus.connect()]
            for client in stalled:
                await client.send(CLIENT_HELLO)
            await until(lambda: bus.meter.open["undecided"] == 2)
            client = await bus.connect(trust)
            assert await stalled[0].rest() == b""
            assert bus.meter.refused["place_needed"] == 1
            assert bus.meter.open_count == 2
            await echoed(client, AMQP_OPENING)
            for each in (client, *stalled):
                await each.close()

    run(story())


def test_stopping_drops_handshakes(run: Any, certificates: Certificates) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect()
            await client.send(CLIENT_HELLO)
            await until(lambda: bus.meter.open["undecided"] == 1)
            await asyncio.sleep(0.02)
            bus.listener.stop()
            assert await client.rest() == b""
            await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_client_that_does_not_trust_the_ca_is_counted_and_logged_with_its_reason(
    run: Any, certificates: Certificates
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            # Not asyncio's client: that one hangs up without the alert that TLS has for it.
            await asyncio.to_thread(distrust, bus.port)
            await until(lambda: bus.meter.refused == {"tls_handshake": 1})
            await until(lambda: bus.meter.open_count == 0)

    def distrust(port: int) -> None:
        context = ssl.create_default_context()
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as tcp,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            context.wrap_socket(tcp, server_hostname="localhost")

    with capture_logs() as lines:
        run(story())
    (refused,) = (line for line in lines if line["event"] == "connection refused")
    assert "unknown ca" in refused["error"].lower()


def test_versions_before_1_2_are_refused(run: Any, certificates: Certificates) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1

    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await bus.connect(old)
            await until(lambda: bus.meter.refused == {"tls_handshake": 1})

    run(story())


# Where TLS is demanded


def test_other_machines_need_tls_and_this_one_does_not(
    run: Any,
    certificates: Certificates,
    trust: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with serving(certificates=certificates, allow_plaintext=False) as bus:
            assert (await bus.ask(GET + GET[:-2] + b"Connection: close\r\n\r\n")).count(b"200") == 2
            monkeypatch.setattr(listening, "is_loopback", lambda host: False)
            reply = await bus.ask(GET)
            assert reply.startswith(b"HTTP/1.1 403 ")
            assert b"answered by TLS only" in reply and b"TrackingId:" in reply
            assert await bus.ask(AMQP_OPENING) == b""
            assert bus.meter.refused == {"plaintext": 2}
            client = await bus.connect(trust)
            await echoed(client, AMQP_OPENING)
            await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


# WebSockets


async def upgrade(client: Client, path: str = "/$servicebus/websocket") -> Any:
    """The client's half of a WebSocket on this connection."""
    protocol: Any = ClientProtocol(parse_uri(f"ws://localhost{path}"), subprotocols=["AMQPWSB10"])
    request = protocol.connect()
    protocol.send_request(request)
    await client.send(b"".join(protocol.data_to_send()))
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        data = await asyncio.wait_for(client.reader.read(65_536), 10)
        assert data
        protocol.receive_data(data)
        protocol.events_received()
    return protocol


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_websocket_is_a_connection_of_amqp(
    run: Any, certificates: Certificates, trust: ssl.SSLContext, encrypted: bool
) -> None:
    carrier = "websocket_tls" if encrypted else "websocket"

    async def story() -> None:
        async with serving(certificates=certificates) as bus:
            client = await bus.connect(trust if encrypted else None)
            await client.send(GET)
            await client.reply()
            assert bus.meter.open["http"] == 1
            protocol = await upgrade(client)
            assert protocol.subprotocol == "AMQPWSB10"
            assert bus.meter.open == {"amqp": 1, "http": 0, "undecided": 0}
            assert bus.meter.carried[carrier] == 1
            protocol.send_binary(AMQP_OPENING)
            await client.send(b"".join(protocol.data_to_send()))
            protocol.receive_data(await asyncio.wait_for(client.reader.read(65_536), 10))
            (frame,) = protocol.events_received()
            assert bytes(frame.data) == b"echo:" + AMQP_OPENING
            protocol.send_close()
            await client.send(b"".join(protocol.data_to_send()))
            while protocol.state is not State.CLOSED:
                data = await asyncio.wait_for(client.reader.read(65_536), 10)
                protocol.receive_data(data) if data else protocol.receive_eof()
            assert protocol.close_rcvd is not None
            await client.close()
            await until(lambda: bus.meter.open_count == 0)
            assert bus.meter.carried[carrier] == 0
            assert bus.meter.accepted == {"amqp": 1, "http": 1}

    run(story())


def test_a_websocket_that_is_refused_is_told_why_in_http(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            head = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            head += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n"
            path, here = b"/$servicebus/websocket", b"localhost:5672"
            amqp, evil = b"Sec-WebSocket-Protocol: amqp\r\n", b"Origin: http://evil.example\r\n"
            for request, status in (
                (head % (path, here), b"400"),
                (head % (b"/queue", here) + amqp, b"404"),
                (head % (path, b"evil.example") + amqp, b"421"),
                (head % (path, here) + amqp + evil, b"403"),
                (b"GET %s HTTP/1.1\r\nHost: %s\r\n" % (path, here), b"426"),
            ):
                reply = await bus.ask(request + b"\r\n")
                assert reply.startswith(b"HTTP/1.1 " + status)
                assert b"<Error>" in reply
            assert b"upgrade: websocket\r\n" in reply
            assert bus.meter.refused == {"websocket_handshake": 4, "http_host": 1}

    run(story())


def test_what_follows_the_request_at_once_belongs_to_the_websocket(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            protocol: Any = ClientProtocol(
                parse_uri("ws://localhost/$servicebus/websocket"), subprotocols=["amqp"]
            )
            protocol.send_request(protocol.connect())
            frame = b"\x82\x88\x00\x00\x00\x00" + AMQP_OPENING
            await client.send(b"".join(protocol.data_to_send()) + frame)
            heard = b""
            while AMQP_OPENING not in heard:
                heard += await asyncio.wait_for(client.reader.read(65_536), 10)
            assert heard.startswith(b"HTTP/1.1 101 ")
            await client.close()

    run(story())


def test_a_websocket_does_not_begin_in_the_middle_of_a_reply(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            protocol: Any = ClientProtocol(
                parse_uri("ws://localhost/$servicebus/websocket"), subprotocols=["amqp"]
            )
            protocol.send_request(protocol.connect())
            slow = GET.replace(b"/greeting", b"/slow")
            reply = await bus.ask(slow + b"".join(protocol.data_to_send()))
            assert b" 101 " not in reply
            assert bus.meter.refused == {"http_pipeline": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())

"""Whatever bytes come as HTTP, in whatever pieces: no exception, no growth, one reply at most."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.net.http_protocol import BoundedHttpProtocol, HttpHost, HttpLimits
from postbus.observe.logs import TrackingIds
from postbus.observe.meters import ConnectionMeter
from tests.unit.net.serving import place_for

LIMITS = HttpLimits(
    header_max_bytes=2_048,
    body_max_bytes=4_096,
    request_timeout_ms=60_000,
    keep_alive_timeout_ms=60_000,
    websocket_frame_max_bytes=1_000,
)
PIECE_BYTES = 8_192
WEBSOCKET = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nSec-WebSocket-Protocol: amqp\r\n"
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n\r\n"
)

fragments = st.one_of(
    st.sampled_from(
        [
            *(b"GET / HTTP/1.1\r\n", b"PUT /q HTTP/1.1\r\n", b"POST /q HTTP/1.0\r\n"),
            *(b"Host: localhost\r\n", b"Host: evil\r\n", b"Content-Length: 5\r\n"),
            *(
                b"Content-Length: 99999\r\n",
                b"Transfer-Encoding: chunked\r\n",
                b"\r\n",
                b"\r\n\r\n",
            ),
            *(b"Expect: 100-continue\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
            *(b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n", b"ffffffffffffffff\r\n", b"x: y\r\n"),
            *(b"GET /$servicebus/websocket HTTP/1.1\r\n", b"Sec-WebSocket-Protocol: amqp\r\n"),
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            b"Sec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n",
            WEBSOCKET,
            *(b"\x82\x83\x00\x00\x00\x00abc", b"\x89\x80\x00\x00\x00\x00", b"\x88\x80abcd"),
            *(b"CONNECT a:1 HTTP/1.1\r\n", b"OPTIONS * HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n"),
        ]
    ),
    st.binary(max_size=40),
    st.integers(1, 6_000).map(lambda count: b"a" * count),
)
streams = st.lists(fragments, max_size=20).map(b"".join)


class Wire:
    """A transport that keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.ended = False

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Above(asyncio.Protocol):
    """Stands for AMQP over a WebSocket."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    event = await receive()
    while event["type"] == "http.request" and event["more_body"]:
        event = await receive()
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@settings(max_examples=120)
@given(stream=streams, data=st.data())
def test_any_bytes_in_any_pieces_are_served_refused_or_awaited(stream: bytes, data: Any) -> None:
    async def story() -> None:
        tracking = TrackingIds("ns", lambda: 0, lambda: "id")
        meter = ConnectionMeter()
        host = HttpHost(read_all, LIMITS, check_host=True, tracking=tracking, meter=meter)
        above = Above()
        wire = Wire()
        place = place_for(wire, meter)
        protocol: Any = BoundedHttpProtocol(host, place, lambda: above)
        place.become("http", "tcp", protocol)
        wire.set_protocol(protocol)
        protocol.connection_made(wire)
        rest = stream
        while rest and not wire.closing:
            size = data.draw(st.integers(1, len(rest)))
            wire.protocol.data_received(rest[:size])
            rest = rest[size:]
            await asyncio.sleep(0)
            assert protocol._framing_bytes <= LIMITS.header_max_bytes + PIECE_BYTES
            if protocol.cycle is not None:
                assert len(protocol.cycle.body) <= LIMITS.body_max_bytes
        assert sum(meter.refused.values()) <= 1
        assert wire.written.count(b"<Error>") <= 1
        wire.protocol.connection_lost(None)
        for task in list(host.state.tasks):
            await asyncio.wait_for(task, 5)
        # A WebSocket has given the place of its request to AMQP, which heard of both ends.
        assert meter.open["http"] == (0 if wire.protocol is protocol else 1)
        assert above.calls == ([] if wire.protocol is protocol else ["made", "lost"])

    asyncio.run(story())

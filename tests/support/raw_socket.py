"""A blocking socket to the server over whatever carries AMQP, for clients that misbehave."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.support.carriers import local_ca
from tests.support.server import Server

_READ_BYTES = 262_144


class RawWebSocket:
    """Has of a socket what tests use. What is sent becomes a frame, and frames become bytes."""

    def __init__(self, below: socket.socket, port: int) -> None:
        self.below = below
        uri = parse_uri(f"ws://localhost:{port}/$servicebus/websocket")
        self.protocol: Any = ClientProtocol(uri, subprotocols=["AMQPWSB10"], max_size=None)
        self.protocol.send_request(self.protocol.connect())
        self.flush()
        while self.protocol.state is State.CONNECTING:
            assert self.protocol.handshake_exc is None
            self.protocol.receive_data(below.recv(_READ_BYTES))
        self.protocol.events_received()

    def flush(self) -> None:
        self.below.sendall(b"".join(self.protocol.data_to_send()))

    def sendall(self, data: bytes) -> None:
        if data:
            self.protocol.send_binary(data)
            self.flush()

    def recv(self, size: int) -> bytes:
        payload = b""
        while not payload:
            data = self.below.recv(size)
            if not data:
                return b""
            self.protocol.receive_data(data)
            payload = b"".join(
                bytes(frame.data)
                for frame in self.protocol.events_received()
                if isinstance(frame, Frame) and frame.opcode is Opcode.BINARY
            )
        return payload

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.below.setsockopt(level, option, value)

    def close(self) -> None:
        self.below.close()
        self.protocol.parser.close()


def connect(server: Server, carrier: str) -> Any:
    """A socket, or what looks like one, on a connection of its own."""
    below: socket.socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    if carrier in ("tls", "websocket_tls"):
        context = ssl.create_default_context(cafile=local_ca(server))
        below = context.wrap_socket(below, server_hostname="localhost")
    return RawWebSocket(below, server.port) if carrier.startswith("websocket") else below

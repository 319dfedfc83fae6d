"""A connection of a peer that need not behave: it reads only when its owner tells it to."""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from bench.client import now_ms
from bench.work import RunFailed
from postbus.amqp.connection import Connection
from postbus.amqp.events import Closed, Event, LinkAttached
from postbus.amqp.frames.framing import AMQP_HEADER, FRAME_SASL, SASL_HEADER, encode_frame
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_SETTLED,
    Attach,
    Open,
    SaslInit,
)
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sending import SenderLink

_READ_BYTES = 262_144
_WAIT_S = 15.0
# A client has some 28,000 ports towards one address of a server, so it uses several addresses.
_SOURCES = 16
_BIND_WITHOUT_PORT = 24  # IP_BIND_ADDRESS_NO_PORT: the port is chosen when the target is known
_E = TypeVar("_E", bound=Event)


class Place:
    """Where the broker is, and who we say we are."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self.port = port
        self.user = user
        self.password = password
        self._connected = 0

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A TCP connection from the next of our addresses."""
        sock = socket.socket()
        try:
            sock.settimeout(_WAIT_S)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            sock.setsockopt(socket.SOL_IP, _BIND_WITHOUT_PORT, 1)
            self._connected += 1
            sock.bind((f"127.0.0.{1 + self._connected % _SOURCES}", 0))
            sock.connect(("127.0.0.1", self.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return sock

    def greeting(self) -> bytes:
        """Everything up to the open in one go: the answers need not be waited for."""
        login = SaslInit("PLAIN", encode_plain(self.user, self.password), "localhost")
        opening = Open("idle", "localhost")
        return (
            SASL_HEADER
            + encode_frame(0, login, kind=FRAME_SASL)
            + AMQP_HEADER
            + encode_frame(0, opening)
        )


class Caller:
    """One logged-in connection with a session."""

    def __init__(self, place: Place, receive_buffer: int | None = None) -> None:
        self.core = Connection(
            Limits(unsettled_incoming_max=1_000_000, handle_max=1_000_000, links_max=1_000_000),
            container_id="caller",
            server=False,
            now=now_ms(),
            hostname="localhost",
            mechanisms=["PLAIN"],
            initial_response=encode_plain(place.user, place.password),
        )
        self.socket = place.connect(receive_buffer)
        self.socket.setblocking(False)
        self.unwritten = b""
        self.closed = False
        self.core.open()
        self.session = self.core.begin()
        self.write()

    def write(self, more: bytes = b"") -> bool:
        """Write what the socket takes; say whether that was all."""
        self.unwritten += self.core.data_to_send() + more
        try:
            if self.unwritten and not self.closed:
                self.unwritten = self.unwritten[self.socket.send(self.unwritten) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        return not self.unwritten

    def read(self) -> list[Event]:
        """Take what is there by now."""
        if self.closed:
            return []
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        events = self.core.receive_data(data, now_ms())
        self.write()
        if any(isinstance(event, Closed) for event in events):
            self.close()
        return events

    def until(self, kind: type[_E]) -> _E:
        """Read until something happens; RunFailed if it does not."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and not self.closed:
            for event in self.read():
                if isinstance(event, kind):
                    return event
            self.write()
            time.sleep(0.002)
        raise RunFailed(f"a hostile peer saw no {kind.__name__}")

    def receiver(self, name: str, address: str, settled: bool = False) -> ReceiverLink:
        attach = Attach(name, 0, ROLE_RECEIVER, source=Source(address), target=Target(name))
        if settled:
            attach.snd_settle_mode = SND_SETTLED
        return self.session.attach(ReceiverLink, attach)

    def sender(self, name: str, address: str) -> SenderLink:
        attach = Attach(name, 0, ROLE_SENDER, source=Source(name), target=Target(address))
        return self.session.attach(SenderLink, attach)

    def ready_sender(self, name: str, address: str) -> SenderLink:
        """A sender that has been given credit."""
        link = self.sender(name, address)
        self.write()
        self.until(LinkAttached)
        deadline = time.monotonic() + _WAIT_S
        while not link.sendable:
            if self.closed or time.monotonic() > deadline:
                raise RunFailed("a hostile peer was given no credit to begin with")
            self.read()
            time.sleep(0.002)
        return link

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.socket.close()

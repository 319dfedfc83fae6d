"""A client that does what it should not, on our own AMQP core and a blocking socket.

The official clients read what they are sent and stop when they are told; this one need not.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TypeVar

from postbus.amqp.connection import Connection
from postbus.amqp.events import Event, LinkAttached
from postbus.amqp.frames.performatives import ROLE_RECEIVER, ROLE_SENDER, Attach
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session
from tests.support.raw_socket import connect
from tests.support.server import Server

E = TypeVar("E", bound=Event)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RawClient:
    """One connection, logged in by PLAIN. Nothing is read unless the test asks for it."""

    def __init__(
        self,
        server: Server,
        carrier: str = "tcp",
        user: str = "RootManageSharedAccessKey",
        key: str = "SAS_KEY_VALUE",
    ) -> None:
        """With an empty `user` it logs in as nobody, and puts tokens."""
        self.core = Connection(
            Limits(unsettled_incoming_max=1_000_000),
            container_id="raw",
            server=False,
            now=now_ms(),
            hostname="localhost",
            mechanisms=["PLAIN" if user else "ANONYMOUS"],
            initial_response=encode_plain(user, key) if user else b"",
        )
        self.socket = connect(server, carrier)
        self.core.open()
        self.session: Session = self.core.begin()
        self.write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        self.core.receive_eof(now_ms())
        self.core.forget()

    def write(self) -> None:
        self.socket.sendall(self.core.data_to_send())

    def read(self) -> list[Event]:
        """One read from the socket, and what it means."""
        events = self.core.receive_data(self.socket.recv(262_144), now_ms())
        self.write()
        return events

    def until(self, kind: type[E]) -> E:
        """Read until something happens."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for event in self.read():
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"no {kind.__name__} came")

    def receiver(self, address: str, snd_settle_mode: int | None = None) -> ReceiverLink:
        attach = Attach(
            f"r-{address}", 0, ROLE_RECEIVER, source=Source(address), target=Target("t")
        )
        if snd_settle_mode is not None:
            attach.snd_settle_mode = snd_settle_mode
        link = self.session.attach(ReceiverLink, attach)
        self.write()
        self.until(LinkAttached)
        assert isinstance(link, ReceiverLink)
        return link

    def sender(self, address: str) -> SenderLink:
        attach = Attach(f"s-{address}", 0, ROLE_SENDER, source=Source("s"), target=Target(address))
        link = self.session.attach(SenderLink, attach)
        self.write()
        assert isinstance(link, SenderLink)
        while not link.sendable:
            self.read()
        return link

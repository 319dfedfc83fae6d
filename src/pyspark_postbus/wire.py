"""An AMQP connection of a Spark task: our own AMQP core on a socket, a single thread."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from uuid import uuid4

from postbus.amqp.connection import Connection
from postbus.amqp.events import Closed, Event, LinkDetached, SessionEnded
from postbus.amqp.frames.outcomes import Error
from postbus.amqp.limits import Limits
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.session import Session
from postbus.client.connection_string import Namespace

CONNECT_S: Final = 20.0
ANSWER_S: Final = 60.0
"""How long the broker may say nothing at all while something of ours is under way."""

_READ_BYTES: Final = 262_144
_TICK_S: Final = 1.0
_TRANSIENT: Final = frozenset(
    {
        *("com.microsoft:server-busy", "com.microsoft:timeout", "amqp:internal-error"),
        *("amqp:connection:forced", "amqp:link:detach-forced"),
    }
)


class AmqpRefused(Exception):
    """The broker has refused something. `transient` says whether it may do it later."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{description} ({condition})")
        self.condition = condition
        self.description = description

    @property
    def transient(self) -> bool:
        return self.condition in _TRANSIENT

    def __reduce__(self) -> tuple[type[AmqpRefused], tuple[str, str]]:
        return type(self), (self.condition, self.description)


class ConnectionLost(OSError):
    """The connection broke, or the broker fell silent."""


def refusal(error: Error | None, default: str) -> AmqpRefused:
    if error is None:
        return AmqpRefused(default, "The broker gave no reason.")
    return AmqpRefused(str(error.condition), error.description or "The broker gave no reason.")


class Wire:
    """A connection with one session, logged in with the namespace's key."""

    def __init__(self, namespace: Namespace, limits: Limits | None = None) -> None:
        self._core = Connection(
            limits or Limits(),
            container_id=f"spark-{uuid4()}",
            server=False,
            now=_now_ms(),
            hostname=namespace.host,
            mechanisms=["PLAIN"],
            initial_response=encode_plain(namespace.key_name, namespace.key),
        )
        self._socket: socket.socket = _connected(namespace)
        self._unwritten = bytearray()
        self._core.open()
        self.session: Session = self._core.begin()

    def close(self) -> None:
        """Say goodbye, and do not wait long for the answer."""
        try:
            if not self._core.closed:
                self._core.close()
                for _ in self.events(lambda: self._core.closed, 2.0):
                    pass
        except (AmqpRefused, OSError):
            pass  # everything is known by now
        finally:
            self.drop()

    def drop(self) -> None:
        self._socket.close()

    def events(self, is_over: Callable[[], bool], silence_s: float = ANSWER_S) -> Iterator[Event]:
        """Write and read until it is over, and yield the events. Raises AmqpRefused when the broker
        ends the link, the session or the connection, ConnectionLost when nothing came for
        `silence_s`."""
        heard_at = time.monotonic()
        while not is_over():
            self._turn()
            arrived = self._read()
            now = time.monotonic()
            if arrived is None:
                if now - heard_at > silence_s:
                    raise ConnectionLost(f"the broker has said nothing for {silence_s:g} s")
                arrived = self._core.tick(_now_ms())
            else:
                heard_at = now
            for event in arrived:
                if isinstance(event, Closed) and self._core.closed and event.clean:
                    return
                yield _told(event)

    def arrived(self) -> Iterator[Event]:
        """The events that have come meanwhile, without waiting. Raises as `events` does."""
        yield from map(_told, self._read() or ())

    def push(self) -> None:
        """Write as much as the socket takes now."""
        self._unwritten += self._core.data_to_send()
        if self._unwritten:
            with suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                # Cut off in front, and not copied: a large message takes many turns.
                del self._unwritten[: self._socket.send(self._unwritten)]

    def _turn(self) -> None:
        """Wait until the socket can be read, or takes the bytes to be written."""
        self.push()
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        if not pending:
            writing = [self._socket] if self._unwritten else []
            select.select([self._socket], writing, [], _TICK_S)

    def _read(self) -> list[Event] | None:
        """The events that came; None if there were no bytes."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        if not data:
            events = self._core.receive_eof(_now_ms())
            if not any(isinstance(event, Closed) and event.clean for event in events):
                raise ConnectionLost("the broker has closed the connection")
            return events
        return self._core.receive_data(data, _now_ms())


def _connected(namespace: Namespace) -> socket.socket:
    plain = socket.create_connection((namespace.host, namespace.port), timeout=CONNECT_S)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = namespace.tls_context()
        if context is not None:
            plain = context.wrap_socket(plain, server_hostname=namespace.host)
        plain.setblocking(False)
    except BaseException:
        plain.close()
        raise
    return plain


def _told(event: Event) -> Event:
    if isinstance(event, LinkDetached | SessionEnded | Closed):
        raise _ended(event)
    return event


def _ended(event: LinkDetached | SessionEnded | Closed) -> Exception:
    if isinstance(event, Closed) and event.error is None:
        return ConnectionLost("the connection broke")
    return refusal(event.error, "amqp:internal-error")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

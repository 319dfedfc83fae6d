"""One port for every protocol.

A connection first belongs to a sniffer, which looks at its first bytes. The sniffer hands the
connection, with these bytes, to AMQP or HTTP. From then on it costs nothing: the transport calls
the real protocol. Where the first bytes begin TLS, the sniffer looks again at the decrypted bytes.
"""

import asyncio
import errno
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast

from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.net.encryption import encrypt
from postbus.net.http_protocol import HttpHost, error_reply
from postbus.net.places import Place, Places, Tenant
from postbus.net.sniffing import NEEDED_BYTES, Wire, sniff
from postbus.observe.logs import Valve, get_logger
from postbus.settings import Settings, is_loopback
from postbus.tls.certificates import Certificates

_log = get_logger("listener")
_BACKLOG: Final = 1_024
# Files other than connections: stores, their journals, standard streams, the loop's own.
OTHER_FILES: Final = 256
TLS_BYTES: Final = 65_536
"""Memory of TLS during its handshake: 62 KB were measured, and 29 KB afterwards."""
# AMQP 2.2: a peer that opens with anything else is told which protocol we speak, and closed.
_AMQP_HEADER: Final = b"AMQP\x03\x01\x00\x00"
_TLS_HINT: Final = (
    "TLS is not served here: is UseDevelopmentEmulator=true missing, "
    "or a certificate (postbus cert)?"
)
_PLAINTEXT_HINT: Final = "other machines need TLS here, unless --allow-plaintext is given"


class Ports(NamedTuple):
    port: int
    admin_port: int | None


class Listener:
    """Accepts connections, within a bound, and finds out which protocol they speak."""

    def __init__(
        self,
        *,
        amqp: Callable[[Place], asyncio.Protocol],
        http: HttpHost,
        places: Places,
        first_bytes_timeout_ms: int,
        clock: Callable[[], Instant],
        certificates: Certificates,
        allow_plaintext: bool,
    ) -> None:
        """Without `allow_plaintext`, a peer on another machine must use TLS."""
        self.places = places
        self.first_bytes_timeout_s = first_bytes_timeout_ms / 1000
        self._amqp = amqp
        self._http = http
        self._certificates = certificates
        self._allow_plaintext = allow_plaintext
        self._clock = clock
        self._valve = Valve()
        self._servers: list[asyncio.Server] = []
        self._undecided: set[Place] = set()
        self._handshakes: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen on every address of `host`, all on one port; 0 picks it. Return the port."""
        loop = asyncio.get_running_loop()
        for family, _, _, _, address in await loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], port, *address[2:]))
                port = sock.getsockname()[1]
                server = await loop.create_server(
                    partial(_Sniffer, self, loop), sock=sock, backlog=_BACKLOG
                )
            except OSError as error:
                sock.close()
                raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from error
            self._servers.append(server)
        _log.info("listening", host=host, port=port)
        return port

    async def listen_as_set(self, settings: Settings) -> Ports:
        """Open both ports that the settings name.

        The second port is a convenience, and every second broker on a machine finds it taken. It is
        left out where it is taken and nobody asked for it.
        """
        port = await self.listen(settings.host, settings.port)
        if settings.admin_port == 0:
            return Ports(port, None)
        try:
            return Ports(port, await self.listen(settings.host, settings.admin_port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or "admin_port" in settings.model_fields_set:
                raise
            _log.warning("admin port taken", port=settings.admin_port, served_by=port)
            return Ports(port, None)

    def stop(self) -> None:
        """Accept nothing more, and drop the connections whose protocol is not known yet."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for place in list(self._undecided):
            place.below.abort()

    async def drain(self, grace_s: float) -> None:
        """Let the HTTP requests in hand be answered. The gateway closes AMQP connections."""
        await self._http.drain(grace_s)

    # Called by sniffers

    def admit(self, transport: asyncio.Transport, sniffer: Tenant) -> Place | None:
        """Find a place for a new connection; without a free place, close it."""
        place = self.places.take(transport, sniffer)
        if place is None:
            self._refuse_place(transport)
        else:
            self._undecided.add(place)
        return place

    def gone(self, place: Place) -> None:
        """The connection ended before its protocol was known."""
        self._undecided.discard(place)
        place.release()

    def tls_context(self) -> ssl.SSLContext | None:
        return self._certificates.context()

    def shake_hands(self, handshake: Coroutine[Any, Any, None]) -> None:
        """Run a TLS handshake; meanwhile the connection stays undecided, and counted."""
        task = asyncio.get_running_loop().create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def lets_in_plain(self, peer: object) -> bool:
        """May this peer go on without TLS?"""
        if self._allow_plaintext:
            return True
        return isinstance(peer, tuple) and is_loopback(str(peer[0]))

    def refuse_plain(self, transport: asyncio.Transport, wire: Wire) -> None:
        """Refuse a peer that must use TLS; AMQP has no words for it this early."""
        if wire is Wire.HTTP:
            text = self._http.tracking.track().describe("Other machines are answered by TLS only.")
            transport.write(error_reply(HTTPStatus.FORBIDDEN, text))
        self.turn_away(transport, "plaintext", hint=_PLAINTEXT_HINT)

    def hand_over(
        self, place: Place, transport: asyncio.Transport, wire: Wire, first: bytes
    ) -> bool:
        """Give the connection, with its first bytes, to its protocol. False where it was refused:
        the spare places are for HTTP alone."""
        carrier = "tls" if place.encrypted else "tcp"
        protocol: asyncio.Protocol
        if wire is Wire.AMQP:
            if place.spare and self.places.full:
                self._refuse_place(transport)
                return False
            protocol = self._amqp(place)
            place.become("amqp", carrier, cast("Tenant", protocol))
        else:
            protocol = self._http.protocol(place, partial(self._upgraded, place))
            place.become("http", carrier, cast("Tenant", protocol))
        self._undecided.discard(place)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(first)
        return True

    def _refuse_place(self, transport: asyncio.Transport) -> None:
        self.turn_away(transport, "limit", connections_max=self.places.connections_max)

    def turn_away(self, transport: asyncio.Transport, reason: str, **facts: object) -> None:
        """Close a refused connection, and log the reason."""
        self.note_refusal(reason, transport.get_extra_info("peername"), **facts)
        transport.abort() if reason == "limit" else transport.close()

    def note_refusal(self, reason: str, peer: object, **facts: object) -> None:
        """Count a refused connection, and log it unless the same reason was logged just now."""
        self.places.meter.turned_away(reason)
        held = self._valve.passes(reason, self._clock())
        if held is not None:
            _log.warning("connection refused", reason=reason, peer=str(peer), **facts, more=held)

    def _upgraded(self, place: Place) -> asyncio.Protocol:
        """An HTTP connection has become a WebSocket: AMQP takes over its place."""
        protocol = self._amqp(place)
        carrier = "websocket_tls" if place.encrypted else "websocket"
        place.become("amqp", carrier, cast("Tenant", protocol))
        return protocol


class _Sniffer(asyncio.Protocol):
    """Holds a connection until its first bytes tell its protocol.

    With TLS it decides twice. It is the protocol of the TCP connection first, and then of the
    connection inside TLS.
    """

    __slots__ = ("_first", "_listener", "_loop", "_place", "_timer", "_transport")

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._first = b""
        self._place: Place | None = None
        """Until the protocol of the connection is known."""
        self._transport: asyncio.Transport | None = None
        """The transport whose bytes it reads; None during the TLS handshake."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP transport by contract; uvloop's does not inherit from asyncio's.
        tcp = cast("asyncio.Transport", transport)
        self._place = self._listener.admit(tcp, self)
        if self._place is not None:
            self._look_at(tcp)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None and self._transport.is_closing():
            return  # refused already; data that was on its way still arrives
        self._first += data
        if self._transport is not None:  # otherwise the data came before the news that TLS is there
            self._decide(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def weigh(self) -> None:
        if self._place is not None:
            self._place.hold(TLS_BYTES if self._place.encrypted else 0, 0)

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        if self._place is not None:
            self._place.below.abort()

    def _look_at(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer = self._loop.call_later(self._listener.first_bytes_timeout_s, self._timed_out)

    def _decide(self, transport: asyncio.Transport) -> None:
        wire = sniff(self._first)
        if wire is None:
            return
        assert self._timer is not None
        self._timer.cancel()
        place = self._place
        if place is None:
            return
        if wire is Wire.TLS and not place.encrypted:
            self._start_tls(place, transport)
        elif wire is Wire.AMQP or wire is Wire.HTTP:
            self._let_in(place, transport, wire)
        else:
            transport.write(_AMQP_HEADER)
            first = self._first[:NEEDED_BYTES].hex(" ")
            self._listener.turn_away(transport, "unknown_protocol", first=first)

    def _let_in(self, place: Place, transport: asyncio.Transport, wire: Wire) -> None:
        listener = self._listener
        if place.encrypted or listener.lets_in_plain(transport.get_extra_info("peername")):
            if listener.hand_over(place, transport, wire, self._first):
                self._place = self._transport = None
        else:
            listener.refuse_plain(transport, wire)

    def _start_tls(self, place: Place, transport: asyncio.Transport) -> None:
        context = self._listener.tls_context()
        if context is None:
            self._listener.turn_away(transport, "tls", hint=_TLS_HINT)
            return
        self._transport = None
        place.encrypted = True
        self.weigh()
        first, self._first = self._first, b""
        transport.pause_reading()
        self._listener.shake_hands(self._shake_hands(transport, context, first))

    async def _shake_hands(
        self, transport: asyncio.Transport, context: ssl.SSLContext, first: bytes
    ) -> None:
        peer = transport.get_extra_info("peername")
        timeout_s = self._listener.first_bytes_timeout_s
        try:
            encrypted = await encrypt(transport, self, context, first, timeout_s)
        except OSError as error:
            why = str(error) or "the peer hung up: does it trust the certificate?"
            self._listener.note_refusal("tls_handshake", peer, error=why)
            error.__traceback__ = None  # its frames hold the error, and the cycle would stay
            self._leave()
            return
        self._look_at(encrypted)
        if self._first:
            self._decide(encrypted)

    def _leave(self) -> None:
        """The connection is no longer undecided: its protocol is known, or it is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._place is not None:
            self._listener.gone(self._place)
            self._place = None

    def _timed_out(self) -> None:
        if self._transport is not None:
            self._listener.turn_away(self._transport, "silent")


def allow_open_files(connections_max: int) -> int:
    """Raise this process's limit of open files as far as the system allows.

    Returns how many connections there may be, which can be fewer than `connections_max`. Past the
    limit accept() fails for everybody, so the bound on connections has to come first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        _log.info("limit of open files raised", before=soft, now=allowed)
    if allowed == wanted:
        return connections_max
    fits = max(allowed - OTHER_FILES, allowed // 2)
    _log.warning(
        "too few open files allowed",
        allowed=allowed,
        wanted=wanted,
        setting="connections_max",
        connections_max=fits,
    )
    return fits

"""HTTP on a connection of ours: uvicorn's protocol, with the bounds that it leaves to its owner.

uvicorn limits neither headers nor bodies, nor the time of a request that never ends. Here a
request past a bound gets one refusal, in the form of all HTTP errors of Postbus, and the
connection is cut off. `Host` is checked on loopback: otherwise a web page could point its own name
at this machine and use the well-known key. A request may turn its connection into a WebSocket,
which carries AMQP from then on.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from postbus.errors import ServiceBusError
from postbus.net.budgets import HELD_MIN
from postbus.net.places import Place
from postbus.net.upgrading import UpgradeRefused, answer_upgrade, asks_for_websocket
from postbus.net.websocket import WebSocket
from postbus.observe.logs import Tracking, TrackingIds, Valve, get_logger
from postbus.observe.meters import ConnectionMeter
from postbus.settings import is_loopback

_log = get_logger("http")
# uvicorn logs its errors only: exceptions of the application. Events that strangers can cause are
# counted here, and logged through a valve.
_uvicorn_log = logging.getLogger("uvicorn.error.connection")
_uvicorn_log.setLevel(logging.ERROR)

HEADER_NAMES: Final = "postbus.header_names"
"""In a request's state: the names of its headers as the client wrote them. Over HTTP the properties
of a message are headers, and their names have a case."""

LOG_IN: Final = "postbus.log_in"
"""In a request's state: the function to call when its token is good."""

# The parser gets data in pieces, so that a request passes a bound by at most one piece.
_PIECE_BYTES: Final = 8_192
# Requests sent ahead on one connection. Hardly any client does that, and a hostile one could fit
# thousands into one read.
_PIPELINE_MAX: Final = 16
# How long a refused peer may go on sending before it is cut off. An immediate close would reset the
# connection, and the client would never see the reason.
_LINGER_S: Final = 1.0
PROGRESS_BYTES: Final = 1_048_576
"""Each time this much of a body has come, its time starts anew: a large body may be slow."""


class HttpLimits(NamedTuple):
    header_max_bytes: int
    """Everything of a request but its body: head, chunk sizes, trailers."""
    body_max_bytes: int
    request_timeout_ms: int
    """The time for a request to arrive whole, and for a reply to be read."""
    keep_alive_timeout_ms: int
    websocket_frame_max_bytes: int


Upgraded = Callable[[], asyncio.Protocol]
"""Makes the protocol that the connection has over a WebSocket, and hands it the place."""


class HttpHost:
    """Runs one ASGI application on connections that the listener hands over."""

    def __init__(
        self,
        app: Any,
        limits: HttpLimits,
        *,
        check_host: bool,
        tracking: TrackingIds,
        meter: ConnectionMeter,
        known_as: Callable[[], Collection[str]] = tuple,
        message_size_max: Callable[[], int] = int,
    ) -> None:
        """`known_as` gives more names of this machine. `check_host` refuses requests for other
        names. A body may be as large as the largest message."""
        self.limits = limits
        self.check_host = check_host
        self.known_as = known_as
        self._message_size_max = message_size_max
        self.tracking = tracking
        self.meter = meter
        self.state = ServerState()
        self._valve = Valve()
        # uvicorn's own server is not used: no signals, no lifespan, no log set-up. X-Forwarded-For
        # is not trusted, because we know of no proxy in front of us.
        self.config = Config(
            app,
            ws="none",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self.config.load()

    def body_max(self) -> int:
        return max(self.limits.body_max_bytes, self._message_size_max())

    def protocol(self, place: Place, upgraded: Upgraded) -> asyncio.Protocol:
        """Make the protocol for one connection."""
        return BoundedHttpProtocol(self, place, upgraded)

    def refused(self, reason: str, tracking: Tracking, peer: object, **facts: object) -> None:
        """Count a refusal, and log it unless the same reason was logged just now."""
        self.meter.turned_away(reason)
        held = self._valve.passes(reason, tracking.at)
        if held is not None:
            _log.warning(
                "request refused",
                reason=reason,
                peer=str(peer),
                tracking=tracking.id,
                **facts,
                more=held,
            )

    def frame_refused(self, peer: object, reason: str, text: str) -> None:
        """Count and log the refusal of a frame, on a connection that has become a WebSocket."""
        self.refused(reason, self.tracking.track(), peer, error=text)

    async def drain(self, grace_s: float) -> None:
        """Finish the requests in hand, and cut off the rest after the grace time."""
        for connection in list(self.state.connections):
            connection.shutdown()
        if self.state.tasks:
            await asyncio.wait(self.state.tasks, timeout=grace_s)
        for task in list(self.state.tasks):
            task.cancel()
        for connection in list(self.state.connections):
            connection.transport.abort()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection, bounded in headers, body, pipeline and time."""

    def __init__(self, host: HttpHost, place: Place, upgraded: Upgraded) -> None:
        super().__init__(host.config, host.state, {})
        self.logger = _uvicorn_log
        # uvicorn declares whole seconds, but only passes the number on to the loop.
        self.timeout_keep_alive = host.limits.keep_alive_timeout_ms / 1000  # type: ignore[assignment]
        self._host = host
        self._limits = host.limits
        self._place = place
        self._upgraded = upgraded
        self._held_bytes = 0
        """Bytes of the requests that have no answer yet."""
        self._upgrade_reply: bytes | None = None
        """For the request whose headers are complete; None when it asked for no WebSocket."""
        self._framing_bytes = 0
        self._body_bytes = 0
        self._timed_bytes = 0
        """How much of the body had come when its time last started anew."""
        self._refusal: tuple[HTTPStatus, str, str] | None = None
        self._deaf = False
        """All further data is dropped."""
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._answering: RequestResponseCycle | None = None
        """The request in the application's hands; `cycle` is the request that was parsed last."""

    # Called by the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._give_up_requests()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn keeps it where the connection broke
        self._forget_requests()
        self._place.release()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        # Also for bytes that begin no request (bare line ends): they stop the keep-alive timer.
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._await_request()
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._framing_bytes += len(piece)
            upgraded_at = self._parse(piece)
            if self._refusal is None and self._framing_bytes > self._limits.header_max_bytes:
                self._refusal = (
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"The request's headers exceed {self._limits.header_max_bytes} bytes.",
                    "http_headers",
                )
            if self._refusal is not None:
                self._refuse(*self._refusal)
            elif upgraded_at is not None:
                self._upgrade(data[start + upgraded_at :])
                return
            if self._deaf or self.transport.is_closing():
                return
        self._held_bytes += len(data)
        if self._held_bytes > HELD_MIN or self._place.holds:
            self.weigh()

    def weigh(self) -> None:
        """Requests are held until they are answered, and answers until the peer reads them."""
        self._place.hold(self._held_bytes, self._place.unwritten_bytes(self.transport))

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        """The broker needs the memory or the place of this connection."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._deaf = True
            self.timeout_keep_alive_handler()  # nobody waits for an answer
            return
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error), reason)
        if not self._place.known:
            # A stranger must not keep its place for as long as it cares to read.
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.weigh()
        if self._write_deadline is None:
            self._guard_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _parse(self, piece: bytes) -> int | None:
        """Give a piece to the parser; returns where in the piece an upgrade request ended."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except HttpParserUpgrade as upgrade:
            if self._upgrade_reply is not None:
                return int(upgrade.args[0])
            # The request asks for a protocol that we do not speak. It gets its answer as if it had
            # not asked, and the bytes behind it are dropped.
            self._deaf = True
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except HttpParserError:
            # Or a callback below refused the request, and the parser failed over that.
            malformed = (HTTPStatus.BAD_REQUEST, "The request is not HTTP.", "http_malformed")
            self._refusal = self._refusal or malformed
        return None

    # Called by the parser. Nothing may be raised through it, so a callback notes its refusal, and
    # data_received acts upon it.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][HEADER_NAMES] = []
        self.scope["state"][LOG_IN] = self._place.log_in

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._refusal is None:
            super().on_header(name, value)
            self.scope["state"][HEADER_NAMES].append(name)

    def on_headers_complete(self) -> None:
        self._refusal = self._refusal or self._unacceptable() or self._unacceptable_upgrade()
        if self._refusal is None:
            self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            super().on_headers_complete()
            if 0 < len(self.pipeline) < _PIPELINE_MAX:
                # uvicorn would stop reading, and not see the client hang up. A message that was
                # received for that client would then be lost.
                self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = max(0, self._framing_bytes - len(body))
        self._body_bytes += len(body)
        if self._refusal is None:
            if self._body_bytes > self._host.body_max():
                self._refusal = self._too_large()
            else:
                super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = self._body_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._refusal is None:
            super().on_message_complete()

    # Called by uvicorn

    def on_response_complete(self) -> None:
        self._host.meter.http_requests += 1
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete:
            self._held_bytes = 0
        if self._place.holds or self.transport.get_write_buffer_size() > HELD_MIN:
            self.weigh()
        if self.transport.is_closing() and self._write_deadline is None:
            self._guard_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _should_upgrade(self) -> bool:
        return self._upgrade_reply is not None

    def timeout_keep_alive_handler(self) -> None:
        # With unread bytes in the buffer, close() would wait for the peer forever.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # Becoming a WebSocket

    def _unacceptable_upgrade(self) -> tuple[HTTPStatus, str, str] | None:
        """Why the request gets no WebSocket; None also when it asks for none."""
        self._upgrade_reply = None
        if not asks_for_websocket(self.url, self.headers):
            return None
        if self._place.spare:
            text = "Every connection there may be is taken."
            return HTTPStatus.SERVICE_UNAVAILABLE, text, "limit"
        finished = self.cycle is None or self.cycle.response_complete
        if not finished or self.flow.write_paused:
            text = "A WebSocket begins when every earlier reply has been read."
            return HTTPStatus.TOO_MANY_REQUESTS, text, "http_pipeline"
        method, version = self.parser.get_method().decode("latin-1"), self.parser.get_http_version()
        try:
            self._upgrade_reply = answer_upgrade(method, self.url, version, self.headers)
        except UpgradeRefused as refused:
            return refused.status, str(refused), "websocket_handshake"
        return None

    def _upgrade(self, rest: bytes) -> None:
        """Hand the connection over; this object gets no more of its data."""
        assert self._upgrade_reply is not None
        self._stop_timers()
        self.connections.discard(self)
        self.transport.write(self._upgrade_reply)
        self.parser = None  # type: ignore[assignment]
        self._forget_requests()
        websocket = WebSocket(
            self.transport,
            self._upgraded(),
            self._place,
            self._limits.websocket_frame_max_bytes,
            # A method of the host: the callback must not keep this finished object.
            partial(self._host.frame_refused, self.client),
        )
        websocket.begin(rest)

    # Refusing

    def _unacceptable(self) -> tuple[HTTPStatus, str, str] | None:
        """Why the application does not get the request whose headers are complete."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1:
            return HTTPStatus.BAD_REQUEST, "A request has exactly one Host.", "http_malformed"
        if self._host.check_host and not self._is_for_us(_name_of(hosts[0])):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "This address answers to localhost only.",
                "http_host",
            )
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if lengths and int(lengths[0]) > self._host.body_max():
            return self._too_large()
        if len(self.pipeline) >= _PIPELINE_MAX:
            return HTTPStatus.TOO_MANY_REQUESTS, "Too many requests sent ahead.", "http_pipeline"
        return None

    def _is_for_us(self, name: str) -> bool:
        return is_loopback(name) or name.lower() in self._host.known_as()

    def _too_large(self) -> tuple[HTTPStatus, str, str]:
        text = f"The request's body exceeds {self._host.body_max()} bytes."
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "http_body"

    def _await_request(self) -> None:
        self._timed_bytes = self._body_bytes
        self._deadline = self.loop.call_later(
            self._limits.request_timeout_ms / 1000, self._request_timed_out
        )

    def _request_timed_out(self) -> None:
        if self._body_bytes - self._timed_bytes >= PROGRESS_BYTES:
            self._await_request()
            return
        self._deadline = None
        text = f"The request was not whole within {self._limits.request_timeout_ms} ms."
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, text, "http_timeout")

    def _refuse(self, status: HTTPStatus, text: str, reason: str) -> None:
        """Give the reason, once, and cut the connection off."""
        if self.transport.is_closing():
            return
        self._deaf = True
        tracking = self._host.tracking.track()
        self._host.refused(reason, tracking, self.client)
        cycle = self.cycle
        answering = bool(self.pipeline) or (cycle is not None and cycle.response_started)
        finished = cycle is None or cycle.response_complete
        self._give_up_requests()
        if answering and not finished:
            self.transport.abort()  # a second reply inside the first would be garbage
            return
        self._unset_keepalive_if_required()
        self.transport.write(error_reply(status, tracking.describe(text)))
        if self.transport.can_write_eof():  # TLS cannot close one direction alone
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _give_up_requests(self) -> None:
        """End the requests that have lost their client; uvicorn tells only the last of them."""
        for cycle in (self._answering, self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _forget_requests(self) -> None:
        """Drop the references to this object, so that it goes with the last of its requests."""
        self.pipeline.clear()
        self.cycle = self._answering = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]

    def _stop_timers(self) -> None:
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        self._deadline = self._write_deadline = None

    def _guard_writing(self) -> None:
        self._write_deadline = self.loop.call_later(
            self._limits.request_timeout_ms / 1000, self.transport.abort
        )


def error_reply(status: HTTPStatus, text: str) -> bytes:
    """A whole reply with a refusal; the connection is closed after it."""
    # Admin clients read XML only (wire §9.5).
    body = f"<Error><Code>{status.value}</Code><Detail>{escape(text)}</Detail></Error>".encode()
    return b"".join(
        (
            STATUS_LINE[status.value],
            b"content-type: application/xml; charset=utf-8\r\n",
            # RFC 9110 15.5.22: this status must name the protocol to upgrade to.
            b"upgrade: websocket\r\n" if status is HTTPStatus.UPGRADE_REQUIRED else b"",
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode(),
            body,
        )
    )


def _name_of(host: bytes) -> str:
    """The name in a Host header, without port, brackets and final dot."""
    text = host.decode("latin-1").strip()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.removesuffix(".")

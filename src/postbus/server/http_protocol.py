"""HTTP on a connection of ours: uvicorn's protocol, with the bounds that it leaves to its owner.

uvicorn caps neither headers nor bodies, nor the time of a request that never ends. Here whatever
goes past a bound is refused once, in the form HTTP errors have everywhere in Postbus, and the
connection is cut off. `Host` is checked on loopback: a web page must not reach the well-known key
by pointing a name of its own at this machine.
"""

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from postbus.server.logs import Valve, get_logger
from postbus.server.meters import ConnectionMeter
from postbus.server.tracking import Tracking, TrackingIds
from postbus.settings import is_loopback

_log = get_logger("http")
# uvicorn warns of every malformed request, which is for strangers to cause: we count them, and log
# through a valve. Its errors, an application's exceptions, still come through.
_uvicorn_log = logging.getLogger("uvicorn.error.connection")
_uvicorn_log.setLevel(logging.ERROR)

HEADER_NAMES: Final = "postbus.header_names"
"""In a request's state: the names of its headers as they were written. Over HTTP a message's
properties are headers, and their names have a case."""

# The parser gets a read in pieces, so that a bound is passed by one piece at most.
_PIECE_BYTES: Final = 8_192
# Requests sent ahead on one connection. Hardly a client does that; a hostile one could fit
# thousands into one read.
_PIPELINE_MAX: Final = 16
# How long a refused peer may go on sending before it is cut off. Closing at once would reset the
# connection, and the client would never see why.
_LINGER_S: Final = 1.0


class HttpLimits(NamedTuple):
    header_max_bytes: int
    """All of a request that is not its body: head, chunk sizes, trailers."""
    body_max_bytes: int
    request_timeout_ms: int
    """For the request to arrive whole, and for a reply that waits for its reader."""
    keep_alive_timeout_ms: int


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
    ) -> None:
        self.limits = limits
        self.check_host = check_host
        self.tracking = tracking
        self.meter = meter
        self.state = ServerState()
        self._valve = Valve()
        # Nothing of uvicorn's own server is used: no signals, no lifespan, no log set-up; and no
        # trust in X-Forwarded-For, for there is no proxy in front of us that we know of.
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

    def protocol(self, released: Callable[[], None]) -> asyncio.Protocol:
        """A protocol for one connection; `released` is called when that is gone."""
        return BoundedHttpProtocol(self, released)

    def refused(self, reason: str, tracking: Tracking, peer: object) -> None:
        """Count a refusal, and log it unless one for the same reason was logged just now."""
        self.meter.turned_away(reason)
        held = self._valve.passes(reason, tracking.at)
        if held is not None:
            _log.warning(
                "request refused", reason=reason, peer=str(peer), tracking=tracking.id, more=held
            )

    async def drain(self, grace_s: float) -> None:
        """Finish the requests in hand, and cut off those still there after the grace time."""
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

    def __init__(self, host: HttpHost, released: Callable[[], None]) -> None:
        super().__init__(host.config, host.state, {})
        self.logger = _uvicorn_log
        # uvicorn counts whole seconds, but only passes them on to the loop, which does not.
        self.timeout_keep_alive = host.limits.keep_alive_timeout_ms / 1000  # type: ignore[assignment]
        self._host = host
        self._limits = host.limits
        self._released = released
        self._framing_bytes = 0
        self._body_bytes = 0
        self._refusal: tuple[HTTPStatus, str, str] | None = None
        self._deaf = False
        """Whatever still arrives is dropped."""
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    # What the transport calls

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._write_deadline):
            if timer is not None:
                timer.cancel()
        self._deadline = self._write_deadline = None
        super().connection_lost(exc)
        self._released()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        # Also for bytes that begin no request (bare line ends): they stop the keep-alive timer.
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._deadline = self.loop.call_later(
                self._limits.request_timeout_ms / 1000, self._request_timed_out
            )
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            self._framing_bytes += len(piece)
            super().data_received(piece)
            if self._refusal is None and self._framing_bytes > self._limits.header_max_bytes:
                self._refusal = (
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"The request's headers exceed {self._limits.header_max_bytes} bytes.",
                    "http_headers",
                )
            if self._refusal is not None:
                self._refuse(*self._refusal)
            if self._deaf or self.transport.is_closing():
                return

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._guard_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    # What the parser calls; nothing may be raised through it, so a refusal is noted and acted
    # upon by data_received.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][HEADER_NAMES] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._refusal is None:
            super().on_header(name, value)
            self.scope["state"][HEADER_NAMES].append(name)

    def on_headers_complete(self) -> None:
        self._refusal = self._refusal or self._unacceptable()
        if self._refusal is None:
            self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = max(0, self._framing_bytes - len(body))
        self._body_bytes += len(body)
        if self._refusal is None:
            if self._body_bytes > self._limits.body_max_bytes:
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

    # What uvicorn calls

    def on_response_complete(self) -> None:
        self._host.meter.http_requests += 1
        super().on_response_complete()
        if self.transport.is_closing() and self._write_deadline is None:
            self._guard_writing()

    def send_400_response(self, msg: str) -> None:
        # uvicorn has found the request malformed, or a callback above refused while it parsed.
        self._refusal = self._refusal or (HTTPStatus.BAD_REQUEST, msg, "http_malformed")

    def _unsupported_upgrade_warning(self) -> None:
        # The request is answered as if it had not asked; what follows it is in no protocol we know.
        self._deaf = True
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def timeout_keep_alive_handler(self) -> None:
        # With bytes still to be read by the peer, close() would wait for it forever.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # Refusing

    def _unacceptable(self) -> tuple[HTTPStatus, str, str] | None:
        """Why the request whose headers are complete is not given to the application."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1:
            return HTTPStatus.BAD_REQUEST, "A request has exactly one Host.", "http_malformed"
        if self._host.check_host and not is_loopback(_name_of(hosts[0])):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "This address answers to localhost only.",
                "http_host",
            )
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if lengths and int(lengths[0]) > self._limits.body_max_bytes:
            return self._too_large()
        if len(self.pipeline) >= _PIPELINE_MAX:
            return HTTPStatus.TOO_MANY_REQUESTS, "Too many requests sent ahead.", "http_pipeline"
        return None

    def _too_large(self) -> tuple[HTTPStatus, str, str]:
        text = f"The request's body exceeds {self._limits.body_max_bytes} bytes."
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text, "http_body"

    def _request_timed_out(self) -> None:
        self._deadline = None
        text = f"The request was not whole within {self._limits.request_timeout_ms} ms."
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, text, "http_timeout")

    def _refuse(self, status: HTTPStatus, text: str, reason: str) -> None:
        """Say why, once, and cut the connection off."""
        if self.transport.is_closing():
            return
        self._deaf = True
        tracking = self._host.tracking.track()
        self._host.refused(reason, tracking, self.client)
        cycle = self.cycle
        answering = bool(self.pipeline) or (cycle is not None and cycle.response_started)
        finished = cycle is None or cycle.response_complete
        if cycle is not None and not finished:
            cycle.disconnected = True
            cycle.message_event.set()
        if answering and not finished:
            self.transport.abort()  # a second reply in the middle of the first would be garbage
            return
        self._unset_keepalive_if_required()
        self.transport.write(_error(status, tracking.describe(text)))
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _guard_writing(self) -> None:
        self._write_deadline = self.loop.call_later(
            self._limits.request_timeout_ms / 1000, self.transport.abort
        )


def _error(status: HTTPStatus, text: str) -> bytes:
    # Admin clients read XML only (wire contract §9.5).
    body = f"<Error><Code>{status.value}</Code><Detail>{escape(text)}</Detail></Error>".encode()
    return b"".join(
        (
            STATUS_LINE[status.value],
            b"content-type: application/xml; charset=utf-8\r\n",
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode(),
            body,
        )
    )


def _name_of(host: bytes) -> str:
    """The name in a Host header, without port, brackets and final dot."""
    text = host.decode("latin-1").strip()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return name.removesuffix(".")

"""Whether a request may turn its connection into a WebSocket, and the reply that does so. Pure.

Only AMQP runs over WebSockets here, at one path and under the SDKs' names for it (wire §1.4).
Extensions are declined: compression would let a few bytes become very many.
"""

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes

from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = (Subprotocol("AMQPWSB10"), Subprotocol("amqp"))

_PATH: Final = WEBSOCKET_PATH.encode()
# The refusal tells the reason. The library's own log lines are off, because strangers could cause
# them at will.
_log = logging.getLogger("websockets.upgrading")
_log.setLevel(logging.CRITICAL)

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Names in small letters, as HTTP parsers give them."""


class UpgradeRefused(Exception):
    """The connection stays HTTP; status and text say why."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def asks_for_websocket(target: bytes, headers: RawHeaders) -> bool:
    """Does the request ask for a WebSocket, by its headers or by its path?"""
    return _is_at_path(target) or any(
        name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in headers
    )


def answer_upgrade(method: str, target: bytes, version: str, headers: RawHeaders) -> bytes:
    """The reply after which both sides speak WebSocket; raises UpgradeRefused."""
    if not _is_at_path(target):
        raise UpgradeRefused(
            HTTPStatus.NOT_FOUND, f"WebSockets are spoken at {WEBSOCKET_PATH} only."
        )
    _check_origin(headers)
    if any(name == b"transfer-encoding" or _is_length(name, value) for name, value in headers):
        raise UpgradeRefused(HTTPStatus.BAD_REQUEST, "A WebSocket handshake has no body.")
    handshake = ServerProtocol(subprotocols=SUBPROTOCOLS, extensions=None, logger=_log)
    request = Request(
        target.decode("latin-1"),
        Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]),
        method,
        f"HTTP/{version}",
    )
    response = handshake.accept(request)
    handshake.parser.close()  # otherwise its two parts would keep each other alive
    if handshake.handshake_exc is not None:
        raise UpgradeRefused(
            HTTPStatus(response.status_code),
            f"The WebSocket handshake is refused: {_chain(handshake.handshake_exc)}.",
        )
    return response.serialize()


def _is_at_path(target: bytes) -> bool:
    path = unquote_to_bytes(target.partition(b"?")[0]).lower()
    return path.removesuffix(b"/") == _PATH  # .NET's path ends with a slash


def _is_length(name: bytes, value: bytes) -> bool:
    return name == b"content-length" and value.strip() != b"0"


def _check_origin(headers: RawHeaders) -> None:
    """Refuse a page of another site.

    A browser names the page that asks, and lets any page ask. Otherwise every web page could reach
    a broker on loopback, where everybody knows the key. Among the SDKs only Python's sync client
    sends an Origin, and it names the host it connects to.
    """
    host = next((value for name, value in headers if name == b"host"), b"")
    for name, value in headers:
        if name == b"origin" and value.partition(b"://")[2].lower() != host.lower():
            raise UpgradeRefused(
                HTTPStatus.FORBIDDEN, "A WebSocket is not for pages of another origin."
            )


def _chain(error: BaseException | None) -> str:
    """The texts of an error and of all its causes."""
    said = []
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    return "; ".join(said)

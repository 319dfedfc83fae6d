"""Messages over HTTP: send, receive, settle (semantics A §7, wire §9.6).

Reads a request, checks the claims, asks the mailbox and writes the reply; decides nothing about
messages. A message is bounded before it is read, and answered after its commit.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.errors import InvalidArgument, MessageSizeExceeded, ServerBusy, ServiceBusError
from postbus.http.atom import Site
from postbus.http.batches import is_batch, read_batch
from postbus.http.mailbox import Mailbox
from postbus.http.message_headers import (
    EMPTY_TYPE,
    headers_of,
    only_header,
    read_message,
    write_message,
)
from postbus.http.problems import wrong_method
from postbus.model.address import Address, resolve_path
from postbus.model.limits import BATCH_SIZE_MAX
from postbus.model.plain_message import PlainMessage

WAIT_DEFAULT_MS: Final = 60_000
"""The wait of a receive that gives no time-out."""
BODIES_MAX_BYTES: Final = 128 << 20
"""Bytes of all requests that are being read; more than the largest message of any entity."""

_TOKEN: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)


class MessageSelector(Enum):
    """Which messages of an entity a path names."""

    ALL = auto()
    HEAD = auto()
    LOCKED = auto()


class MessagePath(NamedTuple):
    """A path below `/messages` of an entity, in parts."""

    path: str
    """The path of the entity or subqueue."""
    place: MessageSelector
    reference: str = ""
    """Number or id of a locked message."""
    token: UUID | None = None


VALUES_PER_TURN: Final = 4_096
"""Messages and properties of a batch that are read in one go, before other work runs: some 10
ms."""


def find_target(method: str, raw_path: str) -> MessagePath | None:
    """The parts of a percent-encoded path; None where the path names no message.

    A queue may be called `eu/messages`. So a path that a management request could have is no
    message.
    """
    parts = raw_path.strip("/").split("/")
    match [part.lower() for part in parts]:
        case [_, *_, "messages"] if method == "POST":
            return MessagePath(_entity(parts[:-1]), MessageSelector.ALL)
        case [_, *_, "messages", "head"]:
            return MessagePath(_entity(parts[:-2]), MessageSelector.HEAD)
        case [_, *_, "messages", _, token] if method == "POST" or _TOKEN.fullmatch(token):
            if _TOKEN.fullmatch(token) is None:
                raise InvalidArgument(f"The lock token '{token[:64]}' is not a GUID.")
            return MessagePath(
                _entity(parts[:-3]), MessageSelector.LOCKED, unquote(parts[-2]), UUID(token)
            )
    return None


def _entity(parts: list[str]) -> str:
    return unquote("/".join(parts))


class Messages:
    """Send, receive and settle, for clients that hold Send or Listen."""

    __slots__ = ("_mailbox", "_reading_bytes", "_review", "_wait_max_ms")

    def __init__(
        self, mailbox: Mailbox, review: Callable[[Claims], Claims | None], wait_max_ms: int
    ) -> None:
        """`review` gives the claims that remain, since keys may be gone by now."""
        self._mailbox = mailbox
        self._review = review
        self._wait_max_ms = wait_max_ms
        self._reading_bytes = 0

    async def answer(
        self, request: Request, target: MessagePath, claims: Claims, site: Site
    ) -> Response:
        address = resolve_path(target.path)
        if address.management:
            raise InvalidArgument(f"'{address.path}' holds no messages.")
        right = Right.SEND if target.place is MessageSelector.ALL else Right.LISTEN
        # Quoted, because claims are about URLs and a message id may have a question mark.
        path, url_path = quote(address.path), quote(request.scope["path"])

        def check() -> None:
            left = self._review(claims)
            if left is None or not left.allows_request(right, path, url_path):
                raise missing_claim(right, site.address(address.path))

        # Rights before existence: a stranger does not learn what there is (semantics A §6).
        check()
        try:
            match target.place:
                case MessageSelector.ALL:
                    return await self._send(request, address, check)
                case MessageSelector.HEAD:
                    return await self._receive(request, address, site, check)
            return await self._settle(request.method, address, target)
        except ServiceBusError as error:
            self._mailbox.refused(address, error)
            raise

    # -- send ----------------------------------------------------------------------------------

    async def _send(
        self, request: Request, address: Address, check: Callable[[], None]
    ) -> Response:
        room = self._mailbox.room_for(address)
        headers = headers_of(request)
        content_type = only_header(headers, "content-type")
        if content_type is not None and is_batch(content_type):
            # The whole body is read at once, so it has the same bound as over AMQP.
            room = min(room, BATCH_SIZE_MAX)
            messages = await _in_turns(read_batch(await self._read_body(request, room, address)))
        else:
            message = read_message(headers, content_type)
            message.body = await self._read_body(request, room, address)
            messages = [message]
        await self._mailbox.send(address, messages, check)
        return Response(status_code=201, headers={"content-type": EMPTY_TYPE})

    async def _read_body(self, request: Request, room: int, address: Address) -> bytes:
        """The body, within the bound of a message; a larger body is not kept."""
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > room:
            raise _too_large(room, address)
        body = bytearray()
        try:
            async for chunk in request.stream():
                self._reading_bytes += len(chunk)
                body += chunk
                if len(body) > room:
                    raise _too_large(room, address)
                if self._reading_bytes > BODIES_MAX_BYTES:
                    raise ServerBusy("The broker reads as many bodies as it can hold; try again.")
            return bytes(body)
        finally:
            self._reading_bytes -= len(body)

    # -- receive -------------------------------------------------------------------------------

    async def _receive(
        self, request: Request, address: Address, site: Site, check: Callable[[], None]
    ) -> Response:
        if request.method not in ("POST", "DELETE"):
            raise wrong_method(request.method, "POST, DELETE")
        wait_ms = min(_wait_ms(request.query_params.get("timeout")), self._wait_max_ms)
        async for _ in request.stream():
            pass  # a receive has no body; any data is dropped
        deletes = request.method == "DELETE"
        gone = asyncio.ensure_future(client_gone(request))
        try:
            received = await self._mailbox.receive(address, deletes, wait_ms, gone, check)
            if gone.done():
                raise ClientDisconnect
        finally:
            gone.cancel()
        # Nothing waits from here to the first byte of the reply, so the message cannot get lost
        # between.
        if received is None:
            return Response(status_code=204)
        return write_message(received, address, site.base_url)

    # -- settle --------------------------------------------------------------------------------

    async def _settle(self, method: str, address: Address, target: MessagePath) -> Response:
        assert target.token is not None
        match method:
            case "DELETE":
                await self._mailbox.complete(address, target.reference, target.token)
            case "PUT":
                await self._mailbox.unlock(address, target.reference, target.token)
            case "POST":
                await self._mailbox.renew(address, target.reference, target.token)
            case _:
                raise wrong_method(method, "DELETE, PUT, POST")
        return Response(status_code=200, headers={"content-type": EMPTY_TYPE})


async def _in_turns(coming: Iterator[PlainMessage]) -> list[PlainMessage]:
    """Collect the messages, and let other work run in between."""
    messages: list[PlainMessage] = []
    values = 0
    for message in coming:
        messages.append(message)
        values += 1 + len(message.properties)
        if values > VALUES_PER_TURN:
            values = 0
            await asyncio.sleep(0)
    return messages


async def client_gone(request: Request) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _wait_ms(text: str | None) -> int:
    if text is None:
        return WAIT_DEFAULT_MS
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(
            f"The query option 'timeout' must be a whole number of seconds, not '{text[:64]}'."
        )
    return int(text) * 1_000


def _too_large(room: int, address: Address) -> MessageSizeExceeded:
    return MessageSizeExceeded(
        f"The body exceeds the limit ({room} bytes) currently allowed on the entity "
        f"'{address.entity}'."
    )

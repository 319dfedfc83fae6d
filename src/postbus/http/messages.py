"""Messages over HTTP: send, receive, settle (semantics A §7, wire §9.6).

Reads what a request asks for, checks the claims, asks the mailbox and writes the reply; decides
nothing about messages. A message is bounded before it is read, and answered after its commit.
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
"""How long a receive waits that does not say."""
BODIES_MAX_BYTES: Final = 128 << 20
"""Of all requests together that are being read; more than the largest message of any entity."""

_TOKEN: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", re.ASCII)


class MessageSelector(Enum):
    """Which part of an entity's messages a path names."""

    ALL = auto()
    HEAD = auto()
    LOCKED = auto()


class MessagePath(NamedTuple):
    """What a path below an entity's `/messages` names."""

    path: str
    """Of the entity or subqueue."""
    place: MessageSelector
    reference: str = ""
    """Number or id of a locked message."""
    token: UUID | None = None


VALUES_PER_TURN: Final = 4_096
"""Messages and properties of a batch that are read before others have their turn: some 10 ms."""


def find_target(method: str, raw_path: str) -> MessagePath | None:
    """What a path names, percent-encoding and all; None if that is no message.

    A queue may be called `eu/messages`: only what no request for its management looks like is
    taken for a message.
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
        """`review` gives what is left of claims whose keys may be gone by now."""
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
        # Quoted, because claims are about URLs and the id of a message may have a question mark.
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
                    return await self._send(request, address)
                case MessageSelector.HEAD:
                    return await self._receive(request, address, site, check)
            return await self._settle(request.method, address, target)
        except ServiceBusError as error:
            self._mailbox.refused(address, error)
            raise

    # -- send ----------------------------------------------------------------------------------

    async def _send(self, request: Request, address: Address) -> Response:
        room = self._mailbox.room_for(address)
        headers = headers_of(request)
        content_type = only_header(headers, "content-type")
        if content_type is not None and is_batch(content_type):
            # All of it is read at once, so it has the bound that it has over AMQP.
            room = min(room, BATCH_SIZE_MAX)
            messages = await _in_turns(read_batch(await self._read_body(request, room, address)))
        else:
            message = read_message(headers, content_type)
            message.body = await self._read_body(request, room, address)
            messages = [message]
        await self._mailbox.send(address, messages)
        return Response(status_code=201, headers={"content-type": EMPTY_TYPE})

    async def _read_body(self, request: Request, room: int, address: Address) -> bytes:
        """The body, within what a message may have; what is larger is not kept."""
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
            pass  # a receive has no body; whatever comes is not kept
        deletes = request.method == "DELETE"
        gone = asyncio.ensure_future(client_gone(request))
        try:
            received = await self._mailbox.receive(address, deletes, wait_ms, gone, check)
            if gone.done():
                raise ClientDisconnect
        finally:
            gone.cancel()
        # From here to the first byte of the reply nothing waits: the message is not lost between.
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
    """Take what is read, and let others have their turn in between."""
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
    """Comes back when the client has hung up."""
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

"""The application over a namespace in memory, and a way to send it requests without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote
from xml.etree.ElementTree import Element, fromstring

from starlette.applications import Starlette

from postbus.auth.authority import Authority
from postbus.auth.keyring import AccessKey
from postbus.auth.sas import create_sas
from postbus.http.atom import ATOM, INSTANCE, SERVICE_BUS
from postbus.http.feed import FeedPages
from postbus.http.routing import Front
from postbus.model.authorization import Right, Rules
from postbus.model.description import QueueDescription
from postbus.model.times import Instant
from postbus.observe.logs import TrackingIds
from tests.unit.http.mailbox import MemoryMailbox
from tests.unit.http.memory import T0, MemoryNamespace
from tests.unit.http.resubmission import MemoryResubmission
from tests.unit.http.usage import MemoryUsage

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
LISTENER = AccessKey("listener", ("listen-key",), Right.LISTEN)
TRACKING_ID = "11111111-2222-3333-4444-555555555555"


@dataclass
class Health:
    healthy: bool = True
    details: dict[str, object] = field(default_factory=dict)

    async def __call__(self) -> tuple[bool, dict[str, object]]:
        return self.healthy, self.details


async def _scrape(accept: str) -> tuple[bytes, str]:
    return b"# HELP messages\n", f"text/plain; asked={accept}"


def application(
    namespace: MemoryNamespace,
    health: Health | None = None,
    defaults: QueueDescription | None = None,
    mailbox: MemoryMailbox | None = None,
    resubmission: MemoryResubmission | None = None,
    usage: MemoryUsage | None = None,
) -> Starlette:
    mailbox = mailbox or MemoryMailbox()
    authority = Authority([AccessKey(KEY_NAME, (KEY,)), LISTENER])

    def learn(name: str, rules: Rules | None) -> None:
        if rules is None:
            authority.forget(name)
        else:
            authority.learn(name, map(AccessKey.of, rules))

    namespace.on_rules = learn
    for name in mailbox.entities:
        authority.learn(name, [])
    return Front(
        namespace=cast("Any", namespace),
        authority=authority,
        clock=lambda: namespace.now,
        wall=lambda: namespace.now,
        tracking=TrackingIds(namespace.name, lambda: namespace.now, lambda: TRACKING_ID),
        health=health or Health(),
        metrics=_scrape,
        defaults=defaults or QueueDescription(),
        mailbox=cast("Any", mailbox),
        feeds=cast("FeedPages", None),  # needs a whole server: tests/unit/feed/test_service.py
        resubmission=cast("Any", resubmission or MemoryResubmission()),
        usage=cast("Any", usage or MemoryUsage()),
        wait_max_ms=240_000,
    ).app()


def token(uri: str = "https://localhost:5300", now: Instant = T0) -> str:
    return create_sas(KEY_NAME, KEY, uri, now + 3_600_000)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def xml(self) -> Element:
        return fromstring(self.body)

    @property
    def detail(self) -> str:
        """The text of an error."""
        assert self.headers["content-type"] == "application/xml; charset=utf-8"
        assert self.xml.findtext("Code") == str(self.status)
        return self.xml.findtext("Detail") or ""

    @property
    def description(self) -> Element:
        """The description in an entry."""
        content = self.xml.find(f"{{{ATOM}}}content")
        assert content is not None and len(content) == 1
        return content[0]

    def value(self, element: str) -> str | None:
        """What a description in an entry says."""
        return self.description.findtext(f"{{{SERVICE_BUS}}}{element}")


class Client:
    """Sends one request at a time to an ASGI application."""

    def __init__(self, app: Starlette, authorization: str | None = None) -> None:
        self._app = app
        self._authorization = token() if authorization is None else authorization
        self.chunks_taken = 0
        self.stays = False
        """Goes on listening when it has sent everything, instead of hanging up."""

    async def send(
        self,
        method: str,
        target: str,
        body: bytes | list[bytes] = b"",
        headers: dict[str, str] | None = None,
        *,
        authorized: bool = True,
    ) -> Reply:
        path, _, query = target.partition("?")
        sent = {"host": "localhost:5300", **(headers or {})}
        if authorized:
            sent.setdefault("authorization", self._authorization)
        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent.items()],
            "server": ("127.0.0.1", 5300),
        }
        chunks = self._chunks([body] if isinstance(body, bytes) else body)
        replies: list[Any] = []

        async def collect(message: Any) -> None:
            replies.append(message)

        await self._app(scope, chunks.__anext__, collect)
        if not replies:
            return Reply(0, {}, b"")  # it was noticed that the client has gone
        start, *rest = replies
        received = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        return Reply(start["status"], received, b"".join(each["body"] for each in rest))

    async def _chunks(self, chunks: list[bytes]) -> AsyncIterator[Any]:
        for index, chunk in enumerate(chunks):
            self.chunks_taken += 1
            more = index + 1 < len(chunks)
            yield {"type": "http.request", "body": chunk, "more_body": more}
        if self.stays:
            await asyncio.Event().wait()
        yield {"type": "http.disconnect"}

    async def get(self, target: str, **options: Any) -> Reply:
        return await self.send("GET", target, **options)

    async def put(self, target: str, body: bytes | list[bytes], **options: Any) -> Reply:
        return await self.send("PUT", target, body, **options)

    async def delete(self, target: str, **options: Any) -> Reply:
        return await self.send("DELETE", target, **options)


def entry(elements: str = "", kind: str = "QueueDescription") -> bytes:
    """The body of a PUT with these elements in it."""
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{elements}</{kind}></content></entry>'
    ).encode()

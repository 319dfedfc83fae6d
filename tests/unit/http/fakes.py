"""A namespace in memory, and a way to send requests to the application without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from urllib.parse import unquote
from xml.etree.ElementTree import Element, fromstring

from starlette.applications import Starlette

from postbus.errors import EntityAlreadyExists, EntityNotFound
from postbus.http.app import build_app
from postbus.http.atom import ATOM, SERVICE_BUS
from postbus.model.authorization import Right, Rules, settle_rules
from postbus.model.description import QueueCounts, QueueDescription
from postbus.model.instant import Instant
from postbus.server.auth import Authority
from postbus.server.keyring import AccessKey
from postbus.server.sas import create_sas
from postbus.server.tracking import TrackingIds

T0: Instant = 1_700_000_000_123
NAMESPACE = "test-namespace"
KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
LISTENER = AccessKey("listener", ("listen-key",), Right.LISTEN)
TRACKING_ID = "11111111-2222-3333-4444-555555555555"


@dataclass
class Queue:
    name: str
    description: QueueDescription
    created_at: Instant
    updated_at: Instant
    accessed_at: Instant = 0


@dataclass
class MemoryNamespace:
    """What `postbus.http.entities.Namespace` asks for, and nothing behind it."""

    name: str = NAMESPACE
    created_at: Instant = T0
    now: Instant = T0
    all_counts: dict[str, QueueCounts] = field(default_factory=dict)
    failure: Exception | None = None
    on_rules: Callable[[str, Rules | None], None] = lambda name, rules: None
    made_keys: Iterator[str] = field(default_factory=lambda: map("{:044}".format, count(1)))
    _queues: dict[str, Queue] = field(default_factory=dict)

    def queue(self, name: str) -> Queue | None:
        return self._queues.get(name.lower())

    def queues(self) -> list[Any]:
        return [self._queues[name] for name in sorted(self._queues)]

    async def create_queue(self, name: str, description: QueueDescription) -> Queue:
        if self.failure is not None:
            raise self.failure
        if name.lower() in self._queues:
            raise EntityAlreadyExists(name)
        description = self._with_keys(description, ())
        queue = Queue(name, description, self.now, self.now)
        self.on_rules(name, description.authorization_rules)
        self._queues[name.lower()] = queue
        return queue

    async def update_queue(self, name: str, description: QueueDescription) -> Queue:
        queue = self._existing(name)
        description = self._with_keys(description, queue.description.authorization_rules)
        queue.description, queue.updated_at = description, self.now
        self.on_rules(name, description.authorization_rules)
        return queue

    async def delete_queue(self, name: str) -> None:
        self._existing(name)
        del self._queues[name.lower()]
        self.on_rules(name, None)

    async def counts(self, name: str) -> QueueCounts:
        self._existing(name)
        return self.all_counts.get(name.lower(), QueueCounts())

    def _with_keys(self, description: QueueDescription, previous: Rules) -> QueueDescription:
        rules = settle_rules(
            description.authorization_rules, previous, self.now, lambda: next(self.made_keys)
        )
        return replace(description, authorization_rules=rules)

    def _existing(self, name: str) -> Queue:
        queue = self.queue(name)
        if queue is None:
            raise EntityNotFound(name)
        return queue


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
) -> Starlette:
    authority = Authority([AccessKey(KEY_NAME, (KEY,)), LISTENER])

    def learn(name: str, rules: Rules | None) -> None:
        if rules is None:
            authority.forget(name)
        else:
            authority.learn(name, map(AccessKey.of, rules))

    namespace.on_rules = learn
    return build_app(
        namespace=namespace,
        authority=authority,
        clock=lambda: namespace.now,
        tracking=TrackingIds(namespace.name, lambda: namespace.now, lambda: TRACKING_ID),
        health=health or Health(),
        metrics=_scrape,
        defaults=defaults or QueueDescription(),
    )


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

    def value(self, element: str) -> str | None:
        """What a description in an entry says."""
        path = f"{{{ATOM}}}content/{{{SERVICE_BUS}}}QueueDescription/{{{SERVICE_BUS}}}{element}"
        return self.xml.findtext(path)


class Client:
    """Sends one request at a time to an ASGI application."""

    def __init__(self, app: Starlette, authorization: str | None = None) -> None:
        self._app = app
        self._authorization = token() if authorization is None else authorization
        self.chunks_taken = 0

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
        start, *rest = replies
        received = {k.decode(): v.decode("latin-1") for k, v in start["headers"]}
        return Reply(start["status"], received, b"".join(each["body"] for each in rest))

    async def _chunks(self, chunks: list[bytes]) -> AsyncIterator[Any]:
        for index, chunk in enumerate(chunks):
            self.chunks_taken += 1
            more = index + 1 < len(chunks)
            yield {"type": "http.request", "body": chunk, "more_body": more}
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
        f'<{kind} xmlns="{SERVICE_BUS}">{elements}</{kind}></content></entry>'
    ).encode()

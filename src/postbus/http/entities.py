"""The management operations on queues, as HTTP sees them (wire contract §9.2).

Decides nothing about messages: it reads what a request asks for, checks the claims, calls the
namespace and writes the reply.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from starlette.responses import Response

from postbus.errors import EntityNotFound, InvalidArgument, NotSupported, Unauthorized
from postbus.http.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    Page,
    QueueView,
    Site,
    namespace_entry,
    queue_entry,
    queue_feed,
    read_queue,
    topic_feed,
)
from postbus.http.problems import HttpProblem, missing_for_delete, missing_for_update
from postbus.model.address import check_entity_name
from postbus.model.description import QueueCounts, QueueDescription
from postbus.model.duration import ticks_of_instant
from postbus.model.fields import describe_queue, refuse_changes
from postbus.model.instant import Instant
from postbus.server.auth import Claims, Right

PAGE_LENGTH_MAX: Final = 100

_READ: Final = "Manage,EntityRead claims required for this operation."
_WRITE: Final = "Authorization failed for specified action: Manage,EntityWrite."
_DELETE: Final = "Authorization failed for specified action: Manage,EntityDelete."


class QueueEntity(Protocol):
    """A queue that is there."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> QueueDescription: ...
    @property
    def created_at(self) -> Instant: ...
    @property
    def updated_at(self) -> Instant: ...
    @property
    def accessed_at(self) -> Instant:
        """When it was last used; 0 for never."""


class Namespace(Protocol):
    """What the management API needs of a namespace. Names compare case-insensitively."""

    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> Instant: ...

    def queue(self, name: str) -> QueueEntity | None: ...

    def queues(self) -> Sequence[QueueEntity]:
        """All of them, in the order of their names."""

    async def create_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        """Raises EntityAlreadyExists, QuotaExceeded, InvalidArgument."""

    async def update_queue(self, name: str, description: QueueDescription) -> QueueEntity:
        """Raises EntityNotFound, InvalidArgument."""

    async def delete_queue(self, name: str) -> None:
        """Raises EntityNotFound."""

    async def counts(self, name: str) -> QueueCounts:
        """Raises EntityNotFound."""


class Entities:
    """Create, read, list, update and delete, for clients that hold Manage."""

    __slots__ = ("_clock", "_defaults", "_namespace")

    def __init__(
        self, namespace: Namespace, defaults: QueueDescription, clock: Callable[[], Instant]
    ) -> None:
        self._namespace = namespace
        self._defaults = defaults
        self._clock = clock

    def namespace_info(self, claims: Claims, site: Site) -> Response:
        _require(claims, "$namespaceinfo", _READ)
        return Response(namespace_entry(site, self._namespace.created_at), media_type=ENTRY_TYPE)

    async def list_queues(self, query: Mapping[str, str], claims: Claims, site: Site) -> Response:
        _require(claims, "$Resources/queues", _READ)
        skip, top = _paging(query)
        queues = self._namespace.queues()
        shown = queues[skip : skip + top]
        counts = await asyncio.gather(*(self._counts(queue.name) for queue in shown))
        views = [_view(queue, count) for queue, count in zip(shown, counts, strict=True)]
        page = Page(skip, top, more=0 < top < len(queues) - skip)
        return Response(queue_feed(views, page, site, self._clock()), media_type=FEED_TYPE)

    def list_topics(self, query: Mapping[str, str], claims: Claims, site: Site) -> Response:
        _require(claims, "$Resources/topics", _READ)
        skip, top = _paging(query)
        return Response(
            topic_feed(Page(skip, top, more=False), site, self._clock()), media_type=FEED_TYPE
        )

    async def read(self, name: str, claims: Claims, site: Site) -> Response:
        _require(claims, name, _READ)
        queue = self._namespace.queue(name)
        if queue is None:
            raise EntityNotFound(name)
        return _reply(_view(queue, await self._counts(queue.name)), site)

    async def create(self, name: str, body: bytes, claims: Claims, site: Site) -> Response:
        _require(claims, name, _WRITE)
        check_entity_name(name)
        description = describe_queue(read_queue(body), self._defaults)
        queue = await self._namespace.create_queue(name, description)
        return _reply(_view(queue, QueueCounts()), site, status=201)

    async def update(
        self, name: str, body: bytes, etag: str, claims: Claims, site: Site
    ) -> Response:
        """Replace the description: what the body leaves out goes back to its default."""
        _require(claims, name, _WRITE)
        values = read_queue(body)
        queue = self._namespace.queue(name)
        if queue is None:
            raise missing_for_update()
        if etag != "*" and etag.strip('"') != _etag(queue.updated_at):
            raise HttpProblem(412, "The queue was updated after the version in 'If-Match'.")
        refuse_changes(values)
        description = describe_queue(values, self._defaults)
        try:
            queue = await self._namespace.update_queue(name, description)
        except EntityNotFound:
            raise missing_for_update() from None
        return _reply(_view(queue, await self._counts(name)), site, published=False)

    async def delete(self, name: str, claims: Claims) -> Response:
        _require(claims, name, _DELETE)
        try:
            await self._namespace.delete_queue(name)
        except EntityNotFound:
            raise missing_for_delete() from None
        return Response()

    async def _counts(self, name: str) -> QueueCounts:
        try:
            return await self._namespace.counts(name)
        except EntityNotFound:
            # Deleted since it was looked up. A page must not get shorter by it: .NET's client
            # takes a short page for the last one (wire contract §9.3).
            return QueueCounts()


def refuse_topic(method: str, name: str) -> Exception:
    """What answers a request for a subscription or a rule: no topic is there to have one."""
    match method:
        case "PUT":
            return NotSupported(
                f"'{name}' cannot be stored: Postbus does not support topics and subscriptions yet."
            )
        case "DELETE":
            return missing_for_delete()
    return EntityNotFound(name)


def _require(claims: Claims, path: str, text: str) -> None:
    if not claims.allows(Right.MANAGE, path):
        raise Unauthorized(text)


def _paging(query: Mapping[str, str]) -> tuple[int, int]:
    if "$filter" in query:
        raise NotSupported("The query option '$filter' is not supported: lists come whole.")
    return _count(query, "$skip", 0), min(_count(query, "$top", PAGE_LENGTH_MAX), PAGE_LENGTH_MAX)


def _count(query: Mapping[str, str], option: str, default: int) -> int:
    text = query.get(option)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(
            f"The query option '{option}' must be a whole number from 0, not '{text[:64]}'."
        )
    return int(text)


def _view(queue: QueueEntity, counts: QueueCounts) -> QueueView:
    return QueueView(
        queue.name,
        queue.description,
        queue.created_at,
        queue.updated_at,
        queue.accessed_at,
        counts,
    )


def _reply(view: QueueView, site: Site, *, status: int = 200, published: bool = True) -> Response:
    return Response(
        queue_entry(view, site, published=published),
        status,
        {"ETag": _etag(view.updated_at)},
        ENTRY_TYPE,
    )


def _etag(updated_at: Instant) -> str:
    """.NET ticks of the last update, without quotes, as Azure has it (semantics part A §5.1)."""
    return str(ticks_of_instant(updated_at))

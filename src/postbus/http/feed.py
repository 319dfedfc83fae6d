"""The change feed over HTTP: what is kept, stored batches as they are, or JSON lines (R-PIPE-02).

    GET /{entity}/$feed                      fragments, offsets, retention, names of subqueues
    GET /{entity}/$feed/{fragment}?from=…    records from an offset on; waits for some if asked to

Needs Listen on the entity. Reading takes nothing from other receivers. The broker sends stored
batches undecoded, unless the client asks for JSON lines.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.errors import InvalidArgument, OffsetAhead, OffsetTrimmed, ServiceBusError
from postbus.feed.readers import FeedReaders
from postbus.feed.service import FORMAT, Answer, Feed, Query, subqueues_of
from postbus.http.atom import Site
from postbus.http.feed_readers import ReaderPages
from postbus.http.messages import client_gone
from postbus.http.problems import HttpProblem, unknown_path, wrong_method
from postbus.model.address import resolve_path
from postbus.namespace.entities import QueueEntity, TopicEntity
from postbus.observe.logs import TrackingIds, get_logger

FEED: Final = "$feed"
RAW_TYPE: Final = "application/vnd.postbus.record-batches"
LINES_TYPE: Final = "application/x-ndjson"

BYTES_DEFAULT: Final = 1 << 20
BYTES_MAX: Final = 8 << 20
WAIT_MAX_S: Final = 60
SEND_S: Final = 120.0
"""A slower client is cut off from its answer: it keeps a place from other clients."""
OFFSET_DIGITS_MAX: Final = 18

_FRAGMENT: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_OPTIONS: Final = frozenset({"from", "at", "max", "timeout", "api-version"})

_log = get_logger("feed")

_Body = AsyncGenerator[bytes | memoryview] | AsyncGenerator[bytes]


class FeedTarget(NamedTuple):
    """A path with `$feed` in it, in parts."""

    path: str
    """The path of the entity."""
    rest: tuple[str, ...]
    """The path behind `$feed`, without percent-encoding."""


def find_feed(raw_path: str) -> FeedTarget | None:
    """The parts of a feed's path; None for any other path. No entity name has a `$`."""
    parts = raw_path.strip("/").split("/")
    for index, part in enumerate(parts[1:], 1):
        if unquote(part).lower() == FEED:
            rest = tuple(unquote(each) for each in parts[index + 1 :])
            return FeedTarget(unquote("/".join(parts[:index])), rest)
    return None


class FeedPages:
    """The feed, for clients that hold Listen."""

    __slots__ = ("_feed", "_readers", "_review", "_tracking", "_wait_max_ms")

    def __init__(
        self,
        feed: Feed,
        readers: FeedReaders,
        review: Callable[[Claims], Claims | None],
        tracking: TrackingIds,
        wait_max_ms: int,
    ) -> None:
        """`review` gives the claims that remain, since keys may be gone by now."""
        self._feed = feed
        self._readers = ReaderPages(feed, readers)
        self._review = review
        self._tracking = tracking
        self._wait_max_ms = wait_max_ms

    async def answer(
        self, request: Request, target: FeedTarget, claims: Claims, site: Site
    ) -> Response:
        address = resolve_path(target.path)

        def check() -> None:
            left = self._review(claims)
            if left is None or not left.allows(Right.LISTEN, quote(address.path)):
                raise missing_claim(Right.LISTEN, site.address(address.path))

        # Rights before existence: a stranger does not learn what there is (semantics A §6).
        check()
        entity = self._feed.find(address)
        try:
            match target.rest:
                case ():
                    _only_get(request)
                    return await self._describe(entity)
                case ("readers", *rest):
                    return await self._readers.answer(request, entity, tuple(rest))
                case (fragment,) if _FRAGMENT.fullmatch(fragment):
                    _only_get(request)
                    return await self._read(request, entity, int(fragment), check)
        except (OffsetAhead, OffsetTrimmed) as error:
            return self._outside(error, address.path)
        except ServiceBusError as error:
            entity.meter.refused(error.condition)
            raise
        raise unknown_path(f"{target.path}/{FEED}/{'/'.join(target.rest)}")

    async def _describe(self, entity: QueueEntity | TopicEntity) -> Response:
        hours, megabytes = entity.retention
        return JSONResponse(
            {
                "entity": entity.name,
                "kind": entity.kind,
                "format": FORMAT,
                "retention": {"hours": hours, "mb": megabytes},
                "fragments": [
                    {
                        "fragment": each.index,
                        "id": each.id,
                        "first": each.extent.first,
                        "next": each.extent.next,
                        "firstTime": each.extent.first_at,
                        "lastTime": each.extent.last_at,
                        "bytes": each.extent.size,
                    }
                    for each in await self._feed.journals(entity)
                ],
                "subqueues": {
                    str(number): {"subscription": name, "subQueue": text}
                    for number, (name, text) in subqueues_of(entity).items()
                },
            }
        )

    async def _read(
        self,
        request: Request,
        entity: QueueEntity | TopicEntity,
        index: int,
        check: Callable[[], None],
    ) -> Response:
        query = self._query(request)
        as_lines = _wants_lines(request.headers.get("accept", "*/*"))
        fragment = self._feed.fragment(entity, index)
        gone = asyncio.ensure_future(client_gone(request))
        try:
            answer = await self._feed.ask(fragment, query, gone, check)
            if gone.done():
                raise ClientDisconnect
            headers = _headers(answer, query)
            await self._feed.begin(entity, fragment, answer)
        except BaseException:
            gone.cancel()
            raise
        pieces: _Body
        if as_lines:
            pieces = self._feed.lines(entity, fragment, answer)
        else:
            headers["content-length"] = str(answer.size)
            pieces = self._feed.batches(fragment, answer)
        headers["content-type"] = LINES_TYPE if as_lines else RAW_TYPE
        return _Pieces(pieces, headers, gone, partial(self._feed.end, fragment))

    def _query(self, request: Request) -> Query:
        given = request.query_params
        for name in given:
            if name not in _OPTIONS:
                raise InvalidArgument(f"The query option '{name[:64]}' is unknown to a feed.")
        start, at = _number(given.get("from"), "from"), _number(given.get("at"), "at")
        if (start is None) == (at is None):
            raise InvalidArgument("Give one of the query options 'from' and 'at'.")
        size = _number(given.get("max"), "max", BYTES_MAX)
        wait_s = _number(given.get("timeout"), "timeout", WAIT_MAX_S) or 0
        wait_ms = min(wait_s * 1_000, self._wait_max_ms)
        return Query(start, at, BYTES_DEFAULT if size is None else size, wait_ms)

    def _outside(self, error: OffsetAhead | OffsetTrimmed, path: str) -> Response:
        """JSON, where other refusals are XML, because machines have to act on it."""
        tracking = self._tracking.track(path)
        trimmed = isinstance(error, OffsetTrimmed)
        body = {
            "error": "offset trimmed" if trimmed else "offset ahead",
            "detail": tracking.describe(str(error)),
            "first": error.first,
            "next": error.next,
            "trackingId": tracking.id,
        }
        return JSONResponse(body, error.http_status)


class _Pieces(Response):
    """A reply whose body is read while it is sent. The next piece is read when the client has taken
    the last piece but one."""

    def __init__(
        self,
        pieces: _Body,
        headers: dict[str, str],
        gone: asyncio.Future[None],
        done: Callable[[], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(headers)
        # Starlette would set the length of an empty body.
        self.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        self._pieces = pieces
        self._gone = gone
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # Closed at once, because others need the resources it holds.
            async with asyncio.timeout(SEND_S), aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    if self._gone.done():
                        return
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ServiceBusError, TimeoutError) as error:
            # The reply has begun. It ends unfinished, so the client cannot take it for complete.
            _log.warning("feed reply cut off", path=scope["path"], error=str(error) or "too slow")
        finally:
            self._gone.cancel()
            self._done()


def _headers(answer: Answer, query: Query) -> dict[str, str]:
    headers = {
        "Postbus-Next": str(answer.next),
        "Postbus-Head": str(answer.extent.next),
        "Postbus-First": str(answer.extent.first),
    }
    if query.at is not None:
        headers["Postbus-From"] = str(answer.start)
    return headers


def _wants_lines(accept: str) -> bool:
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if LINES_TYPE in kinds:
        return True
    if any(kind in ("*/*", "application/*", "", RAW_TYPE) for kind in kinds):
        return False
    raise HttpProblem(406, f"A feed is read as '{RAW_TYPE}' or as '{LINES_TYPE}'.")


def _number(text: str | None, name: str, largest: int | None = None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        number = int(text)
        if largest is None or number <= largest:
            return number
    bound = "" if largest is None else f" of at most {largest}"
    raise InvalidArgument(
        f"The query option '{name}' must be a whole number{bound}, not '{text[:64]}'."
    )


def _only_get(request: Request) -> None:
    if request.method != "GET":
        raise wrong_method(request.method, "GET")

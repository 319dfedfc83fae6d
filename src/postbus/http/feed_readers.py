"""Readers of a change feed over HTTP: the progress they report, and how far behind they are.

PUT    /{entity}/$feed/readers/{name}    {"offsets": {"0": 123}, "query": "…", "batch": 7}
GET    /{entity}/$feed/readers
DELETE /{entity}/$feed/readers/{name}
"""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from postbus.errors import InvalidArgument
from postbus.feed.readers import FeedReaders, Progress
from postbus.feed.service import Feed
from postbus.http.broker_properties import read_json
from postbus.http.problems import body_too_large, unknown_path, wrong_method
from postbus.model.times import Instant
from postbus.namespace.entities import QueueEntity, TopicEntity

NAME_LENGTH_MAX: Final = 128
QUERY_LENGTH_MAX: Final = 512
BODY_MAX_BYTES: Final = 64 * 1024
NUMBER_MAX: Final = (1 << 63) - 1
KEYS: Final = ("offsets", "query", "batch")


class ReaderPages:
    """The readers of feeds, for clients that may read the feed."""

    __slots__ = ("_feed", "_readers")

    def __init__(self, feed: Feed, readers: FeedReaders) -> None:
        self._feed = feed
        self._readers = readers

    async def answer(
        self, request: Request, entity: QueueEntity | TopicEntity, rest: tuple[str, ...]
    ) -> Response:
        match rest:
            case ():
                if request.method != "GET":
                    raise wrong_method(request.method, "GET")
                return await self._list(entity)
            case (name,):
                _check_name(name)
                return await self._change(request, entity, name)
        raise unknown_path(f"{entity.name}/$feed/readers/{'/'.join(rest)}")

    async def _change(
        self, request: Request, entity: QueueEntity | TopicEntity, name: str
    ) -> Response:
        match request.method:
            case "PUT":
                body = await _read_body(request)
                told = _read_progress(body, entity, self._readers.now())
                await self._readers.put(entity, name, told)
            case "DELETE":
                await self._readers.remove(entity, name)
            case method:
                raise wrong_method(method, "PUT, DELETE")
        return Response(status_code=204)

    async def _list(self, entity: QueueEntity | TopicEntity) -> Response:
        heads = {each.index: each.extent.next for each in await self._feed.journals(entity)}
        shown: list[dict[str, object]] = []
        for name, progress in self._readers.of(entity).items():
            lag = {
                index: max(0, heads[index] - offset)
                for index, offset in progress.offsets.items()
                if index in heads
            }
            shown.append(
                {
                    "name": name,
                    "offsets": _texts(progress.offsets),
                    "head": _texts(heads),
                    "lag": sum(lag.values()),
                    "lagTime": await self._lag_ms(entity, progress, lag),
                    "query": progress.query,
                    "batch": progress.batch,
                    "updated": progress.updated,
                }
            )
        return JSONResponse(shown)

    async def _lag_ms(
        self, entity: QueueEntity | TopicEntity, progress: Progress, lag: Mapping[int, int]
    ) -> int:
        """The age of the oldest record that the reader has not dealt with."""
        longest = 0
        for fragment in entity.fragments:
            if lag.get(fragment.index):
                at = await self._feed.time_of(fragment, progress.offsets[fragment.index])
                if at is not None:
                    longest = max(longest, self._readers.now() - at)
        return longest


def _texts(values: Mapping[int, int]) -> dict[str, int]:
    return {str(index): value for index, value in values.items()}


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidArgument(
            f"The name of a reader has 1 to {NAME_LENGTH_MAX} printable characters."
        )


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MAX_BYTES:
            raise body_too_large(BODY_MAX_BYTES)
    return bytes(body)


def _read_progress(body: bytes, entity: QueueEntity | TopicEntity, now: Instant) -> Progress:
    values: Any = read_json(body, "The progress of a reader")
    if not isinstance(values, dict):
        raise InvalidArgument("The progress of a reader must be a JSON object.")
    for key in values:
        if key not in KEYS:
            raise InvalidArgument(f"The progress of a reader has no '{key[:64]}'.")
    query, batch = values.get("query"), values.get("batch")
    if query is not None and not (
        isinstance(query, str) and len(query) <= QUERY_LENGTH_MAX and query.isprintable()
    ):
        # People see it on their terminals. So characters that move the cursor are refused, and so
        # is half of a surrogate pair, which cannot be shown.
        raise InvalidArgument(
            f"'query' must be a text of at most {QUERY_LENGTH_MAX} printable characters."
        )
    if batch is not None and not _is_number(batch):
        raise InvalidArgument("'batch' must be a whole number.")
    return Progress(_read_offsets(values.get("offsets"), entity), query, batch, now)


def _read_offsets(given: object, entity: QueueEntity | TopicEntity) -> dict[int, int]:
    if not isinstance(given, dict) or not given:
        raise InvalidArgument("'offsets' must be an object of offsets by fragment.")
    known = {str(fragment.index): fragment.index for fragment in entity.fragments}
    for fragment, offset in given.items():
        if fragment not in known:
            raise InvalidArgument(f"'{entity.name}' has no fragment '{fragment[:64]}'.")
        if not _is_number(offset):
            raise InvalidArgument(f"The offset of fragment {fragment} must be a whole number.")
    return {known[fragment]: offset for fragment, offset in given.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= NUMBER_MAX

"""The common parts of replies: entries, pages of a list, versions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from starlette.responses import Response

from postbus.errors import InvalidArgument, NotSupported
from postbus.http.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    Entry,
    Page,
    Site,
    entry_document,
    feed_document,
    listed_document,
)
from postbus.http.problems import HttpProblem
from postbus.model.times import Instant, ticks_of_instant

PAGE_LENGTH_MAX: Final = 100

T = TypeVar("T")


class Slice(NamedTuple):
    """The requested part of a list."""

    skip: int
    top: int

    def of(self, items: Sequence[T]) -> Sequence[T]:
        return items[self.skip : self.skip + self.top]

    def page(self, title: str, path: str, count: int) -> Page:
        """This part of a list that has `count` entries."""
        more = 0 < self.top < count - self.skip
        return Page(title, path, self.skip, self.top, more)


def slice_of(query: Mapping[str, str]) -> Slice:
    """The page of `$skip` and `$top`. Raises InvalidArgument, and NotSupported for `$filter`."""
    if "$filter" in query:
        raise NotSupported("The query option '$filter' is not supported: lists come whole.")
    top = min(_count(query, "$top", PAGE_LENGTH_MAX), PAGE_LENGTH_MAX)
    return Slice(_count(query, "$skip", 0), top)


def entry_reply(entry: Entry, site: Site, etag: str, status: int = 200) -> Response:
    return Response(entry_document(entry, site), status, {"ETag": etag}, ENTRY_TYPE)


def feed_reply(entries: Iterable[Entry], page: Page, site: Site, now: Instant) -> Response:
    return Response(feed_document(entries, page, site, now), media_type=FEED_TYPE)


def listed_reply(site: Site, now: Instant) -> Response:
    return Response(listed_document(site, now), media_type=FEED_TYPE)


def etag_of(updated_at: Instant) -> str:
    """.NET ticks of the last update, without quotes, as Azure has it (semantics A §5.1)."""
    return str(ticks_of_instant(updated_at))


def require_version(if_match: str, etag: str, what: str) -> None:
    """Raise 412 where an update expects another version than the present one."""
    if if_match != "*" and if_match.strip('"') != etag:
        raise HttpProblem(412, f"The {what} was updated after the version in 'If-Match'.")


def _count(query: Mapping[str, str], option: str, default: int) -> int:
    text = query.get(option)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidArgument(
            f"The query option '{option}' must be a whole number from 0, not '{text[:64]}'."
        )
    return int(text)

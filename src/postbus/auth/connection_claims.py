"""The claims of one connection, from its login and from its tokens."""

from collections.abc import Iterator
from typing import Final

from postbus.auth.authority import Authority, Claims, resource_path
from postbus.errors import Unauthorized
from postbus.model.authorization import Right
from postbus.model.times import Instant

CLAIMS_MAX: Final = 1_000
"""Tokens that one connection may hold, and entities that one login may open. A client renews a
token under the same audience."""

_NONE: Final[dict[str | int, Claims]] = {}


class Credentials:
    """The claims of a connection. A new token for an audience replaces the old one."""

    __slots__ = ("_by_resource", "_login", "_tokens")

    def __init__(self) -> None:
        self._login: tuple[Claims, ...] = ()
        self._tokens: dict[str, Claims] = {}
        self._by_resource: dict[str, dict[str | int, Claims]] = {}
        """All claims, by resource, and by audience or by position in the login. A connection may
        have thousands of links, and all are checked again when a claim ends."""

    def __bool__(self) -> bool:
        """Has the connection proven anything?"""
        return bool(self._login or self._tokens)

    def allows(self, right: Right, path: str, now: Instant) -> bool:
        return any(each.allows(right, path) for each in self._about(path, now))

    def covers(self, path: str, now: Instant) -> bool:
        """Does any claim cover this path?"""
        return any(each.covers(path) for each in self._about(path, now))

    def log_in(self, claims: tuple[Claims, ...]) -> None:
        if len(claims) > CLAIMS_MAX:
            raise Unauthorized(
                f"The key opens {len(claims)} entities; by a login it may open {CLAIMS_MAX}."
            )
        self._login = claims
        self._index()

    def put(self, audience: str, claims: Claims) -> bool:
        """Keep a token. Returns whether it proves something else than the token it replaces."""
        before = self._tokens.get(audience)
        if before is None and len(self._tokens) >= CLAIMS_MAX:
            raise Unauthorized("The connection holds as many tokens as it may hold.")
        self._tokens[audience] = claims
        if before is not None:
            self._take_out(audience, before)
        self._by_resource.setdefault(claims.resource, {})[audience] = claims
        return before is not None and _extent(before) != _extent(claims)

    def expire(self, now: Instant) -> bool:
        """Drop expired claims. Returns whether there were any."""
        over = [audience for audience, each in self._tokens.items() if each.expires_at <= now]
        for audience in over:
            self._take_out(audience, self._tokens.pop(audience))
        return bool(over)

    def review(self, authority: Authority) -> bool:
        """Drop the claims that their key no longer supports. Returns whether any were lost."""
        before = (self._login, list(self._tokens.values()))
        self._login = tuple(now for each in self._login if (now := authority.review(each)))
        self._tokens = {
            audience: now
            for audience, each in self._tokens.items()
            if (now := authority.review(each))
        }
        self._index()
        return before != (self._login, list(self._tokens.values()))

    def next_expiry(self) -> Instant | None:
        return min((each.expires_at for each in self._all()), default=None)

    def _about(self, path: str, now: Instant) -> Iterator[Claims]:
        """The claims that could cover a path: those on the path or on a beginning of it."""
        place, found = resource_path(path), self._by_resource
        while True:
            for each in found.get(place, _NONE).values():
                if each.expires_at > now:
                    yield each
            if not place:
                return
            place = place.rpartition("/")[0]

    def _index(self) -> None:
        self._by_resource = {}
        held: list[tuple[str | int, Claims]] = [*enumerate(self._login), *self._tokens.items()]
        for key, each in held:
            self._by_resource.setdefault(each.resource, {})[key] = each

    def _take_out(self, audience: str, claims: Claims) -> None:
        there = self._by_resource[claims.resource]
        del there[audience]
        if not there:
            del self._by_resource[claims.resource]

    def _all(self) -> tuple[Claims, ...]:
        return (*self._login, *self._tokens.values())


def _extent(claims: Claims) -> tuple[object, ...]:
    return (claims.resource, claims.rights, claims.reach)

"""What one connection has proven, by its login and by the tokens it has put."""

from collections.abc import Iterator
from typing import Final

from postbus.errors import Unauthorized
from postbus.model.authorization import Right
from postbus.model.instant import Instant
from postbus.server.auth import Authority, Claims

CLAIMS_MAX: Final = 1_000
"""Tokens one connection may hold, and entities one login may open. A client renews a token under
the same audience."""


class Credentials:
    """The claims of a connection. A token put for an audience replaces the one before."""

    __slots__ = ("_login", "_tokens")

    def __init__(self) -> None:
        self._login: tuple[Claims, ...] = ()
        self._tokens: dict[str, Claims] = {}

    def __bool__(self) -> bool:
        """Is there anything at all?"""
        return bool(self._login or self._tokens)

    def allows(self, right: Right, path: str, now: Instant) -> bool:
        return any(each.allows(right, path) for each in self._valid(now))

    def covers(self, path: str, now: Instant) -> bool:
        """Is there any right at all on this path?"""
        return any(each.covers(path) for each in self._valid(now))

    def log_in(self, claims: tuple[Claims, ...]) -> None:
        if len(claims) > CLAIMS_MAX:
            raise Unauthorized(
                f"The key opens {len(claims)} entities; by a login it may open {CLAIMS_MAX}."
            )
        self._login = claims

    def put(self, audience: str, claims: Claims) -> bool:
        """Take a token. Returns whether it proves other things than the one it replaces."""
        before = self._tokens.get(audience)
        if before is None and len(self._tokens) >= CLAIMS_MAX:
            raise Unauthorized("The connection holds as many tokens as it may hold.")
        self._tokens[audience] = claims
        return before is not None and _extent(before) != _extent(claims)

    def expire(self, now: Instant) -> bool:
        """Drop what has run out. Returns whether anything had."""
        over = [audience for audience, each in self._tokens.items() if each.expires_at <= now]
        for audience in over:
            del self._tokens[audience]
        return bool(over)

    def review(self, authority: Authority) -> bool:
        """Drop what its key no longer stands behind. Returns whether anything was lost."""
        before = (self._login, list(self._tokens.values()))
        self._login = tuple(now for each in self._login if (now := authority.review(each)))
        self._tokens = {
            audience: now
            for audience, each in self._tokens.items()
            if (now := authority.review(each))
        }
        return before != (self._login, list(self._tokens.values()))

    def next_expiry(self) -> Instant | None:
        return min((each.expires_at for each in self._all()), default=None)

    def _valid(self, now: Instant) -> Iterator[Claims]:
        return (each for each in self._all() if each.expires_at > now)

    def _all(self) -> tuple[Claims, ...]:
        return (*self._login, *self._tokens.values())


def _extent(claims: Claims) -> tuple[object, ...]:
    return (claims.resource, claims.rights, claims.reach)

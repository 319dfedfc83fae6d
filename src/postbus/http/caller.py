"""The caller of a request: the claims of its tokens, and the refusals without enough rights."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from starlette.responses import Response

from postbus.auth.authority import Claims, Right, missing_claim
from postbus.errors import Unauthorized
from postbus.http.atom import Site
from postbus.http.problems import HttpProblem
from postbus.model.description import QueueDescription, SubscriptionDescription
from postbus.model.fields import FORWARD, FORWARD_DEAD
from postbus.namespace.namespace import Namespace

READ: Final = "Manage,EntityRead claims required for this operation."
WRITE: Final = "Authorization failed for specified action: Manage,EntityWrite."
DELETE: Final = "Authorization failed for specified action: Manage,EntityDelete."

SUPPLEMENTS: Final[Mapping[str, str]] = {
    FORWARD.element: "ServiceBusSupplementaryAuthorization",
    FORWARD_DEAD.element: "ServiceBusDlqSupplementaryAuthorization",
}
"""The header with a token for the entity that an element names (wire §9.2)."""


class Caller:
    """The claims of a request's own token, and of its tokens for other entities."""

    __slots__ = ("_supplement", "claims")

    def __init__(
        self, claims: Claims, supplement: Callable[[str, str], Awaitable[Claims | None]]
    ) -> None:
        """`supplement` verifies the token in a header for a path. It returns None without that
        header, and raises for a bad token."""
        self.claims = claims
        self._supplement = supplement

    def review(self, review: Callable[[Claims], Claims | None]) -> None:
        """Go on with the claims that remain, since keys may be gone by now. Raises Unauthorized
        where none do."""
        left = review(self.claims)
        if left is None:
            raise Unauthorized("The key that signed the token is gone.")
        self.claims = left

    def require(self, path: str, text: str) -> None:
        """Raise Unauthorized, with Azure's words for this operation, without Manage on `path`."""
        if not _allows(self.claims, path):
            raise Unauthorized(text)

    def require_below(self, path: str, operation: str, site: Site) -> None:
        """The same for a subscription or a rule, where Azure has other words (semantics A §6).

        Azure has them in the status line, so they begin with the status. The Go SDK looks in both
        places.
        """
        if not _allows(self.claims, path):
            raise HttpProblem(
                401,
                f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' "
                f"operation on endpoint '{site.address(path)}'.",
            )

    async def require_destination(self, element: str, name: str, site: Site) -> None:
        """Raise Unauthorized without Manage on the destination of forwarding."""
        if _allows(self.claims, name):
            return
        claims = await self._supplement(SUPPLEMENTS[element], name)
        if claims is None or not _allows(claims, name):
            raise missing_claim(Right.MANAGE, site.address(name))


def _allows(claims: Claims, path: str) -> bool:
    # Claims are about URLs: a question mark in the name of a rule must not end the path here.
    return claims.allows(Right.MANAGE, quote(path))


class RequestContext(NamedTuple):
    """The caller of a request, and the address that the caller used."""

    caller: Caller
    site: Site


class Resource(Protocol):
    """An entity or rule at a path: it can be created, read, replaced and deleted."""

    async def read(self, asked: RequestContext) -> Response: ...
    async def create(self, body: bytes, asked: RequestContext) -> Response: ...

    async def update(self, body: bytes, etag: str, asked: RequestContext) -> Response:
        """Replace the description: a field that the body leaves out goes back to its default."""

    async def delete(self, asked: RequestContext) -> Response: ...


D = TypeVar("D", QueueDescription, SubscriptionDescription)


async def with_destinations(description: D, namespace: Namespace, asked: RequestContext) -> D:
    """The description with each destination in the spelling of the destination's own name.

    An entity may forward to itself, as in Azure (semantics A §5.2). The hops of a message are
    counted, so that none goes round for ever. Raises Unauthorized, or 400 for a missing
    destination.
    """
    found: dict[str, Any] = {}
    for field in (FORWARD, FORWARD_DEAD):
        given = getattr(description, str(field.attribute))
        name = await _found(field.element, given, namespace, asked)
        found[str(field.attribute)] = name
        if given != name:
            # In the client's spelling, which replies give back.
            found[field.sent] = getattr(description, field.sent) or given
    return replace(description, **found)


async def _found(
    element: str, name: str | None, namespace: Namespace, asked: RequestContext
) -> str | None:
    if name is None:
        return None
    # Rights before existence: only a client with Manage learns whether the entity exists.
    await asked.caller.require_destination(element, name, asked.site)
    entity = namespace.entity(name)
    if entity is None:
        raise HttpProblem(
            400,
            f"The auto forwarding destination entity '{name}' does not exist ('{element}').",
            sub_code=40400,
        )
    return entity.name

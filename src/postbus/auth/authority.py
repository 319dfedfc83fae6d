"""Who may do what: the claims of a token, and whether they cover an entity.

The caller passes the time of the wall clock, because clients date tokens by theirs. `$cbs`, SASL
PLAIN and the HTTP `Authorization` header all end here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from postbus.auth.keyring import NAMESPACE, AccessKey, KeyRing, Mark
from postbus.auth.refusals import (
    ExpiredToken,
    InvalidAudience,
    InvalidSignature,
    KeyUnknown,
    NoKeysYet,
)
from postbus.auth.sas import is_sas, parse_sas
from postbus.errors import Unauthorized
from postbus.model.address import strip_authority
from postbus.model.authorization import Right, names_of
from postbus.model.times import NEVER, Instant

if TYPE_CHECKING:
    from postbus.auth.jwt import Issuer  # costs a start 150 ms, and few have one

__all__ = [
    "Authority",
    "Claims",
    "Reach",
    "Right",
    "lost_claim",
    "missing_claim",
    "resource_path",
    "verify_waiting",
]

PROVEN_MAX: Final = 512
"""Good tokens that are remembered. An HTTP client sends its token with each request, and a full
check against the keys takes half a millisecond."""

_BEARER: Final = "bearer "
_SUBSCRIPTIONS: Final = "subscriptions"
_MESSAGES: Final = "messages"


class Reach(Enum):
    """How far below its resource a claim goes. Names of entities may contain slashes."""

    FOLDER = auto()
    """To everything: the resource is the namespace, names a folder of entities, or lies inside an
    entity."""
    ENTITY = auto()
    """To the parts of the entity: the queue `a/b` is not part of the queue `a`. The entity need not
    exist: a token must not grow when its holder deletes the entity."""
    MESSAGES = auto()
    """Over HTTP only, to `<entity>/messages` or less."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Proven rights on a path and on everything below it, until a time."""

    resource: str
    """As `resource_path` gives it; empty for the whole namespace."""
    rights: Right
    expires_at: Instant
    reach: Reach = Reach.FOLDER
    made_by: Mark | None = None
    """The key that proved it; None for a token of an issuer."""

    def covers(self, path: str) -> bool:
        """Is this entity, subqueue or management node (a path or a URI) within the resource?"""
        if self.reach is Reach.MESSAGES:
            return False
        asked = resource_path(path)
        if not _is_within(asked, self.resource):
            return False
        rest = asked[len(self.resource) :].strip("/")
        return self.reach is Reach.FOLDER or not rest or _is_part(rest)

    def allows(self, right: Right, path: str) -> bool:
        """May all of `right` be used on this path?"""
        return right in self.rights and self.covers(path)

    def allows_request(self, right: Right, path: str, url_path: str) -> bool:
        """May a request use `right` on the messages of the entity or subqueue `path`?

        Tokens for HTTP are often made for the very URL, such as `orders/messages/head`.
        """
        allowed = self.allows(right, path)
        if allowed or self.reach is Reach.ENTITY:
            return allowed
        # The entity need not exist: that would not be the token's fault.
        return (
            right in self.rights
            and _is_within(self.resource, f"{resource_path(path)}/{_MESSAGES}")
            and _is_within(resource_path(url_path), self.resource)
        )


class Authority:
    """Checks proofs of identity against the keys of a namespace and of its entities."""

    __slots__ = ("_former", "_has_folders", "_hosts", "_issuer", "_proven", "_ring")

    def __init__(
        self,
        keys: Iterable[AccessKey],
        issuer: Issuer | None = None,
        hosts: Container[str] = ("localhost",),
    ) -> None:
        """`hosts` has the names by which clients reach this broker."""
        self._ring = KeyRing()
        self._hosts = hosts
        self._has_folders = False
        """Some token was for a folder of entities: a new entity may get the name of that folder."""
        self._former: frozenset[str] = frozenset()
        """Names of deleted entities: a token for such a name is not for a folder."""
        self._proven: dict[bytes, Claims] = {}
        """By digest of token and path, the longest unused first. Emptied when a key or an entity
        comes or goes, because a token may prove something else then."""
        self._ring.learn(NAMESPACE, keys)
        self._issuer = issuer

    def want_keys(self, then: Callable[[], None]) -> bool:
        """Look for the issuer's keys once more, then call `then`; False: not now.

        For a caller that got KeyUnknown or NoKeysYet.
        """
        return self._issuer is not None and self._issuer.keys.want(then)

    def learn(self, owner: str, keys: Iterable[AccessKey]) -> bool:
        """Set the keys of an entity, or of the NAMESPACE.

        Entities without keys must be made known too, to tell a token for an entity from one for a
        folder. Returns whether a right was taken away: claims need a `review` then.
        """
        self._proven.clear()
        is_new = not self._ring.knows(owner)
        lost = self._ring.learn(owner, keys)
        return lost or (is_new and self._has_folders)

    def remember(self, names: Iterable[str]) -> None:
        """Set the names of deleted entities that are the beginning of other names."""
        self._proven.clear()
        self._former = frozenset(name.lower() for name in names)

    def hosts_changed(self) -> None:
        """The certificate was replaced, and its names with it."""
        self._proven.clear()

    def path_of(self, uri: str) -> str:
        """The path in a text that may lack the scheme: `sb://host/a` or `host/a`.

        The path is in the client's spelling.

        Where a host and an entity share a name, it is the entity's: a token for it opens no more.
        """
        path = written_path(uri)
        is_entity = self._ring.owner_of(path.lower()) or path.lower() in self._former
        return path if is_entity else written_path(uri, self._hosts)

    def forget(self, entity: str) -> bool:
        """The entity is gone. Returns the same as `learn`."""
        self._proven.clear()
        return self._ring.forget(entity)

    def verify(self, token: str, path: str, now: Instant) -> Claims:
        """The claims of a token that is shown for `path`, a path or a URI.

        The path tells whose keys may have signed it. Raises Unauthorized for a token that is
        malformed, expired, wrongly signed or for another resource. Raises NoKeysYet.
        """
        if is_sas(token):
            return self._known_sas(token, resource_path(path), now)
        if self._issuer is None:
            raise Unauthorized(
                "Only tokens that start with 'SharedAccessSignature ' are accepted: "
                "no issuer of other tokens (JWT) is configured."
            )
        text = token[len(_BEARER) :] if token[: len(_BEARER)].lower() == _BEARER else token
        grant = self._issuer.verify(text.strip(), now)
        return Claims("", grant.rights, grant.expires_at)

    def verify_plain(self, user: str, password: str) -> tuple[Claims, ...]:
        """The claims of a key's name and value (SASL PLAIN), for as long as the key exists.

        A key of the namespace opens everything. A key of an entity opens that entity; several
        entities may have the same key.
        """
        held = self._ring.holders(user, password)
        if not held:
            raise Unauthorized("InvalidCredentials: The key name or the key is wrong.")
        return tuple(
            Claims(mark.owner, key.granted, NEVER, self._reach_of(mark.owner), mark)
            for key, mark in held
        )

    def review(self, claims: Claims) -> Claims | None:
        """The claims that their key still supports; None where it supports nothing."""
        if claims.made_by is None:
            return claims
        rights = claims.rights & self._ring.still_grants(claims.made_by)
        if not rights:
            return None
        # A folder may be the name of an entity by now. Then the claim covers that entity alone.
        if claims.reach is Reach.FOLDER and claims.resource and self._ring.knows(claims.resource):
            return replace(claims, rights=rights, reach=Reach.ENTITY)
        return replace(claims, rights=rights)

    def _known_sas(self, token: str, path: str, now: Instant) -> Claims:
        # A digest, so that no token is kept and the time of a look-up reveals nothing about it.
        shown = sha256(f"{len(token)} {token}{path}".encode("utf-8", "surrogatepass")).digest()
        claims = self._proven.pop(shown, None)
        if claims is None or claims.expires_at <= now:
            claims = self._verify_sas(token, path, now)
        if len(self._proven) >= PROVEN_MAX:
            del self._proven[next(iter(self._proven))]
        self._proven[shown] = claims
        return claims

    def _verify_sas(self, token: str, path: str, now: Instant) -> Claims:
        sas = parse_sas(token)
        signer = self._ring.signer(self._ring.owner_of(path), sas.key_names(), sas.is_signed_by)
        if signer is None:
            raise InvalidSignature
        # After the signature, so that a stranger does not learn whether a token was ever good.
        if sas.expires_at <= now:
            raise ExpiredToken(sas.expires_at)
        key, mark = signer
        resource = self.path_of(sas.resource).lower()
        reach = self._reach_of(resource, says_folder(sas.resource))
        claims = Claims(resource, key.granted, sas.expires_at, reach, mark)
        owner = mark.owner
        if owner == NAMESPACE:
            return claims
        whole = replace(claims, resource=owner, reach=Reach.ENTITY)
        ours = self._ring.owner_of(resource) == owner
        if whole.covers(resource) or (ours and claims.reach is Reach.MESSAGES):
            return claims
        # An entity's key may sign for a wider resource; the token is good for the entity alone.
        if claims.covers(owner):
            return whole
        raise InvalidAudience(path)

    def _reach_of(self, resource: str, is_folder: bool = False) -> Reach:
        owner = self._ring.owner_of(resource)
        if resource == owner:
            return Reach.FOLDER if owner == NAMESPACE else Reach.ENTITY
        within = _within_entity(resource, owner)
        if within:
            # No other entity has a name below this one.
            return Reach.MESSAGES if _names_messages(within) else Reach.FOLDER
        if not is_folder or resource in self._former:
            return Reach.ENTITY
        self._has_folders = True
        return Reach.FOLDER


async def verify_waiting(
    authority: Authority, token: str, path: str, wall: Callable[[], Instant]
) -> Claims:
    """As `Authority.verify`, but waits where the issuer's keys must be fetched once more."""
    try:
        return authority.verify(token, path, wall())
    except (KeyUnknown, NoKeysYet):
        looked = asyncio.Event()
        if not authority.want_keys(looked.set):
            raise
        await looked.wait()
        return authority.verify(token, path, wall())


def resource_path(uri: str, hosts: Container[str] = ()) -> str:
    """The path of an entity in a URI, in the one form in which resources are compared."""
    return written_path(uri, hosts).lower()


def written_path(uri: str, hosts: Container[str] = ()) -> str:
    """The same in the letters of the client.

    Scheme, host, port, query and outer slashes are removed. Percent-encoding is undone, and case
    does not matter (wire §2.2). Text without a scheme is a path, unless its first part is in
    `hosts` or has a port: no entity name contains a colon.
    """
    path = strip_authority(uri)
    if path == uri:
        head, slash, rest = uri.partition("/")
        host, colon, port = head.rpartition(":")
        if (host and colon and port.isdigit()) or head in hosts:
            path = slash + rest
    path = path.partition("?")[0].partition("#")[0]
    return unquote(path).strip("/")


def says_folder(uri: str) -> bool:
    """Does the resource of a token name a folder of entities? It ends with a slash."""
    return unquote(uri.partition("?")[0].partition("#")[0]).endswith("/")


def missing_claim(right: Right, resource: str) -> Unauthorized:
    """The refusal of an operation on `resource` that needs `right`."""
    names = ", ".join(f"'{name}'" for name in names_of(each for each in Right if each in right))
    return Unauthorized(
        f"Unauthorized access. {names} claim(s) are required to perform this operation. "
        f"Resource: '{resource}'."
    )


def lost_claim(link: str, right: Right, resource: str) -> Unauthorized:
    """The text for a link that needs `right`, when no claim proves it any more."""
    # Azure's words (semantics B §11).
    return Unauthorized(
        f"The link '{link[:64]}' is force detached. Code: RenewToken. "
        f"Details: {missing_claim(right, resource)}"
    )


def _is_within(path: str, resource: str) -> bool:
    return not resource or path == resource or path.startswith(resource + "/")


def _within_entity(resource: str, owner: str) -> list[str]:
    """The parts of a resource behind the name of an entity, which need not exist."""
    parts = resource.split("/")
    # At least one part is a name, even if it looks like another part.
    for place in range(max(1, len(owner.split("/"))), len(parts)):
        part = parts[place]
        if part.startswith("$") or part in (_SUBSCRIPTIONS, _MESSAGES):
            return parts[place:]
    return []


def _names_messages(within: list[str]) -> bool:
    """Do the parts behind an entity's name lead to messages, of the entity or of its part?"""
    place = 2 if within[0] == _SUBSCRIPTIONS else 0
    while place < len(within) and within[place].startswith("$"):
        place += 1
    return place < len(within) and within[place] == _MESSAGES


def _is_part(rest: str) -> bool:
    """Does the rest behind an entity's name lead into it, and not to another entity?

    No entity name has a `$`. Only its first part may be `Subscriptions`.
    """
    return rest.startswith("$") or rest.partition("/")[0] == _SUBSCRIPTIONS

"""Who may do what: access keys, the claims a token makes, and whether they cover an entity.

Pure: the time is passed in. `$cbs`, SASL PLAIN and the HTTP `Authorization` header all end here.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Flag, auto
from typing import Final
from urllib.parse import unquote

from postbus.errors import Unauthorized
from postbus.model.address import strip_authority
from postbus.model.instant import NEVER, Instant
from postbus.server.sas import ExpiredToken, InvalidSignature, SasToken, is_sas, parse_sas

# Compared with when no key has the name that was given, so that the answer takes as long.
_NOBODYS_KEY: Final = "no key has this name"


class Right(Flag):
    """What a key allows on the entities it is good for."""

    LISTEN = auto()
    SEND = auto()
    MANAGE = auto()


ALL_RIGHTS: Final = Right.LISTEN | Right.SEND | Right.MANAGE


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A named key of the namespace; the second value serves while the first is being replaced."""

    name: str
    keys: tuple[str, ...]
    rights: Right = ALL_RIGHTS

    @property
    def granted(self) -> Right:
        """Manage includes the other two (semantics part A §5.2)."""
        return ALL_RIGHTS if Right.MANAGE in self.rights else self.rights


@dataclass(frozen=True, slots=True)
class Claims:
    """What a client has proven: these rights on this path and all below it, until then."""

    resource: str
    """As `resource_path` gives it; empty for the whole namespace."""
    rights: Right
    expires_at: Instant
    key_name: str

    def covers(self, path: str) -> bool:
        """Is this entity, subqueue or management node (a path or a URI) within the resource?"""
        if not self.resource:
            return True
        asked = resource_path(path)
        return asked == self.resource or asked.startswith(self.resource + "/")

    def allows(self, right: Right, path: str) -> bool:
        """May all of `right` be used on this path?"""
        return right in self.rights and self.covers(path)


class Authority:
    """Checks proofs of identity against the keys of a namespace."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[AccessKey]) -> None:
        self._keys = {key.name: key for key in keys}

    def verify_sas(self, token: str, now: Instant) -> Claims:
        """The claims of a token. Raises Unauthorized: malformed, wrong signature, expired."""
        if not is_sas(token):
            raise Unauthorized(
                "Only tokens that start with 'SharedAccessSignature ' are accepted: "
                "no issuer of other tokens (JWT) is configured."
            )
        sas = parse_sas(token)
        key = self._signer(sas)
        # After the signature: a stranger does not learn whether a token was ever good.
        if sas.expires_at <= now:
            at = datetime.fromtimestamp(sas.expires_at / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise ExpiredToken(f"ExpiredToken: The token is expired. Expiration time: '{at}'.")
        return Claims(resource_path(sas.resource), key.granted, sas.expires_at, key.name)

    def verify_plain(self, user: str, password: str) -> Claims:
        """The claims of a key's name and value (SASL PLAIN): the whole namespace, for ever."""
        key = self._keys.get(user)
        given = password.encode("utf-8", "surrogatepass")
        values = key.keys if key is not None else (_NOBODYS_KEY,)
        matches = [hmac.compare_digest(value.encode(), given) for value in values]
        if key is None or not any(matches):
            raise Unauthorized("InvalidCredentials: The key name or the key is wrong.")
        return Claims("", key.granted, NEVER, key.name)

    def _signer(self, sas: SasToken) -> AccessKey:
        found = [self._keys[name] for name in sas.key_names() if name in self._keys]
        key = found[0] if found else None
        values = key.keys if key is not None else (_NOBODYS_KEY,)
        matches = [sas.is_signed_by(value) for value in values]
        if key is None or not any(matches):
            raise InvalidSignature
        return key


def resource_path(uri: str) -> str:
    """The part of a URI that names an entity, in the one form in which resources are compared.

    Scheme, host, port, query and outer slashes are gone, percent-encoding is undone, case does not
    matter (wire contract §2.2). Text without a scheme is a path, unless its first part has a port:
    no entity name contains a colon. So a bare host name is not taken for the whole namespace.
    """
    path = strip_authority(uri)
    if path == uri:
        head, slash, rest = uri.partition("/")
        host, colon, port = head.rpartition(":")
        if host and colon and port.isdigit():
            path = slash + rest
    path = path.partition("?")[0].partition("#")[0]
    return unquote(path).strip("/").lower()


def missing_claim(right: Right, resource: str) -> Unauthorized:
    """The refusal of an operation on `resource` that `right` is needed for."""
    names = ", ".join(f"'{name.capitalize()}'" for name in _names(right))
    return Unauthorized(
        f"Unauthorized access. {names} claim(s) are required to perform this operation. "
        f"Resource: '{resource}'."
    )


def _names(right: Right) -> list[str]:
    return [str(each.name) for each in Right if each in right]

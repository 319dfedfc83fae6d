"""Tokens of an issuer that the operator trusts: JSON Web Tokens (RFC 7519).

Only signatures that need a private key are accepted. One claim of a token lists its rights, as
Azure's roles or as the rights themselves. They hold for the whole namespace.
"""

import json
from typing import Any, Final, NamedTuple

from joserfc import jws
from joserfc.errors import (
    ClaimError,
    InvalidClaimError,
    JoseError,
    MissingClaimError,
    UnsupportedAlgorithmError,
)
from joserfc.jwt import JWTClaimsRegistry

from postbus.auth.jwks import SigningKey, SigningKeys
from postbus.auth.refusals import (
    ExpiredToken,
    InvalidAudience,
    InvalidSignature,
    KeyUnknown,
    MalformedToken,
    NoKeysYet,
)
from postbus.errors import Unauthorized
from postbus.model.authorization import ALL_RIGHTS, Right
from postbus.model.times import NEVER, Instant

ALGORITHMS: Final = ("RS256", "PS256", "ES256")
"""Never `none`, and never an HMAC: its key would be the public key."""
TOKEN_LENGTH_MAX: Final = 16_384
CLOCK_SKEW_S: Final = 60
"""How far the issuer's clock may be ahead of ours. It may not be behind: a token ends at its time,
or its links would go on without it."""

ROLES: Final = {
    "azure service bus data owner": ALL_RIGHTS,
    "azure service bus data sender": Right.SEND,
    "azure service bus data receiver": Right.LISTEN,
    "manage": ALL_RIGHTS,
    "send": Right.SEND,
    "listen": Right.LISTEN,
}


class Grant(NamedTuple):
    """The rights of a token, and how long they last."""

    rights: Right
    expires_at: Instant


class Issuer:
    """One issuer: its name, the audience of its tokens, its keys, and the claim with the roles."""

    __slots__ = ("_audience", "_name", "_registry", "_roles_claim", "keys")

    def __init__(self, name: str, audience: str, roles_claim: str, keys: SigningKeys) -> None:
        self._name = name
        self._audience = audience
        self._roles_claim = roles_claim
        self._registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        # Issuers put thumbprints, and some whole certificates, into the header.
        self._registry.max_header_length = TOKEN_LENGTH_MAX
        self.keys = keys

    def verify(self, token: str, now: Instant) -> Grant:
        """The rights of the token. Raises Unauthorized with the reason.

        KeyUnknown and NoKeysYet are worth one retry after the keys were fetched
        (`SigningKeys.want`).
        """
        claims = self._verified(token)
        self._check(claims, now)
        expires_at = _expiry(claims)
        if expires_at <= now:
            raise ExpiredToken(expires_at)
        return Grant(self._rights(claims), expires_at)

    def _verified(self, token: str) -> dict[str, Any]:
        """The claims of a token that one of the issuer's keys has signed."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise MalformedToken(
                f"MalformedToken: The token has {len(token)} characters; "
                f"{TOKEN_LENGTH_MAX} are allowed."
            )
        try:
            signed = jws.extract_compact(token.encode("ascii"), registry=self._registry)
            self._registry.get_alg(signed.headers()["alg"])
            key = self._key(signed.headers().get("kid"))
            if not jws.validate_compact(signed, key, registry=self._registry):
                raise InvalidSignature
            claims = json.loads(signed.payload or b"")
        except UnsupportedAlgorithmError:
            raise Unauthorized(
                f"InvalidAlgorithm: The token must be signed by one of {', '.join(ALGORITHMS)}."
            ) from None
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise MalformedToken("MalformedToken: The token is no JSON Web Token.") from None
        if not isinstance(claims, dict):
            raise MalformedToken("MalformedToken: The token has no claims.")
        return claims

    def _key(self, kid: object) -> SigningKey:
        key = self.keys.find(kid if isinstance(kid, str) else None)
        if key is not None:
            return key
        if not self.keys.loaded:
            raise NoKeysYet
        raise KeyUnknown

    def _check(self, claims: dict[str, Any], now: Instant) -> None:
        registry = JWTClaimsRegistry(
            now=now // 1_000,
            leeway=CLOCK_SKEW_S,
            iss={"essential": True, "value": self._name},
            aud={"essential": True, "value": self._audience},
            exp={"essential": True},
        )
        try:
            registry.validate(claims)
        except MissingClaimError as error:
            raise MalformedToken(f"MalformedToken: The token has no '{error.claim}'.") from None
        except InvalidClaimError as error:
            raise self._refusal(error) from None
        except ClaimError:
            raise ExpiredToken(_expiry(claims)) from None

    def _refusal(self, error: InvalidClaimError) -> Unauthorized:
        match error.claim:
            case "aud":
                return InvalidAudience(self._audience)
            case "iss":
                return Unauthorized("InvalidIssuer: The token is of another issuer.")
            case "nbf" | "iat":
                return Unauthorized("The token is not valid yet.")
        return MalformedToken(f"MalformedToken: The claim '{error.claim}' of the token is wrong.")

    def _rights(self, claims: dict[str, Any]) -> Right:
        value = claims.get(self._roles_claim)
        # A list (Azure's `roles`), or one text with spaces between the roles (OAuth's `scp`,
        # `scope`).
        names = [value, *value.split()] if isinstance(value, str) else value
        rights = Right(0)
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str):
                rights |= ROLES.get(name.lower(), Right(0))
        if not rights:
            raise Unauthorized(
                f"The claim '{self._roles_claim}' of the token names no role that allows anything."
            )
        return rights


def _expiry(claims: dict[str, Any]) -> Instant:
    seconds: int | float = claims["exp"]
    return int(min(max(seconds, 0), NEVER / 1_000) * 1_000)

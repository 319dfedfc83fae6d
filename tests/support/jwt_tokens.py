"""An issuer of JSON Web Tokens for tests: its keys, its tokens, and how they can be wrong."""

from __future__ import annotations

import hmac
import json
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import json_b64encode, urlsafe_b64encode

from postbus.auth.jwt import ALGORITHMS

ISSUER = "https://login.example.net/tenant"
AUDIENCE = "https://servicebus.azure.net"
RSA = RSAKey.generate_key(2_048, {"kid": "rsa-1"}, private=True)
EC = ECKey.generate_key("P-256", {"kid": "ec-1"}, private=True)
STRANGER = RSAKey.generate_key(2_048, {"kid": "rsa-1"}, private=True)


def key_set(*keys: Any) -> bytes:
    """A JWK Set with the public halves."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def claims(now_s: int, **changes: Any) -> dict[str, Any]:
    """A day's work; a change to None leaves a claim out."""
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "worker",
        "iat": now_s,
        "nbf": now_s,
        "exp": now_s + 3_600,
        "roles": ["Azure Service Bus Data Receiver"],
        **changes,
    }
    return {name: value for name, value in said.items() if value is not None}


def sign(said: dict[str, Any], key: Any = RSA, alg: str = "RS256", **header: Any) -> str:
    head = {"alg": alg, "kid": key.kid, **header}
    registry = JWSRegistry(algorithms=[*ALGORITHMS, "RS512"], strict_check_header=False)
    head = {name: value for name, value in head.items() if value is not None}
    return jwt.encode(head, said, key, registry=registry)


def unsigned(said: dict[str, Any]) -> str:
    """What `alg: none` looks like."""
    head = json_b64encode({"alg": "none", "kid": "rsa-1"}).decode()
    return f"{head}.{json_b64encode(said).decode()}."


def confused(said: dict[str, Any]) -> str:
    """The old trick: the public key as the secret of an HMAC."""
    head = json_b64encode({"alg": "HS256", "kid": "rsa-1"})
    text = head + b"." + json_b64encode(said)
    mac = hmac.digest(RSA.as_pem(private=False), text, "sha256")
    return f"{text.decode()}.{urlsafe_b64encode(mac).decode()}"

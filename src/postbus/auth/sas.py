"""Shared access signatures: `SharedAccessSignature sr=…&sig=…&se=…&skn=…` (wire §2.3).

The signature is an HMAC-SHA256 over the percent-encoded resource, a line feed and the expiry. Each
SDK encodes the resource in its own way, so the received text is verified first.
"""

import base64
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from postbus.auth.refusals import MalformedToken
from postbus.model.times import NEVER, Instant

SCHEME: Final = "SharedAccessSignature"
# The longest audience, percent-encoded twice over to four times its length, and some to spare.
TOKEN_LENGTH_MAX: Final = 8_192

_EXPIRY_DIGITS_MAX: Final = 15


@dataclass(frozen=True, slots=True)
class SasToken:
    """A token taken apart, not yet verified."""

    resource: str
    """The resource it is for, percent-decoded."""
    raw_resource: str
    """The same as received, which is the signed text."""
    signature: bytes
    raw_expiry: str
    expires_at: Instant
    raw_key_name: str

    def key_names(self) -> Iterator[str]:
        """The key's name, most likely spelling first: Python encodes it twice, JS not at all."""
        once = unquote_plus(self.raw_key_name)
        yield once
        yield unquote_plus(once)
        yield self.raw_key_name

    def is_signed_by(self, key: str) -> bool:
        """Did `key` make the signature? A wrong key takes as long as the right one."""
        matches = [
            hmac.compare_digest(_sign(key, resource, self.raw_expiry), self.signature)
            for resource in self._encodings()
        ]
        return any(matches)

    def _encodings(self) -> Iterator[str]:
        yield self.raw_resource
        for encoded in (quote(self.resource, safe=""), quote_plus(self.resource)):
            yield encoded
            yield _lower_hex(encoded)


def is_sas(token: str) -> bool:
    """Is this a shared access signature, rather than another kind of token?"""
    return token[: len(SCHEME) + 1].lower() == SCHEME.lower() + " "


def parse_sas(token: str) -> SasToken:
    """Take a token apart. Raises MalformedToken with the reason."""
    if len(token) > TOKEN_LENGTH_MAX:
        raise MalformedToken(
            f"MalformedToken: The token has {len(token)} characters; "
            f"{TOKEN_LENGTH_MAX} are allowed."
        )
    if not token.isprintable():
        raise MalformedToken("MalformedToken: The token has characters that no token has.")
    if not is_sas(token):
        raise MalformedToken(f"MalformedToken: The token does not start with '{SCHEME} '.")
    parts = _parts(token[len(SCHEME) + 1 :].strip())
    for name in ("sr", "sig", "se", "skn"):
        if not parts.get(name):
            raise MalformedToken(f"MalformedToken: The token has no '{name}'.")
    raw_resource, raw_expiry = parts["sr"], parts["se"]
    digits = raw_expiry.isascii() and raw_expiry.isdigit()
    if not digits or len(raw_expiry) > _EXPIRY_DIGITS_MAX:
        raise MalformedToken(
            "MalformedToken: The expiry 'se' must be a number of seconds since 1970-01-01."
        )
    return SasToken(
        resource=unquote_plus(raw_resource),
        raw_resource=raw_resource,
        # Not unquote_plus: a '+' that was not encoded is part of the base64 text.
        signature=unquote(parts["sig"]).encode(),
        raw_expiry=raw_expiry,
        expires_at=min(int(raw_expiry) * 1_000, NEVER),
        raw_key_name=parts["skn"],
    )


def create_sas(key_name: str, key: str, uri: str, expires_at: Instant) -> str:
    """A token in the form of the SDKs. The expiry is cut to whole seconds."""
    resource, expiry = quote_plus(uri), str(expires_at // 1_000)
    signature = quote_plus(_sign(key, resource, expiry))
    return f"{SCHEME} sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


def _sign(key: str, resource: str, expiry: str) -> bytes:
    # The key's text itself is the HMAC key: it is not base64-decoded (wire §1.1).
    message = f"{resource}\n{expiry}".encode()
    return base64.b64encode(hmac.digest(key.encode(), message, "sha256"))


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.split("&"):
        name, _, value = part.partition("=")
        if name.lower() in parts:
            raise MalformedToken(f"MalformedToken: The token has '{name}' twice.")
        parts[name.lower()] = value
    return parts


def _lower_hex(encoded: str) -> str:
    head, *rest = encoded.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)

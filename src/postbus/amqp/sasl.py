"""The SASL mechanisms of both sides, without the exchange itself (AMQP 5.3, RFC 4616)."""

from dataclasses import dataclass

from postbus.amqp.codec.types import Symbol
from postbus.amqp.faults import DecodeError

ANONYMOUS = Symbol("ANONYMOUS")
PLAIN = Symbol("PLAIN")
EXTERNAL = Symbol("EXTERNAL")
# Service Bus's own: no credentials here, they follow as tokens on the $cbs link.
MSSBCBS = Symbol("MSSBCBS")

# What a server offers (wire §1.2): the .NET SDK gives up unless it finds MSSBCBS.
SERVER_MECHANISMS = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """What a PLAIN initial response holds; never put the password in a log."""

    authorization_id: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials({self.authorization_id!r}, {self.username!r}, password hidden)"


def parse_plain(response: bytes | None) -> PlainCredentials:
    """Take apart `authorization-id NUL username NUL password`, or raise DecodeError."""
    parts = (response or b"").split(b"\x00")
    if len(parts) != 3:
        raise DecodeError("a PLAIN response has three parts with a zero byte between them")
    try:
        authorization_id, username, password = (part.decode() for part in parts)
    except UnicodeDecodeError:
        raise DecodeError("a PLAIN response that is not utf-8") from None
    if not username or not password:
        raise DecodeError("a PLAIN response without user name or password")
    return PlainCredentials(authorization_id, username, password)


def encode_plain(username: str, password: str, authorization_id: str = "") -> bytes:
    """Return a PLAIN initial response."""
    parts = (authorization_id, username, password)
    if any("\x00" in part for part in parts):
        raise ValueError("a zero byte in a user name or password")
    return "\x00".join(parts).encode()

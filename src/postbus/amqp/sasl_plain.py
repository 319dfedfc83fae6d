"""The initial response of the SASL mechanism PLAIN (RFC 4616)."""

from dataclasses import dataclass

from postbus.amqp.faults import DecodeError


@dataclass(frozen=True, slots=True)
class PlainCredentials:
    """The contents of a PLAIN initial response. Its repr hides the password, for logs."""

    authorization_id: str
    username: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials({self.authorization_id!r}, {self.username!r}, password hidden)"


def parse_plain(response: bytes | None) -> PlainCredentials:
    """Parse `authorization-id NUL username NUL password`, or raise DecodeError."""
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

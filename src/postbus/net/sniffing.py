"""The protocol of a connection, told from its first bytes. Pure."""

from enum import Enum


class Wire(Enum):
    AMQP = "amqp"
    HTTP = "http"
    TLS = "tls"
    UNKNOWN = "unknown"


NEEDED_BYTES = 4

_TLS_HANDSHAKE = b"\x16"
_OPENINGS = {
    b"AMQP": Wire.AMQP,
    # The methods of HTTP/1.1, and the preface of HTTP/2, which the HTTP parser refuses in words.
    **dict.fromkeys(
        (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"PRI "),
        Wire.HTTP,
    ),
}


def sniff(first: bytes) -> Wire | None:
    """The protocol that these bytes begin; None while several are possible."""
    if first.startswith(_TLS_HANDSHAKE):
        return Wire.TLS
    if len(first) >= NEEDED_BYTES:
        return _OPENINGS.get(first[:NEEDED_BYTES], Wire.UNKNOWN)
    if any(opening.startswith(first) for opening in _OPENINGS):
        return None
    return Wire.UNKNOWN

"""Application properties as HTTP headers: one each, typed by how the value is written.

A quoted text is JSON's string; a number, `true`, `false` and `null` are bare; any other text is a
string as it stands, and a string that is a date is one. So every header can be a property, and each
comes back as it was sent (semantics A §7).

What HTTP keeps for itself is never one. A property of such a name travels in `UserProperties`,
beside those whose names no header can have.
"""

import json
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final, Self

from postbus.errors import InvalidArgument
from postbus.model.plain_message import Moment, PropertyValue
from postbus.model.times import BadDate, format_httpdate, parse_httpdate

BROKER_PROPERTIES: Final = "BrokerProperties"
USER_PROPERTIES: Final = "UserProperties"
"""A JSON object of properties, as the items of a batch have it."""

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", re.ASCII)  # RFC 9110 §5.6.2
_NUMBER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,308})(?:\.[0-9]{1,308})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII
)
_LITERALS: Final = {"true": True, "false": False, "null": None}

# What a request says to HTTP, to whatever stands between client and server, or to Azure's own API.
_REQUEST_NAMES: Final = """
    accept accept-charset accept-encoding accept-language access-control-request-headers
    access-control-request-method authorization cache-control connection content-disposition
    content-encoding content-language content-length content-location content-md5 content-type
    cookie date dnt expect forwarded from host if-match if-modified-since if-none-match if-range
    if-unmodified-since keep-alive max-forwards origin pragma prefer proxy-authorization
    proxy-connection range referer sec-ch-ua sec-ch-ua-mobile sec-ch-ua-platform sec-fetch-dest
    sec-fetch-mode sec-fetch-site sec-fetch-user te trailer transfer-encoding upgrade
    upgrade-insecure-requests user-agent via x-forwarded-for x-forwarded-host x-forwarded-port
    x-forwarded-proto x-real-ip
    brokerproperties userproperties x-ms-retrypolicy servicebusauthorization
    servicebussupplementaryauthorization servicebusdlqsupplementaryauthorization
"""
# What a reply would say on top of that: a property of this name must not be a header.
_REPLY_NAMES: Final = """
    accept-ranges access-control-allow-origin age allow alt-svc clear-site-data content-range
    content-security-policy etag expires last-modified link location proxy-authenticate refresh
    retry-after server set-cookie strict-transport-security vary warning www-authenticate
"""
NOT_PROPERTIES: Final = frozenset(_REQUEST_NAMES.split())
NOT_HEADERS: Final = NOT_PROPERTIES | frozenset(_REPLY_NAMES.split())


class Spelled(bytes):
    """A header's name that keeps its case: uvicorn writes names in small letters, and a property's
    name is more than a header's."""

    def lower(self) -> Self:
        return self


# -- from requests ---------------------------------------------------------------------------


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, PropertyValue]:
    """The properties among the headers of a request; names as they were written."""
    properties: dict[str, PropertyValue] = {}
    seen: set[str] = set()
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1")
        if name.lower() in NOT_PROPERTIES:
            continue
        if name.lower() in seen:
            raise InvalidArgument(f"The HTTP header '{name}' is there twice.")
        seen.add(name.lower())
        properties[name] = read_value(header_text(raw_value))
    return properties


def header_text(value: bytes) -> str:
    """HTTP names no encoding for a header's value; clients send UTF-8 or Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def read_value(text: str) -> PropertyValue:
    """The value that a header means. Every text means one."""
    text = text.strip(" \t")
    if text in _LITERALS:
        return _LITERALS[text]
    if text.startswith('"'):
        quoted = _unquoted(text)
        return text if quoted is None else read_text(quoted)
    return _number(text) if _NUMBER.fullmatch(text) else read_text(text)


def read_text(text: str) -> PropertyValue:
    """A date, or a string."""
    try:
        return Moment(parse_httpdate(text))
    except BadDate:
        return text


def _unquoted(text: str) -> str | None:
    try:
        value = json.loads(text)
        value.encode()
    except (ValueError, RecursionError, AttributeError):
        return None  # an open quote, an escape that JSON does not have, half a surrogate pair
    return str(value)


def _number(text: str) -> PropertyValue:
    """A number as AMQP has it; as text where it would lose its digits."""
    if "." in text or "e" in text.lower():
        number = float(text)
        return number if isfinite(number) else text
    whole = int(text)
    return whole if -(1 << 63) <= whole < 1 << 63 else text


# -- for replies -----------------------------------------------------------------------------


def write_headers(properties: Mapping[str, PropertyValue]) -> list[tuple[bytes, bytes]]:
    """Headers that say the properties; those that cannot be headers share one."""
    headers: list[tuple[bytes, bytes]] = []
    others: dict[str, str] = {}
    seen = set(NOT_HEADERS)
    for name, value in properties.items():
        if _TOKEN.fullmatch(name) is None or name.lower() in seen:
            others[name] = write_value(value)
            continue
        seen.add(name.lower())
        headers.append((Spelled(name.encode()), write_value(value).encode()))
    if others:
        headers.append((Spelled(USER_PROPERTIES.encode()), write_object(others).encode()))
    return headers


def write_value(value: PropertyValue) -> str:
    """A value so that reading it gives the same value, in ASCII."""
    if isinstance(value, Moment):
        return f'"{format_httpdate(value)}"'
    if isinstance(value, float) and not isfinite(value):
        return f'"{value}"'  # JSON has no such numbers
    return json.dumps(value)


def write_object(values: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items()) + "}"

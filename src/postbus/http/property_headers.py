"""Application properties as HTTP headers: one header each, typed by the form of its value.

A quoted text is a JSON string. A number, `true`, `false` and `null` are bare, and any other bare
text is a string. A string in the form of an HTTP date is a date. So every header can be a property,
and each property comes back as it was sent (semantics A §7).

Headers with a meaning in HTTP are never properties. A property with such a name travels in
`UserProperties`, as does a property whose name no header can have.
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

# Headers of a request that are for HTTP, for a proxy on the way, or for Azure's own API.
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
# More headers that a reply may have: a property of this name must not be a header.
_REPLY_NAMES: Final = """
    accept-ranges access-control-allow-origin age allow alt-svc clear-site-data content-range
    content-security-policy etag expires last-modified link location proxy-authenticate refresh
    retry-after server set-cookie strict-transport-security vary warning www-authenticate
"""
NOT_PROPERTIES: Final = frozenset(_REQUEST_NAMES.split())
NOT_HEADERS: Final = NOT_PROPERTIES | frozenset(_REPLY_NAMES.split())


class Spelled(bytes):
    """The name of a header that keeps its case. uvicorn writes names in small letters, but the case
    of a property's name matters."""

    def lower(self) -> Self:
        return self


# -- from requests ---------------------------------------------------------------------------


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, PropertyValue]:
    """The properties among the headers of a request, in the client's spelling."""
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
    """HTTP names no encoding for the value of a header; clients send UTF-8 or Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def read_value(text: str) -> PropertyValue:
    """The value of a header. Every text has a value."""
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
    """A number in an AMQP type; a text where a number would lose digits."""
    if "." in text or "e" in text.lower():
        number = float(text)
        return number if isfinite(number) else text
    whole = int(text)
    return whole if -(1 << 63) <= whole < 1 << 63 else text


# -- for replies -----------------------------------------------------------------------------


def write_headers(properties: Mapping[str, PropertyValue]) -> list[tuple[bytes, bytes]]:
    """The headers for the properties; properties that cannot be headers share one header."""
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
    """A value in ASCII that reads back as the same value."""
    if isinstance(value, Moment):
        return f'"{format_httpdate(value)}"'
    if isinstance(value, float) and not isfinite(value):
        return f'"{value}"'  # JSON has no such numbers
    return json.dumps(value)


def write_object(values: Mapping[str, str]) -> str:
    """A JSON object of values that are JSON already."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items()) + "}"

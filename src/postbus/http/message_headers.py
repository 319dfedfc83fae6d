"""One message in an HTTP request or reply: everything about it but its body is in the headers."""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from postbus.errors import InvalidArgument
from postbus.http.broker_properties import (
    apply_broker_properties,
    read_json,
    read_object,
    read_user_properties,
    write_broker_properties,
)
from postbus.http.property_headers import (
    BROKER_PROPERTIES,
    USER_PROPERTIES,
    Spelled,
    header_text,
    read_headers,
    write_headers,
)
from postbus.model.address import Address
from postbus.model.plain_message import PlainMessage, ReceivedMessage
from postbus.net.http_protocol import HEADER_NAMES

Headers = list[tuple[bytes, bytes]]

EMPTY_TYPE: Final = "application/xml; charset=utf-8"
"""Azure's content type for a missing body, and for a body without a content type."""

_PRINTABLE: Final = re.compile(r"[\x20-\x7e]+")
_CODINGS: Final = {"br", "compress", "deflate", "gzip", "zstd"}
"""Content codings that an HTTP client undoes. An AMQP sender may mean `utf-8` by the field."""


def headers_of(request: Request) -> Headers:
    """Headers with the client's spelling of the names, where the server kept it: ASGI has small
    letters."""
    headers: Headers = request.scope["headers"]
    names: list[bytes] = request.scope.get("state", {}).get(HEADER_NAMES, [])
    if len(names) != len(headers):
        return headers
    return [(name, value) for name, (_, value) in zip(names, headers, strict=True)]


def only_header(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """The value of a header that may occur once."""
    values = [value for each, value in headers if each.lower() == name.lower().encode()]
    if len(values) > 1:
        raise InvalidArgument(f"The HTTP header '{name}' is there twice.")
    return header_text(values[0]) if values else None


def read_message(headers: Headers, content_type: str | None) -> PlainMessage:
    """A message without its body, which is read only after the headers are accepted."""
    message = PlainMessage(
        content_type=_ascii(content_type, "content-type"),
        content_encoding=_ascii(only_header(headers, "content-encoding"), "content-encoding"),
        properties=read_headers(headers),
    )
    where = f"The HTTP header '{BROKER_PROPERTIES}'"
    values = _object(headers, BROKER_PROPERTIES, where)
    apply_broker_properties(message, values, where)
    where = f"The HTTP header '{USER_PROPERTIES}'"
    others = read_user_properties(_object(headers, USER_PROPERTIES, where), where)
    for name, value in others.items():
        if name in message.properties:
            raise InvalidArgument(f"{where} repeats '{name}', which has a header of its own.")
        message.properties[name] = value
    return message


def _object(headers: Headers, name: str, where: str) -> dict[str, object]:
    text = only_header(headers, name)
    return {} if text is None else read_object(read_json(text, where), where)


def _ascii(text: str | None, name: str) -> str | None:
    if text is not None and not text.isascii():
        raise InvalidArgument(f"The HTTP header '{name}' is not ASCII.")
    return text or None


def write_message(received: ReceivedMessage, address: Address, base_url: str) -> Response:
    """The reply to a receive."""
    message = received.message
    response = Response(
        message.body,
        200 if received.token is None else 201,
        {"content-type": _content_type(received)},
    )
    headers = response.raw_headers
    if message.content_encoding in _CODINGS:
        headers.append((b"content-encoding", str(message.content_encoding).encode()))
    properties = write_broker_properties(received, from_topic=address.subscription is not None)
    headers.append((Spelled(BROKER_PROPERTIES.encode()), properties.encode()))
    if received.token is not None:
        path = quote(f"{address.path}/messages/{received.number}/{received.token}", safe="/$")
        headers.append((Spelled(b"Location"), f"{base_url}/{path}".encode()))
    headers += write_headers(message.properties)
    return response


def _content_type(received: ReceivedMessage) -> str:
    """The message's own content type, unless a header cannot hold it."""
    own = received.message.content_type
    if own is not None and _PRINTABLE.fullmatch(own):
        return own.strip()
    return received.body_type or EMPTY_TYPE

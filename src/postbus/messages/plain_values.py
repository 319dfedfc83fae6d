"""Values of AMQP's types without the types: bodies, properties and ids as plain values and texts.

For everything that is not AMQP: HTTP, JSON lines, data frames. Nothing is refused: a value without
a plain form gets a text.
"""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final
from uuid import UUID

from postbus.amqp.codec import decode, has_more_values
from postbus.amqp.codec.decimals import decimal_of
from postbus.amqp.codec.types import (
    AmqpArray,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Timestamp,
)
from postbus.amqp.faults import DecodeError
from postbus.amqp.sections import Sections, read_data
from postbus.amqp.sections.fields import MessageId
from postbus.model.plain_message import Moment, PropertyValue
from postbus.model.times import Instant, format_timespan, instant_of_ticks, is_httpdate

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DATA: Final = 0x75
_SEQUENCE: Final = 0x76
# The names of .NET's types on the wire (wire §4.5).
_TIME_SPAN: Final = "com.microsoft:timespan"
BODY_VALUES_MAX: Final = 16_384
"""Values of a body that are written as text. Building more takes longer than others can wait."""
_DATE_TIME_OFFSET: Final = "com.microsoft:datetime-offset"


def read_body(payload: bytes, sections: Sections) -> tuple[bytes, str | None]:
    """The body as bytes, and their type if the body was a value and not bytes."""
    offset = sections.body
    if offset == sections.footer:
        return b"", None
    code = payload[offset + 2]
    if code == _DATA:
        return read_data(payload, sections), None
    try:
        values = _values(payload, offset, sections.footer)
    except DecodeError:
        values = None
    if values is None:
        # As it came: nobody has looked into it, and its content may be wrong.
        return payload[offset : sections.footer], None
    if code == _SEQUENCE:
        items = [item for value in values if isinstance(value, list) for item in value]
        return _json(items), JSON
    [value] = values
    if type(value) is bytes:
        return value, None
    if isinstance(value, str):
        return value.encode(), TEXT
    return _json(value), JSON


def _values(payload: bytes, offset: int, end: int) -> list[object] | None:
    """The values in the sections of a body; None if that is too much to be built."""
    if has_more_values(payload, offset, end, BODY_VALUES_MAX):
        return None
    values: list[object] = []
    while offset < end:
        section, offset = decode(payload, offset)
        assert isinstance(section, Described)
        values.append(section.value)
    return values


def _json(value: object) -> bytes:
    return json.dumps(_json_value(value), ensure_ascii=False, separators=(",", ":")).encode()


def _json_value(value: object) -> object:
    if isinstance(value, dict):
        return {_key_text(key): _json_value(each) for key, each in value.items()}
    if isinstance(value, AmqpArray):
        return [_json_value(each) for each in value.items]
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    plain = plain_value(value)
    if isinstance(plain, Moment):
        return iso(plain)
    if isinstance(plain, float) and not isfinite(plain):
        return None
    return plain


def _key_text(key: object) -> str:
    plain = plain_value(key)
    return plain if isinstance(plain, str) else json.dumps(_json_value(key))


def iso(moment: Instant) -> str:
    """As `2026-06-30T20:53:02.000Z`."""
    # Not by seconds with a fraction: from the year 2242 on they have no bits for it.
    when = _EPOCH + timedelta(milliseconds=moment)
    return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def plain_value(value: object) -> PropertyValue:
    """A value of an application property without its AMQP type."""
    match value:
        case None | bool():
            return value
        case Timestamp():
            return Moment(value) if is_httpdate(value) else int(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case UUID():
            return str(value)
        case Decimal32() | Decimal64() | Decimal128():
            return str(decimal_of(value))
        case bytes():
            return b64encode(value).decode()
        case Described():
            return _described(value)
    return json.dumps(_json_value(value))


def _described(value: Described) -> PropertyValue:
    inner = value.value
    if isinstance(inner, int) and value.descriptor == _TIME_SPAN:
        return format_timespan(inner)
    if isinstance(inner, int) and value.descriptor == _DATE_TIME_OFFSET:
        return plain_value(Timestamp(instant_of_ticks(inner)))
    return plain_value(inner)


def id_text(value: MessageId | None) -> str | None:
    """An id may be text, a number, a UUID or bytes (AMQP 3.2.11 to 3.2.14)."""
    if isinstance(value, bytes):
        return value.hex()
    return None if value is None else str(value)


def text_of(value: object) -> str | None:
    if isinstance(value, bytes):
        # As the Python SDK sends back a text that it has received (wire §4.3).
        return value.decode(errors="replace")
    return None if value is None else str(value)


def property_text(value: object) -> str | None:
    """A value of an application property as a text, where all of them must be texts."""
    plain = plain_value(value)
    if plain is None or isinstance(plain, str):
        return plain
    return iso(plain) if isinstance(plain, Moment) else json.dumps(plain)

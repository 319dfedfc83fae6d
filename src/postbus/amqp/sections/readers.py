"""The sections of a message read one at a time.

Every reader takes the payload and what scan() found in it, and decodes nothing but its own
section.
"""

import struct
from typing import Any, cast

from postbus.amqp.codec import decode, skip
from postbus.amqp.faults import DecodeError
from postbus.amqp.frames.composites import Composite, build
from postbus.amqp.sections.fields import Header, MessageId, Properties
from postbus.amqp.sections.scanning import VALUE, Sections, data_of, open_section

_U32 = struct.Struct(">I").unpack_from


def read_header(payload: bytes, sections: Sections) -> Header:
    """Return the header; one that states nothing if there is none."""
    end = sections.delivery_annotations
    if end == 0:
        return Header()
    return _usual_header(payload, end) or cast(Header, _composite(Header, payload, 0))


def _usual_header(payload: bytes, end: int) -> Header | None:
    """Read a header that begins `00 53 70 c0`, by hand, for each message sent has its read."""
    fields: list[int | None] = [None, None, None, None, None]
    offset = 6
    try:
        if payload[3] != 0xC0 or payload[2] != 0x70 or payload[5] > len(fields):
            return None
        for index in range(payload[5]):
            code = payload[offset]
            if code == 0x40:
                offset += 1
            elif code == 0x70 and index in _HEADER_UINTS:
                fields[index] = _U32(payload, offset + 1)[0]
                offset += 5
            elif code == 0x52 and index in _HEADER_UINTS:
                fields[index] = payload[offset + 1]
                offset += 2
            elif code == 0x43 and index in _HEADER_UINTS:
                fields[index] = 0
                offset += 1
            elif 0x41 <= code <= 0x42 and index in _HEADER_FLAGS:
                fields[index] = 1 if code == 0x41 else 0
                offset += 1
            elif code == 0x50 and index == _HEADER_PRIORITY:
                fields[index] = payload[offset + 1]
                offset += 2
            else:
                return None
    except (IndexError, struct.error):
        return None
    if offset != end:
        return None
    durable, priority, ttl, first_acquirer, delivery_count = fields
    return Header(
        None if durable is None else durable == 1,
        priority,
        ttl,
        None if first_acquirer is None else first_acquirer == 1,
        delivery_count or 0,
    )


_HEADER_FLAGS = (0, 3)
_HEADER_PRIORITY = 1
_HEADER_UINTS = (2, 4)


def read_delivery_annotations(payload: bytes, sections: Sections) -> dict[Any, Any]:
    return _map(payload, sections.delivery_annotations, sections.message_annotations)


def read_annotations(payload: bytes, sections: Sections) -> dict[Any, Any]:
    """Return the message annotations."""
    return _map(payload, sections.message_annotations, sections.properties)


def read_application_properties(payload: bytes, sections: Sections) -> dict[Any, Any]:
    return _map(payload, sections.application_properties, sections.body)


def read_footer(payload: bytes, sections: Sections) -> dict[Any, Any]:
    return _map(payload, sections.footer, sections.end)


def read_properties(payload: bytes, sections: Sections) -> Properties:
    """Return all thirteen properties; all None if there is no such section."""
    if sections.properties == sections.application_properties:
        return Properties()
    return cast(Properties, _composite(Properties, payload, sections.properties))


def read_ids(payload: bytes, sections: Sections) -> tuple[MessageId | None, str | None]:
    """Return message-id and group-id; raise DecodeError if any property is not what it should
    be."""
    start = sections.properties
    end = sections.application_properties
    if start == end:
        return None, None
    if payload[start + 1] == 0x53 and payload[start + 3] == 0xC0:
        ids = _usual_ids(payload, start, end)
        if ids is not None:
            return ids
    properties = read_properties(payload, sections)
    return properties.message_id, properties.group_id


# What each property is: an id, binary, string, symbol, timestamp or uint (AMQP 3.2.4).
_KINDS = "ibsssiyyttsus"
_GROUP_ID = 10


def _usual_ids(payload: bytes, start: int, end: int) -> tuple[MessageId | None, str | None] | None:
    """Check a properties section that begins `00 53 73 c0` by its bytes, and find its two ids.

    Each message comes by here, and few have more than three properties. None to anything
    unusual, and to anything wrong: the plain way words the refusal.
    """
    message_id: str | None = None
    group_id: str | None = None
    offset = start + 6
    try:
        count = payload[start + 5]
        if count > len(_KINDS):
            return None
        for index in range(count):
            code = payload[offset]
            if code == 0x40:
                offset += 1
                continue
            kind = _KINDS[index]
            if code == 0xA1 and kind in "is":
                at = offset + 2
                offset = at + payload[offset + 1]
                text = payload[at:offset].decode()
                if index == 0:
                    message_id = text
                elif index == _GROUP_ID:
                    group_id = text
            elif code == 0xA3 and kind == "y":
                at = offset + 2
                offset = at + payload[offset + 1]
                if not payload[at:offset].isascii():
                    return None
            elif code == 0x83 and kind == "t":
                offset += 9
            else:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    if offset != end:
        return None
    return message_id, group_id


def read_value(payload: bytes, sections: Sections) -> object:
    """Return the value that is the body, or raise DecodeError if the body is of another kind."""
    if sections.body < sections.footer:
        code, start, _, _ = open_section(payload, sections.body)
        if code == VALUE:
            return decode(payload, start)[0]
    raise DecodeError("an amqp-value must be the body")


def read_data(payload: bytes, sections: Sections) -> bytes:
    """Return the bytes that are the body, or raise DecodeError if the body is of another kind."""
    return b"".join(data_of(payload, sections.body, sections.footer, sections.end))


def _map(payload: bytes, start: int, end: int) -> dict[Any, Any]:
    if start == end:
        return {}
    return cast("dict[Any, Any]", decode(payload, _value_start(payload, start))[0])


def _composite(cls: type[Composite], payload: bytes, start: int) -> Composite:
    return build(cls, decode(payload, _value_start(payload, start))[0])


def _value_start(payload: bytes, offset: int) -> int:
    """Where the value of a section starts, past its descriptor."""
    return offset + 3 if payload[offset + 1] == 0x53 else skip(payload, offset + 1)

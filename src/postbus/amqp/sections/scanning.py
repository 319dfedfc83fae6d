"""Where the sections of a message are, found from their first bytes alone (AMQP 3.2).

A broker looks at few fields of a message and passes the rest on as it came; readers.py
and writers.py read and build the sections one at a time.
"""

import struct

from postbus.amqp.codec import decode, skip
from postbus.amqp.codec.types import Symbol, ULong
from postbus.amqp.faults import DecodeError, MessageSizeExceeded

_U32 = struct.Struct(">I").unpack_from

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

_NAMES: dict[str, int] = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

_LIST = frozenset((0x45, 0xC0, 0xD0))
_MAP = frozenset((0xC1, 0xD1))
_BINARY = frozenset((0xA0, 0xB0))

# Which constructors a section's value may have. An amqp-value may be anything.
_CONSTRUCTORS: dict[int, frozenset[int]] = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    SEQUENCE: _LIST,
    VALUE: frozenset(range(256)),
    FOOTER: _MAP,
}


SECTIONS_MAX = 8_192
"""Sections of one payload: a batch has one for each message, and any could be of five bytes."""


class Sections:
    """Where each section of a message starts.

    The sections of a message follow each other in a fixed order, so each ends where the next one
    starts, and one that is absent starts where the next one does: the properties are
    `payload[sections.properties : sections.application_properties]`, empty if there are none.
    The header starts at 0. The body is all of its sections in a row.
    """

    __slots__ = (
        "application_properties",
        "body",
        "compact",
        "delivery_annotations",
        "end",
        "footer",
        "message_annotations",
        "properties",
    )

    def __init__(
        self,
        delivery_annotations: int,
        message_annotations: int,
        properties: int,
        application_properties: int,
        body: int,
        footer: int,
        end: int,
        compact: bool,
    ) -> None:
        self.delivery_annotations = delivery_annotations
        self.message_annotations = message_annotations
        self.properties = properties
        self.application_properties = application_properties
        self.body = body
        self.footer = footer
        self.end = end
        # Whether each section begins with `00 53 code`. If not, some clients cannot read it.
        self.compact = compact


# A section's place in the order; the three kinds of body share one.
_BODY_RANK, _FOOTER_RANK, _RANKS = 5, 6, 7
_RANK: dict[int, int] = {
    HEADER: 0,
    DELIVERY_ANNOTATIONS: 1,
    MESSAGE_ANNOTATIONS: 2,
    PROPERTIES: 3,
    APPLICATION_PROPERTIES: 4,
    DATA: _BODY_RANK,
    SEQUENCE: _BODY_RANK,
    VALUE: _BODY_RANK,
    FOOTER: _FOOTER_RANK,
}

# By the first four bytes of a section: its rank, its code, and how wide its size is.
_OPENINGS: dict[bytes, tuple[int, int, int]] = {
    bytes((0, 0x53, code, constructor)): (_RANK[code], code, 4 if constructor & 0x10 else 1)
    for code, constructors in _CONSTRUCTORS.items()
    for constructor in constructors & {0xA0, 0xA1, 0xB0, 0xB1, 0xC0, 0xC1, 0xD0, 0xD1}
}


def scan(payload: bytes) -> Sections:
    """Find the sections of a message, checking their order and kind but not their content.

    A message without a body is let through: some clients send one.
    """
    sections = _scan_usual(payload)
    return scan_plainly(payload) if sections is None else sections


def _scan_usual(payload: bytes) -> Sections | None:
    """Scan a message that ends with a body of one section: unrolled, for every message comes by
    here. None means that it must be looked at plainly."""
    offset = 0
    try:
        rank, _, width = _OPENINGS[payload[:4]]
        if rank == 0:
            offset = 5 + payload[4] if width == 1 else 8 + _U32(payload, 4)[0]
            rank, _, width = _OPENINGS[payload[offset : offset + 4]]
        delivery_annotations = offset
        if rank == 1:
            offset += 5 + payload[offset + 4] if width == 1 else 8 + _U32(payload, offset + 4)[0]
            rank, _, width = _OPENINGS[payload[offset : offset + 4]]
        message_annotations = offset
        if rank == 2:
            offset += 5 + payload[offset + 4] if width == 1 else 8 + _U32(payload, offset + 4)[0]
            rank, _, width = _OPENINGS[payload[offset : offset + 4]]
        properties = offset
        if rank == 3:
            offset += 5 + payload[offset + 4] if width == 1 else 8 + _U32(payload, offset + 4)[0]
            rank, _, width = _OPENINGS[payload[offset : offset + 4]]
        application_properties = offset
        if rank == 4:
            offset += 5 + payload[offset + 4] if width == 1 else 8 + _U32(payload, offset + 4)[0]
            rank, _, width = _OPENINGS[payload[offset : offset + 4]]
        body = offset
        offset += 5 + payload[offset + 4] if width == 1 else 8 + _U32(payload, offset + 4)[0]
    except (IndexError, KeyError, struct.error):
        return None
    if rank != _BODY_RANK or offset != len(payload):
        return None
    return Sections(
        delivery_annotations,
        message_annotations,
        properties,
        application_properties,
        body,
        offset,
        offset,
        True,
    )


def scan_plainly(payload: bytes) -> Sections:
    """Scan a message section by section, however each is written."""
    size = len(payload)
    offset = 0
    rank_before = code_before = -1
    compact = True
    starts: list[int] = []
    count = 0
    while offset < size:
        count = _counted(count)
        code, _, end, short = open_section(payload, offset)
        compact = compact and short
        rank = _RANK[code]
        if rank > rank_before:
            starts += [offset] * (rank + 1 - len(starts))
        elif rank != _BODY_RANK or code != code_before or code == VALUE:
            raise DecodeError(f"section {code:#x} after section {code_before:#x}")
        rank_before, code_before = rank, code
        offset = end
    starts += [size] * (_RANKS - len(starts))
    return Sections(starts[1], starts[2], starts[3], starts[4], starts[5], starts[6], size, compact)


def open_section(payload: bytes, offset: int) -> tuple[int, int, int, bool]:
    """Of the section at offset, its code, where its value starts, where it ends, and whether it
    begins `00 53`."""
    opening = _OPENINGS.get(payload[offset : offset + 4])
    if opening is not None:
        return opening[1], offset + 3, skip(payload, offset + 3), True
    if payload[offset] != 0:
        raise DecodeError(f"a message section that starts with {payload[offset]:#04x}")
    descriptor, start = decode(payload, offset + 1)
    code: int | None = None
    if type(descriptor) is ULong and descriptor in _RANK:
        code = int(descriptor)
    elif type(descriptor) is Symbol:
        code = _NAMES.get(descriptor)
    if code is None:
        raise DecodeError(f"no message section has the descriptor {descriptor!r:.80}")
    end = skip(payload, start)
    if payload[start] not in _CONSTRUCTORS[code]:
        raise DecodeError(f"section {code:#x} holds a value of a wrong type")
    return code, start, end, payload[offset + 1] == 0x53


def compacted(payload: bytes) -> bytes:
    """Rewrite a message so that each section begins with `00 53 code` (wire §0.1)
    and all are in order: the Python SDK writes delivery annotations last."""
    parts: list[tuple[int, bytes]] = []
    offset = 0
    while offset < len(payload):
        _counted(len(parts))
        code, start, end, _ = open_section(payload, offset)
        parts.append((_RANK[code], bytes((0, 0x53, code)) + payload[start:end]))
        offset = end
    parts.sort(key=_rank_of)
    return b"".join([part for _, part in parts])


def _counted(sections: int) -> int:
    """One section more."""
    if sections >= SECTIONS_MAX:
        raise MessageSizeExceeded(f"more than {SECTIONS_MAX} sections")
    return sections + 1


def _rank_of(part: tuple[int, bytes]) -> int:
    return part[0]


def split_batch(payload: bytes, count_max: int) -> list[bytes]:
    """Take apart the payload of a batch transfer: each data section is a message
    (wire §4.6). What stands around them is an envelope and no part of any message."""
    sections = scan(payload)
    return data_of(payload, sections.body, sections.footer, count_max)


def data_of(payload: bytes, offset: int, end: int, count_max: int) -> list[bytes]:
    """Return what the scanned data sections from offset to end hold."""
    pieces: list[bytes] = []
    while offset < end:
        if len(pieces) == count_max:
            raise MessageSizeExceeded(f"more than {count_max} data sections")
        opening = payload[offset : offset + 4]
        if opening == b"\x00\x53\x75\xa0":
            start = offset + 5
            offset = start + payload[offset + 4]
        elif opening == b"\x00\x53\x75\xb0":
            start = offset + 8
            offset = start + _U32(payload, offset + 4)[0]
        else:
            code, start, offset, _ = open_section(payload, offset)
            if code != DATA:
                raise DecodeError("data sections must make up the body")
            start += 2 if payload[start] == 0xA0 else 5
        pieces.append(payload[start:offset])
    return pieces

"""Python values to AMQP bytes, in the shortest form of their type (AMQP 1.6).

A value out of its type's range is a mistake of ours, not of a peer: it raises ValueError.
"""

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Encodable,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

# How many items of no width an array may claim. They cost the sender nothing, so without a bound
# a few bytes could make the reader build a list of four billion.
ZERO_WIDTH_ITEMS_MAX = 32

_U32 = struct.Struct(">I")
_CODE_U32 = struct.Struct(">BI")
_CODE_U64 = struct.Struct(">BQ")
_CODE_I64 = struct.Struct(">Bq")
_SIZE_COUNT = struct.Struct(">BII")

Writer = Callable[[Any, bytearray], None]


def encode(value: object) -> bytes:
    """Return the AMQP encoding of a value."""
    out = bytearray()
    encode_value(value, out)
    return bytes(out)


def encode_value(value: object, out: bytearray) -> None:
    """Append the AMQP encoding of a value, constructor included."""
    writer = _BY_TYPE.get(type(value))
    if writer is not None:
        writer(value, out)
    elif isinstance(value, Encodable):
        value.encode_into(out)
    else:
        raise TypeError(f"no AMQP type stands for {type(value).__name__}")


def write_uint(value: int, out: bytearray) -> None:
    if 0 < value <= 0xFF:
        out += bytes((0x52, value))
    elif value == 0:
        out.append(0x43)
    else:
        out += _pack(_CODE_U32, 0x70, value)


def write_ulong(value: int, out: bytearray) -> None:
    if 0 < value <= 0xFF:
        out += bytes((0x53, value))
    elif value == 0:
        out.append(0x44)
    else:
        out += _pack(_CODE_U64, 0x80, value)


def write_list(count: int, items: bytes | bytearray, out: bytearray) -> None:
    """Append a list from its already encoded items, as list0, list8 or list32."""
    if count == 0:
        out.append(0x45)
    else:
        _write_compound(0xC0, count, items, out)


def write_map(count: int, items: bytes | bytearray, out: bytearray) -> None:
    """Append a map from its already encoded keys and values; count counts both."""
    _write_compound(0xC1, count, items, out)


def _write_compound(code: int, count: int, items: bytes | bytearray, out: bytearray) -> None:
    size = len(items)
    if size < 0xFF and count <= 0xFF:
        out += bytes((code, size + 1, count))
    else:
        out += _pack(_SIZE_COUNT, code + 0x10, size + 4, count)
    out += items


def _pack(layout: struct.Struct, *values: object) -> bytes:
    try:
        return layout.pack(*values)
    except (struct.error, OverflowError):
        raise ValueError(f"{values[-1]!r} is out of the range of its AMQP type") from None


def _write_null(value: None, out: bytearray) -> None:
    out.append(0x40)


def _write_bool(value: bool, out: bytearray) -> None:
    out.append(0x41 if value else 0x42)


def _write_int(value: int, out: bytearray) -> None:
    if -0x80 <= value <= 0x7F:
        out += bytes((0x54, value & 0xFF))
    else:
        out.append(0x71)
        _BARE[0x71](value, out)


def _write_long(value: int, out: bytearray) -> None:
    if -0x80 <= value <= 0x7F:
        out += bytes((0x55, value & 0xFF))
    else:
        out += _pack(_CODE_I64, 0x81, value)


def _write_binary(value: bytes, out: bytearray) -> None:
    _write_variable(0xA0, value, out)


def _write_string(value: str, out: bytearray) -> None:
    _write_variable(0xA1, value.encode(), out)


def _write_symbol(value: str, out: bytearray) -> None:
    _write_variable(0xA3, value.encode("ascii"), out)


def _write_variable(code: int, data: bytes, out: bytearray) -> None:
    size = len(data)
    if size <= 0xFF:
        out += bytes((code, size))
    else:
        out += _CODE_U32.pack(code + 0x10, size)
    out += data


def _write_described(value: Described, out: bytearray) -> None:
    out.append(0)
    encode_value(value.descriptor, out)
    encode_value(value.value, out)


def _items_of_list(value: list[object]) -> bytearray:
    items = bytearray()
    for item in value:
        encode_value(item, items)
    return items


def _write_list(value: list[object], out: bytearray) -> None:
    write_list(len(value), _items_of_list(value), out)


def _items_of_map(value: dict[object, object]) -> bytearray:
    items = bytearray()
    for key, item in value.items():
        encode_value(key, items)
        encode_value(item, items)
    return items


def _write_map(value: dict[object, object], out: bytearray) -> None:
    write_map(2 * len(value), _items_of_map(value), out)


def _items_of_array(value: AmqpArray) -> bytearray:
    """The constructor shared by the items, then each item without one (AMQP 1.6.24)."""
    items = bytearray()
    for descriptor in value.descriptors:
        items.append(0)
        encode_value(descriptor, items)
    items.append(value.code)
    if value.code in _ZERO_WIDTH:
        if len(value.items) > ZERO_WIDTH_ITEMS_MAX:
            raise ValueError(f"an array of more than {ZERO_WIDTH_ITEMS_MAX} items of no width")
        if any(item != _ZERO_WIDTH[value.code] for item in value.items):
            raise ValueError(f"an array of {value.code:#04x} holds only one value")
        return items
    writer = _BARE.get(value.code)
    if writer is None:
        raise ValueError(f"no AMQP type has the constructor {value.code:#04x}")
    for item in value.items:
        writer(item, items)
    return items


def _write_array(value: AmqpArray, out: bytearray) -> None:
    _write_compound(0xE0, len(value.items), _items_of_array(value), out)


def _bare_fixed(layout: str) -> Writer:
    packer = struct.Struct(layout)

    def write(value: object, out: bytearray) -> None:
        out += _pack(packer, value)

    return write


def _bare_decimal(size: int) -> Writer:
    def write(value: bytes, out: bytearray) -> None:
        if len(value) != size:
            raise ValueError(f"a decimal of {size} bytes, {len(value)} given")
        out += value

    return write


def _bare_bool(value: bool, out: bytearray) -> None:
    out.append(1 if value else 0)


def _bare_char(value: str, out: bytearray) -> None:
    point = ord(value) if len(value) == 1 else -1
    if point < 0 or 0xD800 <= point <= 0xDFFF:
        raise ValueError(f"{value!r} is not one Unicode character")
    out += _U32.pack(point)


def _bare_uuid(value: UUID, out: bytearray) -> None:
    out += value.bytes


def _bare_variable(wide: bool, data_of: Callable[[Any], bytes]) -> Writer:
    size_layout = _U32 if wide else struct.Struct(">B")

    def write(value: object, out: bytearray) -> None:
        data = data_of(value)
        out += _pack(size_layout, len(data))
        out += data

    return write


def _bare_compound(
    wide: bool, items_of: Callable[[Any], bytearray], count_of: Callable[[Any], int]
) -> Writer:
    layout, extra = (struct.Struct(">II"), 4) if wide else (struct.Struct(">BB"), 1)

    def write(value: object, out: bytearray) -> None:
        items = items_of(value)
        out += _pack(layout, len(items) + extra, count_of(value))
        out += items

    return write


def _ascii(value: str) -> bytes:
    return value.encode("ascii")


def _twice_len(value: dict[object, object]) -> int:
    return 2 * len(value)


def _array_len(value: AmqpArray) -> int:
    return len(value.items)


# Values whose whole encoding is their constructor.
_ZERO_WIDTH: dict[int, object] = {
    0x40: None,
    0x41: True,
    0x42: False,
    0x43: 0,
    0x44: 0,
    0x45: [],
}

# Writers of a value without its constructor, by constructor.
_BARE: dict[int, Writer] = {
    0x50: _bare_fixed(">B"),
    0x51: _bare_fixed(">b"),
    0x52: _bare_fixed(">B"),
    0x53: _bare_fixed(">B"),
    0x54: _bare_fixed(">b"),
    0x55: _bare_fixed(">b"),
    0x56: _bare_bool,
    0x60: _bare_fixed(">H"),
    0x61: _bare_fixed(">h"),
    0x70: _bare_fixed(">I"),
    0x71: _bare_fixed(">i"),
    0x72: _bare_fixed(">f"),
    0x73: _bare_char,
    0x74: _bare_decimal(4),
    0x80: _bare_fixed(">Q"),
    0x81: _bare_fixed(">q"),
    0x82: _bare_fixed(">d"),
    0x83: _bare_fixed(">q"),
    0x84: _bare_decimal(8),
    0x94: _bare_decimal(16),
    0x98: _bare_uuid,
    0xA0: _bare_variable(False, bytes),
    0xA1: _bare_variable(False, str.encode),
    0xA3: _bare_variable(False, _ascii),
    0xB0: _bare_variable(True, bytes),
    0xB1: _bare_variable(True, str.encode),
    0xB3: _bare_variable(True, _ascii),
    0xC0: _bare_compound(False, _items_of_list, len),
    0xC1: _bare_compound(False, _items_of_map, _twice_len),
    0xD0: _bare_compound(True, _items_of_list, len),
    0xD1: _bare_compound(True, _items_of_map, _twice_len),
    0xE0: _bare_compound(False, _items_of_array, _array_len),
    0xF0: _bare_compound(True, _items_of_array, _array_len),
}


def _constructed(code: int) -> Writer:
    bare = _BARE[code]

    def write(value: object, out: bytearray) -> None:
        out.append(code)
        bare(value, out)

    return write


_BY_TYPE: dict[type, Writer] = {
    type(None): _write_null,
    bool: _write_bool,
    UByte: _constructed(0x50),
    UShort: _constructed(0x60),
    UInt: write_uint,
    ULong: write_ulong,
    Byte: _constructed(0x51),
    Short: _constructed(0x61),
    Int: _write_int,
    int: _write_long,
    Long: _write_long,
    Float32: _constructed(0x72),
    float: _constructed(0x82),
    Decimal32: _constructed(0x74),
    Decimal64: _constructed(0x84),
    Decimal128: _constructed(0x94),
    Char: _constructed(0x73),
    Timestamp: _constructed(0x83),
    UUID: _constructed(0x98),
    bytes: _write_binary,
    str: _write_string,
    Symbol: _write_symbol,
    Described: _write_described,
    list: _write_list,
    dict: _write_map,
    AmqpArray: _write_array,
}

"""AMQP bytes to Python values (AMQP 1.6).

Whatever the bytes are, the only exception is DecodeError, and what is allocated stays in
proportion to the bytes that came: sizes and counts are checked against them before anything is
built, and nesting is bounded.
"""

import struct
from collections.abc import Callable
from uuid import UUID

from postbus.amqp.codec.encoding import ZERO_WIDTH_ITEMS_MAX
from postbus.amqp.codec.skipping import WIDTHS, unknown_constructor
from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.amqp.faults import DecodeError

# Deeper than any client nests, far from Python's own limit.
NESTING_MAX = 32

_U16 = struct.Struct(">H").unpack_from
_I16 = struct.Struct(">h").unpack_from
_U32 = struct.Struct(">I").unpack_from
_I32 = struct.Struct(">i").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_I64 = struct.Struct(">q").unpack_from
_F32 = struct.Struct(">f").unpack_from
_F64 = struct.Struct(">d").unpack_from
_U32_U32 = struct.Struct(">II").unpack_from

# Reads a value whose constructor was just passed: (data, offset, depth) to (value, next offset).
Reader = Callable[[bytes, int, int], tuple[object, int]]


def decode(data: bytes, offset: int = 0) -> tuple[object, int]:
    """Decode the value that starts at offset; also return where it ends."""
    try:
        return _read(data, offset, 0)
    except (IndexError, struct.error):
        raise DecodeError(f"the value at byte {offset} runs past the end") from None
    except UnicodeDecodeError as error:
        raise DecodeError(f"text that is not {error.encoding}") from None


def _read(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return _READERS[data[offset]](data, offset + 1, depth)


def _read_unknown(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    raise unknown_constructor(data[offset - 1])


def _read_described(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    depth = _deeper(depth)
    descriptor, offset = _read(data, offset, depth)
    value, offset = _read(data, offset, depth)
    return Described(descriptor, value), offset


def _deeper(depth: int) -> int:
    if depth >= NESTING_MAX:
        raise DecodeError(f"values nested more than {NESTING_MAX} deep")
    return depth + 1


def _read_null(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return None, offset


def _read_true(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return True, offset


def _read_false(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return False, offset


def _read_uint0(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UInt(0), offset


def _read_ulong0(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return ULong(0), offset


def _read_list0(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return [], offset


def _read_bool(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    value = data[offset]
    if value > 1:
        raise DecodeError(f"a boolean of value {value}")
    return value == 1, offset + 1


def _read_ubyte(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UByte(data[offset]), offset + 1


def _read_byte(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Byte((data[offset] ^ 0x80) - 0x80), offset + 1


def _read_smalluint(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UInt(data[offset]), offset + 1


def _read_smallulong(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return ULong(data[offset]), offset + 1


def _read_smallint(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Int((data[offset] ^ 0x80) - 0x80), offset + 1


def _read_smalllong(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return (data[offset] ^ 0x80) - 0x80, offset + 1


def _read_ushort(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UShort(_U16(data, offset)[0]), offset + 2


def _read_short(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Short(_I16(data, offset)[0]), offset + 2


def _read_uint(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UInt(_U32(data, offset)[0]), offset + 4


def _read_int(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Int(_I32(data, offset)[0]), offset + 4


def _read_float(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Float32(_F32(data, offset)[0]), offset + 4


def _read_char(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    point = _U32(data, offset)[0]
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise DecodeError(f"a char of code point {point:#x}")
    return Char(chr(point)), offset + 4


def _read_ulong(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return ULong(_U64(data, offset)[0]), offset + 8


def _read_long(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return _I64(data, offset)[0], offset + 8


def _read_double(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return _F64(data, offset)[0], offset + 8


def _read_timestamp(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Timestamp(_I64(data, offset)[0]), offset + 8


def _slice(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise DecodeError(f"{size} bytes claimed where {len(data) - offset} are left")
    return data[offset : offset + size]


def _read_decimal32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Decimal32(_slice(data, offset, 4)), offset + 4


def _read_decimal64(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Decimal64(_slice(data, offset, 8)), offset + 8


def _read_decimal128(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return Decimal128(_slice(data, offset, 16)), offset + 16


def _read_uuid(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    return UUID(bytes=_slice(data, offset, 16)), offset + 16


def _read_binary8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = data[offset]
    return _slice(data, offset + 1, size), offset + 1 + size


def _read_binary32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = _U32(data, offset)[0]
    return _slice(data, offset + 4, size), offset + 4 + size


def _read_string8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = data[offset]
    return str(_slice(data, offset + 1, size), "utf-8"), offset + 1 + size


def _read_string32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = _U32(data, offset)[0]
    return str(_slice(data, offset + 4, size), "utf-8"), offset + 4 + size


def _read_symbol8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = data[offset]
    return Symbol(_slice(data, offset + 1, size), "ascii"), offset + 1 + size


def _read_symbol32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    size = _U32(data, offset)[0]
    return Symbol(_slice(data, offset + 4, size), "ascii"), offset + 4 + size


def _extent8(data: bytes, offset: int) -> tuple[int, int, int]:
    """Item count, first item and end of a compound whose size and count are one byte each."""
    return data[offset + 1], offset + 2, _end(data, offset + 1, data[offset], 1)


def _extent32(data: bytes, offset: int) -> tuple[int, int, int]:
    size, count = _U32_U32(data, offset)
    return count, offset + 8, _end(data, offset + 4, size, 4)


def _end(data: bytes, offset: int, size: int, size_min: int) -> int:
    if size < size_min or offset + size > len(data):
        raise DecodeError(f"a compound of {size} bytes where {len(data) - offset} are left")
    return offset + size


def _read_list8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent8(data, offset)
    return _list(data, count, offset, end, depth), end


def _read_list32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent32(data, offset)
    return _list(data, count, offset, end, depth), end


def _list(data: bytes, count: int, offset: int, end: int, depth: int) -> list[object]:
    depth = _deeper(depth)
    _check_count(count, offset, end)
    items: list[object] = []
    for _ in range(count):
        item, offset = _read(data, offset, depth)
        items.append(item)
    _check_end(offset, end)
    return items


def _check_count(count: int, offset: int, end: int) -> None:
    # Each item of a list or map has a constructor, so there cannot be more items than bytes.
    if count > end - offset:
        raise DecodeError(f"{count} items claimed in {end - offset} bytes")


def _check_end(offset: int, end: int) -> None:
    if offset != end:
        raise DecodeError(f"items end at byte {offset}, their compound at {end}")


def _read_map8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent8(data, offset)
    return _map(data, count, offset, end, depth), end


def _read_map32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent32(data, offset)
    return _map(data, count, offset, end, depth), end


def _map(data: bytes, count: int, offset: int, end: int, depth: int) -> dict[object, object]:
    depth = _deeper(depth)
    _check_count(count, offset, end)
    if count & 1:
        raise DecodeError(f"a map of {count} keys and values")
    items: dict[object, object] = {}
    for _ in range(count >> 1):
        key, offset = _read(data, offset, depth)
        value, offset = _read(data, offset, depth)
        try:
            items[key] = value
        except TypeError:
            raise DecodeError("a map key that holds a list, a map or an array") from None
    _check_end(offset, end)
    # AMQP 1.6.23 forbids two equal keys. Keys that differ in AMQP but not here (the uint 1 and the
    # long 1) are refused with them, for one of the two values would be lost.
    if 2 * len(items) != count:
        raise DecodeError("a map with the same key twice")
    return items


def _read_array8(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent8(data, offset)
    return _array(data, count, offset, end, depth), end


def _read_array32(data: bytes, offset: int, depth: int) -> tuple[object, int]:
    count, offset, end = _extent32(data, offset)
    return _array(data, count, offset, end, depth), end


def _array(data: bytes, count: int, offset: int, end: int, depth: int) -> AmqpArray:
    depth = _deeper(depth)
    descriptors: list[object] = []
    while data[offset] == 0:
        descriptor, offset = _read(data, offset + 1, depth)
        descriptors.append(descriptor)
    code = data[offset]
    offset += 1
    if WIDTHS[code] != 0:
        _check_count(count, offset, end)
    elif count > ZERO_WIDTH_ITEMS_MAX:
        raise DecodeError(f"an array of {count} items of no width")
    reader = _READERS[code]
    if reader is _read_unknown:
        raise unknown_constructor(code)  # also when there are no items to tell
    items: list[object] = []
    for _ in range(count):
        item, offset = reader(data, offset, depth)
        items.append(item)
    _check_end(offset, end)
    return AmqpArray(code, items, tuple(descriptors))


_BY_CODE: dict[int, Reader] = {
    0x00: _read_described,
    0x40: _read_null,
    0x41: _read_true,
    0x42: _read_false,
    0x43: _read_uint0,
    0x44: _read_ulong0,
    0x45: _read_list0,
    0x50: _read_ubyte,
    0x51: _read_byte,
    0x52: _read_smalluint,
    0x53: _read_smallulong,
    0x54: _read_smallint,
    0x55: _read_smalllong,
    0x56: _read_bool,
    0x60: _read_ushort,
    0x61: _read_short,
    0x70: _read_uint,
    0x71: _read_int,
    0x72: _read_float,
    0x73: _read_char,
    0x74: _read_decimal32,
    0x80: _read_ulong,
    0x81: _read_long,
    0x82: _read_double,
    0x83: _read_timestamp,
    0x84: _read_decimal64,
    0x94: _read_decimal128,
    0x98: _read_uuid,
    0xA0: _read_binary8,
    0xA1: _read_string8,
    0xA3: _read_symbol8,
    0xB0: _read_binary32,
    0xB1: _read_string32,
    0xB3: _read_symbol32,
    0xC0: _read_list8,
    0xC1: _read_map8,
    0xD0: _read_list32,
    0xD1: _read_map32,
    0xE0: _read_array8,
    0xF0: _read_array32,
}

_READERS: list[Reader] = [_BY_CODE.get(code, _read_unknown) for code in range(256)]

"""Stepping over AMQP values without building them."""

import struct

from postbus.amqp.faults import DecodeError

_U32 = struct.Struct(">I").unpack_from

_SIZE_OF_ONE_BYTE = -1
_SIZE_OF_FOUR_BYTES = -2
_NO_WIDTH = -3

# AMQP 1.2.1: the high half of a constructor says how wide what follows it is.
_CONSTRUCTORS: dict[int, tuple[int, ...]] = {
    0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
    1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
    2: (0x60, 0x61),
    4: (0x70, 0x71, 0x72, 0x73, 0x74),
    8: (0x80, 0x81, 0x82, 0x83, 0x84),
    16: (0x94, 0x98),
    _SIZE_OF_ONE_BYTE: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0),
    _SIZE_OF_FOUR_BYTES: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
}

# How many bytes follow each constructor; below zero if that is not fixed.
WIDTHS: list[int] = [_NO_WIDTH] * 256
for _width, _codes in _CONSTRUCTORS.items():
    for _code in _codes:
        WIDTHS[_code] = _width


DESCRIPTORS_MAX = 64
"""Descriptors in front of one value: each can have one of its own, and the bytes of a whole message
could be such."""


def unknown_constructor(code: int) -> DecodeError:
    return DecodeError(f"no AMQP type has the constructor {code:#04x}")


def skip(data: bytes, offset: int = 0) -> int:
    """Return where the value at offset ends, without building it or looking inside."""
    missing = 1
    descriptors = 0
    end = offset
    try:
        while missing:
            code = data[end]
            width = WIDTHS[code]
            if width >= 0:
                end += 1 + width
                missing -= 1
            elif width == _SIZE_OF_ONE_BYTE:
                end += 2 + data[end + 1]
                missing -= 1
            elif width == _SIZE_OF_FOUR_BYTES:
                end += 5 + _U32(data, end + 1)[0]
                missing -= 1
            elif code == 0:
                end += 1
                missing += 1  # a descriptor and a value in place of one value
                descriptors += 1
                if descriptors > DESCRIPTORS_MAX:
                    raise DecodeError(f"more than {DESCRIPTORS_MAX} descriptors of one value")
            else:
                raise unknown_constructor(code)
    except (IndexError, struct.error):
        end = len(data) + 1
    if end > len(data):
        raise DecodeError(f"the value at byte {offset} runs past the end")
    return end


_LISTS_AND_MAPS = (0xC0, 0xC1, 0xD0, 0xD1)
_ARRAYS = (0xE0, 0xF0)


def has_more_values(data: bytes, offset: int, end: int, most: int) -> bool:
    """Are there more than so many values from offset to end, those within others included? Looks no
    further than to tell, so that whoever would have to build them all can refuse to."""
    count = 0
    try:
        while offset < end:
            count += 1
            if count > most:
                return True
            code = data[offset]
            if code in _LISTS_AND_MAPS:
                offset += 3 if code < 0xD0 else 9  # and on with what is in it
                continue
            if code in _ARRAYS:
                count += _elements(data, offset)
            if code == 0:
                offset += 1
            else:
                offset = skip(data, offset)
    except (IndexError, struct.error):
        raise DecodeError("a value runs past the end") from None
    return count > most


def _elements(data: bytes, offset: int) -> int:
    """Elements of an array; for one of lists, maps or arrays its bytes, of which each could be a
    value."""
    if data[offset] == 0xE0:
        size, count, constructor = data[offset + 1], data[offset + 2], data[offset + 3]
    else:
        size, count = _U32(data, offset + 1)[0], _U32(data, offset + 5)[0]
        constructor = data[offset + 9]
    return max(size, count) if constructor >= 0xC0 or constructor == 0 else count

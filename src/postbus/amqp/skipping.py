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


def unknown_constructor(code: int) -> DecodeError:
    return DecodeError(f"no AMQP type has the constructor {code:#04x}")


def skip(data: bytes, offset: int = 0) -> int:
    """Return where the value at offset ends, without building it or looking inside."""
    missing = 1
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
            else:
                raise unknown_constructor(code)
    except (IndexError, struct.error):
        end = len(data) + 1
    if end > len(data):
        raise DecodeError(f"the value at byte {offset} runs past the end")
    return end

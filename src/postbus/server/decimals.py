"""AMQP's decimals in words: IEEE 754-2008 in the binary encoding (AMQP 1.6.13 to 1.6.15).

.NET's `decimal` comes as one of them. They are passed on as they are; only where there are no
types, as in an HTTP header, does somebody have to read one.
"""

from decimal import Decimal
from typing import Final, NamedTuple

from postbus.amqp.types import Decimal32, Decimal64, Decimal128


class _Layout(NamedTuple):
    exponent_bits: int
    bias: int
    digits: int


_LAYOUTS: Final = {
    4: _Layout(8, 101, 7),
    8: _Layout(10, 398, 16),
    16: _Layout(14, 6_176, 34),
}


def decimal_text(value: Decimal32 | Decimal64 | Decimal128) -> str:
    """The number with the digits it was given: `12.50`, `-1E+40`, `NaN`, `Infinity`."""
    layout = _LAYOUTS[len(value)]
    number = int.from_bytes(value, "big")
    width = len(value) * 8
    sign = number >> (width - 1)
    special = number >> (width - 6) & 0b11111
    if special == 0b11111:
        return "NaN"
    if special == 0b11110:
        return "-Infinity" if sign else "Infinity"
    rest = width - 1 - layout.exponent_bits
    if special >> 3 == 0b11:
        # The exponent stands two bits further down, and the coefficient begins with 100.
        rest -= 2
        coefficient = 0b100 << rest | number & (1 << rest) - 1
    else:
        coefficient = number & (1 << rest) - 1
    exponent = number >> rest & (1 << layout.exponent_bits) - 1
    if coefficient >= 10**layout.digits:
        coefficient = 0  # more digits than there can be stand for none
    digits = tuple(map(int, str(coefficient)))
    return str(Decimal((sign, digits, exponent - layout.bias)))

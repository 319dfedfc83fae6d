"""AMQP decimals as numbers and back: IEEE 754 decimal formats in their binary integer encoding
(AMQP 1.6.13 to 1.6.15).

The codec passes decimals on as the bytes they are; only who calculates with one comes by here.
"""

from decimal import Decimal
from typing import Final

# By the number of bytes: bits of the exponent, what is added to it, and digits.
_FORMATS: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}
_INFINITY: Final = 0b11110
_NAN: Final = 0b11111


def decimal_of(data: bytes) -> Decimal:
    """The number that 4, 8 or 16 bytes stand for."""
    bits = 8 * len(data)
    exponent_bits, bias, digits = _FORMATS[len(data)]
    number = int.from_bytes(data, "big")
    sign = "-" if number >> (bits - 1) else ""
    opening = number >> (bits - 6) & 0b11111
    if opening == _NAN:
        return Decimal("NaN")
    if opening == _INFINITY:
        return Decimal(f"{sign}Infinity")
    width = bits - 1 - exponent_bits
    if opening >> 3 == 0b11:
        # The largest coefficients begin with 100, which is left out, after two bits that say so.
        width -= 2
        coefficient = 0b100 << width | number & (1 << width) - 1
    else:
        coefficient = number & (1 << width) - 1
    exponent = (number >> width & (1 << exponent_bits) - 1) - bias
    if coefficient >= 10**digits:
        coefficient = 0  # not canonical; the standard says that it means zero
    return Decimal(f"{sign}{coefficient}E{exponent}")


def decimal_bytes(value: Decimal, size: int) -> bytes:
    """The number in `size` bytes. Raises ValueError where it does not fit without rounding."""
    bits = 8 * size
    exponent_bits, bias, digits = _FORMATS[size]
    sign = 1 if value.is_signed() else 0
    if not value.is_finite():
        opening = _INFINITY if value.is_infinite() else _NAN
        return (sign << (bits - 1) | opening << (bits - 6)).to_bytes(size, "big")
    coefficient, exponent = _fitted(value, digits, bias, 3 * (1 << exponent_bits - 2) - 1)
    width = bits - 1 - exponent_bits
    if coefficient >> width:
        width -= 2
        number = 0b11 << (bits - 3) | exponent << width | coefficient & (1 << width) - 1
    else:
        number = exponent << width | coefficient
    return (sign << (bits - 1) | number).to_bytes(size, "big")


def _fitted(value: Decimal, digits: int, bias: int, exponent_max: int) -> tuple[int, int]:
    """Coefficient and biased exponent within their ranges; zeros move between the two."""
    _, figures, power = value.as_tuple()
    assert isinstance(power, int)
    coefficient = int("".join(map(str, figures)))
    exponent = power + bias
    while coefficient and coefficient % 10 == 0 and (coefficient >= 10**digits or exponent < 0):
        coefficient //= 10
        exponent += 1
    while coefficient and exponent > exponent_max and coefficient < 10 ** (digits - 1):
        coefficient *= 10
        exponent -= 1
    if not coefficient:
        exponent = min(max(exponent, 0), exponent_max)
    if coefficient >= 10**digits or not 0 <= exponent <= exponent_max:
        raise ValueError(f"{value} has too many digits for a decimal of this size")
    return coefficient, exponent

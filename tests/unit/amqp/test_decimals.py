"""AMQP decimals: known encodings, the corners of each size, and all numbers there and back."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.codec.decimals import decimal_bytes, decimal_of

DIGITS = {4: 7, 8: 16, 16: 34}
LOWEST = {4: -101, 8: -398, 16: -6176}
HIGHEST = {4: 90, 8: 369, 16: 6111}


@pytest.mark.parametrize(
    ("data", "number"),
    [
        # 1 is coefficient 1 with the bias for an exponent
        ("32800001", "1"),
        ("b2800001", "-1"),
        ("31c0000000000001", "1"),
        ("30400000000000000000000000000001", "1"),
        ("303c00000000000000000000000003e7", "9.99"),
        ("00000000", "0E-101"),
        ("77f8967f", "9.999999E+96"),  # the largest decimal32: its coefficient has 24 bits
        ("78000000", "Infinity"),
        ("f8000000", "-Infinity"),
        ("7c000000", "NaN"),
    ],
)
def test_known_numbers(data: str, number: str) -> None:
    found = decimal_of(bytes.fromhex(data))
    assert str(found) == str(Decimal(number))
    assert decimal_bytes(found, len(data) // 2).hex() == data


def test_a_coefficient_that_is_too_large_means_zero() -> None:
    assert decimal_of(bytes.fromhex("77ffffff")) == 0
    assert decimal_of(b"\x60" + bytes(15)) == 0


@pytest.mark.parametrize("size", DIGITS)
@given(data=st.data())
def test_every_number_comes_back(size: int, data: st.DataObject) -> None:
    coefficient = data.draw(st.integers(0, 10 ** DIGITS[size] - 1))
    exponent = data.draw(st.integers(LOWEST[size], HIGHEST[size]))
    sign = data.draw(st.sampled_from(["", "-"]))
    number = Decimal(f"{sign}{coefficient}E{exponent}")
    assert str(decimal_of(decimal_bytes(number, size))) == str(number)


@pytest.mark.parametrize("size", DIGITS)
@given(data=st.data())
def test_all_bytes_stand_for_some_number(size: int, data: st.DataObject) -> None:
    number = decimal_of(data.draw(st.binary(min_size=size, max_size=size)))
    again = decimal_of(decimal_bytes(number, size))
    assert str(again.copy_abs()) == str(number.copy_abs())


@pytest.mark.parametrize("number", ["123E90", "1230000000E-104", "0E500", "0E-500", "1E96"])
def test_zeros_move_between_coefficient_and_exponent(number: str) -> None:
    assert decimal_of(decimal_bytes(Decimal(number), 4)) == Decimal(number)


@pytest.mark.parametrize("number", ["12345678", "1E97", "1E-102", "12345670E90"])
def test_what_would_be_rounded_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="too many digits"):
        decimal_bytes(Decimal(number), 4)

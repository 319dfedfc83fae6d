"""Decimals in IEEE 754's binary encoding."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.types import Decimal32, Decimal64, Decimal128
from postbus.server.decimals import decimal_text

KINDS = {4: Decimal32, 8: Decimal64, 16: Decimal128}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # 12.50m as .NET writes it: coefficient 1250, exponent -2
        ("303c00000000000000000000000004e2", "12.50"),
        ("b03c00000000000000000000000004e2", "-12.50"),
        ("30400000000000000000000000000000", "0"),
        ("30400000000000000000000000000001", "1"),
        ("32800001", "1"),
        ("31c0000000000001", "1"),
        ("b1c0000000000001", "-1"),
        # all digits there are: the coefficient needs the bits of the second form
        ("6cb8967f", "9999999"),
        ("6c7386f26fc0ffff", "9999999999999999"),
        ("77f8967f", "9.999999E+96"),
        ("00000001", "1E-101"),
        ("78000000", "Infinity"),
        ("f8000000", "-Infinity"),
        ("7c000000", "NaN"),
        ("78000000000000000000000000000000", "Infinity"),
        # coefficients of too many digits stand for nought
        ("6cb89680", "0"),
        ("3041ffffffffffffffffffffffffffff", "0"),
    ],
)
def test_a_decimal_is_told_in_digits(text: str, expected: str) -> None:
    data = bytes.fromhex(text)
    assert decimal_text(KINDS[len(data)](data)) == expected


@given(st.sampled_from([4, 8, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)))
def test_any_decimal_is_a_number_or_none(data: bytes) -> None:
    Decimal(decimal_text(KINDS[len(data)](data)))

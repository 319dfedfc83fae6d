"""Dates as HTTP writes them."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.model.httpdate import (
    EARLIEST,
    BadDate,
    format_httpdate,
    is_httpdate,
    parse_httpdate,
)
from postbus.model.instant import NEVER


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Tue, 30 Jun 2015 20:53:02 GMT", 1_435_697_582_000),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777_000),
        ("Mon, 01 Jan 0001 00:00:00 GMT", EARLIEST),
        ("Fri, 31 Dec 9999 23:59:59 GMT", NEVER - 999),
    ],
)
def test_a_date_is_read_and_written(text: str, instant: int) -> None:
    assert parse_httpdate(text) == instant
    assert format_httpdate(instant) == text


@given(st.integers(EARLIEST, NEVER))
def test_every_instant_is_written_to_the_second(instant: int) -> None:
    assert is_httpdate(instant)
    assert parse_httpdate(format_httpdate(instant)) == instant // 1_000 * 1_000
    if instant >= 0:
        assert format_httpdate(instant) == formatdate(instant // 1_000, usegmt=True)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "now",
            "2015-06-30T20:53:02Z",
            "Tue, 30 Jun 2015 20:53:02",
            "30 Jun 2015 20:53:02 GMT",
        ),
        *("Wed, 30 Jun 2015 20:53:02 GMT", "Wed, 31 Jun 2015 20:53:02 GMT"),
        *("Tue, 30 Jun 2015 24:00:00 GMT", "Tue, 30 Jun 2015 20:53:02 UTC"),
        *("tue, 30 jun 2015 20:53:02 GMT", "Tue, 3\u0660 Jun 2015 20:53:02 GMT"),
        "Sat, 01 Jan 0000 00:00:00 GMT",
    ],
)
def test_what_is_no_such_date_is_refused(text: str) -> None:
    with pytest.raises(BadDate):
        parse_httpdate(text)


def test_an_instant_out_of_range_cannot_be_written() -> None:
    assert not is_httpdate(EARLIEST - 1)
    assert not is_httpdate(NEVER + 1)

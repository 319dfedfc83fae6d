"""Durations both ways, .NET's time spans and ticks, and dates as HTTP writes them."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.model.times import (
    EARLIEST,
    INFINITE,
    MAX_TICKS,
    NEVER,
    TICKS_PER_DAY,
    TICKS_PER_MINUTE,
    TICKS_PER_SECOND,
    BadDate,
    BadDuration,
    format_httpdate,
    format_iso,
    format_timespan,
    is_httpdate,
    is_infinite,
    parse_duration,
    parse_httpdate,
    parse_iso,
    parse_timespan,
    ticks_of_instant,
)

TICKS = st.integers(min_value=-MAX_TICKS, max_value=MAX_TICKS)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("PT1M", TICKS_PER_MINUTE),
        ("PT60S", TICKS_PER_MINUTE),
        ("P14D", 14 * TICKS_PER_DAY),
        ("P1DT2H3M4.5S", TICKS_PER_DAY + (2 * 3600 + 3 * 60 + 4) * TICKS_PER_SECOND + 5_000_000),
        ("PT0.0000001S", 1),
        ("PT0.00000019S", 1),
        ("P1Y", 365 * TICKS_PER_DAY),
        ("P1M", 30 * TICKS_PER_DAY),
        ("-PT1S", -TICKS_PER_SECOND),
        ("PT0S", 0),
        (INFINITE, MAX_TICKS),
    ],
)
def test_an_iso_duration_is_read_to_the_tick(text: str, ticks: int) -> None:
    assert parse_iso(text) == ticks


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "-P", "PT", "P1", "PT5", "1M", "PT1M ", " PT1M", "PT1.S", "PT.5S", "P1DT",
        "PT1M1H", "P1W", "pt1m", "PT-1S", "PT\uff11S", "PT1M\n", "PT1,5S", "P" + "9" * 400 + "D",
    ],
)  # fmt: skip
def test_what_is_no_iso_duration_is_refused(text: str) -> None:
    with pytest.raises(BadDuration):
        parse_iso(text)


@pytest.mark.parametrize("text", ["P10675199DT2H48M5.4775808S", "P10675200D", "PT999999999999S"])
def test_a_duration_longer_than_the_longest_is_refused(text: str) -> None:
    with pytest.raises(BadDuration, match="longest"):
        parse_iso(text)


@given(TICKS)
def test_every_duration_comes_back_as_it_was_written(ticks: int) -> None:
    assert parse_iso(format_iso(ticks)) == ticks


@given(TICKS)
def test_every_time_span_comes_back_as_it_was_written(ticks: int) -> None:
    assert parse_timespan(format_timespan(ticks)) == ticks


@given(st.text())
def test_any_text_is_a_duration_or_refused_as_one(text: str) -> None:
    for parse in (parse_iso, parse_timespan, parse_duration):
        try:
            assert abs(parse(text)) <= MAX_TICKS
        except BadDuration:
            continue


@pytest.mark.parametrize(
    ("ticks", "text"),
    [
        (0, "PT0S"),
        (TICKS_PER_MINUTE, "PT1M"),
        (14 * TICKS_PER_DAY, "P14D"),
        (TICKS_PER_DAY + TICKS_PER_SECOND, "P1DT1S"),
        (-TICKS_PER_MINUTE, "-PT1M"),
        (TICKS_PER_SECOND // 2, "PT0.5S"),
        (MAX_TICKS, INFINITE),
    ],
)
def test_a_duration_is_written_as_dotnet_writes_it(ticks: int, text: str) -> None:
    assert format_iso(ticks) == text


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("00:01:00", TICKS_PER_MINUTE),
        ("00:01", TICKS_PER_MINUTE),
        ("7.00:00:00", 7 * TICKS_PER_DAY),
        ("1.02:03:04.5", TICKS_PER_DAY + 7384 * TICKS_PER_SECOND + 5_000_000),
        ("-00:00:01", -TICKS_PER_SECOND),
        ("10675199.02:48:05.4775807", MAX_TICKS),
    ],
)
def test_a_time_span_is_read_to_the_tick(text: str, ticks: int) -> None:
    assert parse_timespan(text) == ticks


@pytest.mark.parametrize(
    "text", ["24:00:00", "00:60:00", "00:00:60", "1", "1.5", ":00", "00:01:00 "]
)
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(BadDuration):
        parse_timespan(text)


def test_a_config_file_may_use_either_form() -> None:
    assert parse_duration("PT1M") == parse_duration("00:01:00") == TICKS_PER_MINUTE
    assert parse_duration("-PT1M") == parse_duration("-00:01:00") == -TICKS_PER_MINUTE


def test_the_azure_form_of_a_time_span_in_errors() -> None:
    assert format_timespan(25 * TICKS_PER_DAY) == "25.00:00:00"
    assert format_timespan(TICKS_PER_SECOND + 1) == "00:00:01.0000001"


def test_for_ever_is_recognised_although_python_rounds_it() -> None:
    assert is_infinite(MAX_TICKS)
    assert is_infinite(parse_iso("P10675199DT2H48M5.477539S"))
    assert not is_infinite(10_675_198 * TICKS_PER_DAY)


def test_instants_in_dotnet_ticks() -> None:
    assert ticks_of_instant(0) == 621_355_968_000_000_000
    assert ticks_of_instant(1) - ticks_of_instant(0) == 10_000
    # .NET's DateTime.MaxValue is 3155378975999999999 ticks; ours ends with its millisecond
    assert ticks_of_instant(NEVER + 1) == ticks_of_instant(NEVER) == 3_155_378_975_999_990_000


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

"""Values with a type: their texts, and what those stand for."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.errors import InvalidArgument
from postbus.model.values import (
    DATE_TIME_MAX_TICKS,
    DateTime,
    TimeSpan,
    TypedValue,
    ValueType,
    parse_date_time,
    typed_value,
)

SECOND = 10_000_000


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("string", " as it is ", " as it is "),
        ("int", "-5", -5),
        ("int", " 2147483647 ", 2**31 - 1),
        ("long", "9223372036854775807", 2**63 - 1),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", "1", True),
        ("double", "2.5", 2.5),
        ("double", "1e5", 100_000.0),
        ("double", "-INF", -math.inf),
        ("dateTime", "0001-01-01T00:00:01Z", DateTime(SECOND)),
        ("dateTime", "0001-01-01T00:00:01", DateTime(SECOND)),
        ("dateTime", "0001-01-01T02:00:01.5+02:00", DateTime(SECOND + SECOND // 2)),
        ("dateTime", "9999-12-31T23:59:59.9999999Z", DateTime(DATE_TIME_MAX_TICKS)),
        ("duration", "PT1M", TimeSpan(60 * SECOND)),
        ("duration", "-PT1S", TimeSpan(-SECOND)),
    ],
)
def test_a_text_stands_for_a_value_of_its_type(type_name: str, text: str, value: object) -> None:
    typed = typed_value(type_name, text)
    assert typed.value == value
    assert type(typed.value) is type(value)
    assert typed.text == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ValueType.INT, "2147483648"),
        (ValueType.INT, "1.5"),
        (ValueType.INT, ""),
        (ValueType.INT, "٣"),
        (ValueType.LONG, "9223372036854775808"),
        (ValueType.LONG, "1" * 500),
        (ValueType.BOOLEAN, "yes"),
        (ValueType.DOUBLE, "1_0"),
        (ValueType.DOUBLE, "inf"),
        (ValueType.DOUBLE, "1" * 500),
        (ValueType.DATE_TIME, "2020-01-31"),
        (ValueType.DATE_TIME, "2020-02-30T00:00:00Z"),
        (ValueType.DATE_TIME, "2020-01-01T24:00:00Z"),
        (ValueType.DATE_TIME, "0001-01-01T00:00:00+01:00"),
        (ValueType.DATE_TIME, "2020-01-01T00:00:00+15:00"),
        (ValueType.DURATION, "00:01:00"),
        (ValueType.DURATION, "P"),
    ],
)
def test_a_text_of_another_type_is_refused(kind: ValueType, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"is not of the type '{kind.value}'"):
        TypedValue(kind, text)


def test_a_type_that_rules_do_not_know_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="'date' is none that a value of a rule can have"):
        typed_value("date", "2020-01-31")


@given(st.datetimes())
def test_times_are_counted_in_ticks(moment: datetime) -> None:
    ticks = (moment - datetime(1, 1, 1)) // timedelta(microseconds=1) * 10  # noqa: DTZ001
    assert parse_date_time(moment.isoformat() + "Z") == ticks
    text = str(DateTime(ticks))
    assert parse_date_time(text) == ticks
    assert datetime.fromisoformat(text) == moment.replace(tzinfo=UTC)


@pytest.mark.parametrize("stored", [{}, {"type": "int"}, {"type": "int", "text": 5}, "x", None])
def test_what_no_version_wrote_is_not_read(stored: object) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        TypedValue.from_json(stored)

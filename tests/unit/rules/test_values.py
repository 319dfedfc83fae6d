"""What values equal, what comes before what, and what calculations give."""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from postbus.model.values import DATE_TIME_MAX_TICKS, DateTime, TimeSpan
from postbus.rules.values import (
    INT64_MAX,
    INT64_MIN,
    OPERATORS,
    SIGNS,
    TEXT_LENGTH_MAX,
    EvaluationFailed,
    Opaque,
    Value,
    comparable,
    key_of,
    orderable,
)

ONE_OF_EACH: list[Value] = [1, 1.5, "a", DateTime(5), TimeSpan(5), True, UUID(int=5), b"a"]


def test_only_numbers_compare_across_types() -> None:
    for place, left in enumerate(ONE_OF_EACH):
        for other, right in enumerate(ONE_OF_EACH):
            assert comparable(left, right) is (place == other or {place, other} == {0, 1})


@pytest.mark.parametrize("value", [None, Opaque([1])])
def test_null_and_what_no_filter_understands_compare_with_nothing(value: Value) -> None:
    assert not any(comparable(value, other) for other in [*ONE_OF_EACH, value])
    assert key_of(value) is None


def test_ids_flags_and_bytes_have_no_order() -> None:
    ordered = [value for value in ONE_OF_EACH if orderable(value, value)]
    assert ordered == [1, 1.5, "a", DateTime(5), TimeSpan(5)]


def test_an_integer_is_not_rounded_to_be_compared_with_a_double() -> None:
    assert comparable(2**53 + 1, 2.0**53)
    assert key_of(2**53 + 1) != key_of(2.0**53)
    assert key_of(2) == key_of(2.0)


def test_true_is_not_one() -> None:
    assert key_of(True) != key_of(1)
    assert not comparable(True, 1)


def test_not_a_number_equals_nothing() -> None:
    assert key_of(math.nan) is None


@pytest.mark.parametrize(
    ("left", "operator", "right", "result"),
    [
        (2, "+", 3, 5),
        (2, "+", 0.5, 2.5),
        ("ab", "+", "cd", "abcd"),
        ("a", "+", 1, None),
        (1, "+", "a", None),
        (True, "+", 1, None),
        (None, "+", 1, None),
        (DateTime(7), "+", TimeSpan(3), DateTime(10)),
        (TimeSpan(3), "+", DateTime(7), DateTime(10)),
        (TimeSpan(3), "+", TimeSpan(4), TimeSpan(7)),
        (DateTime(3), "+", DateTime(4), None),
        (DateTime(10), "-", DateTime(7), TimeSpan(3)),
        (DateTime(10), "-", TimeSpan(7), DateTime(3)),
        (TimeSpan(3), "-", TimeSpan(4), TimeSpan(-1)),
        (TimeSpan(3), "-", DateTime(4), None),
        ("ab", "-", "b", None),
        (2, "-", 3, -1),
        (1.5, "-", 1, 0.5),
        (6, "*", 7, 42),
        (6, "*", 0.5, 3.0),
        ("a", "*", 2, None),
        (7, "/", 2, 3),
        (-7, "/", 2, -3),  # towards zero, as C# divides
        (7, "/", -2, -3),
        (-7, "/", -2, 3),
        (7, "/", 2.0, 3.5),
        (1.0, "/", 0, math.inf),
        (-1, "/", 0.0, -math.inf),
        (1.0, "/", -0.0, -math.inf),
        (7, "%", 3, 1),
        (-7, "%", 3, -1),  # the sign of the left side
        (7, "%", -3, 1),
        (7.5, "%", 2, 1.5),
        ("a", "%", 2, None),
        (None, "/", 0, None),  # nothing is divided
    ],
)
def test_calculations_give_what_c_sharp_gives(
    left: Value, operator: str, right: Value, result: Value
) -> None:
    given = OPERATORS[operator](left, right)
    assert given == result
    assert type(given) is type(result)


@pytest.mark.parametrize(
    ("left", "operator", "right"), [(0.0, "/", 0), (1.0, "%", 0), (math.inf, "%", 2.0)]
)
def test_doubles_know_results_that_are_no_numbers(left: float, operator: str, right: float) -> None:
    result = OPERATORS[operator](left, right)
    assert isinstance(result, float)
    assert math.isnan(result)


@pytest.mark.parametrize(
    ("left", "operator", "right", "text"),
    [
        (INT64_MAX, "+", 1, "overflow"),
        (INT64_MIN, "-", 1, "overflow"),
        (2**62, "*", 2, "overflow"),
        (INT64_MIN, "/", -1, "overflow"),
        (1, "/", 0, "divide by zero"),
        (1, "%", 0, "divide by zero"),
        (DateTime(0), "-", TimeSpan(1), "un-representable"),
        (DateTime(DATE_TIME_MAX_TICKS), "+", TimeSpan(1), "un-representable"),
        (TimeSpan(INT64_MAX), "+", TimeSpan(1), "overflow"),
        ("a" * TEXT_LENGTH_MAX, "+", "a", "65537 characters"),
    ],
)
def test_a_calculation_that_breaks_off_is_a_failure(
    left: Value, operator: str, right: Value, text: str
) -> None:
    with pytest.raises(EvaluationFailed, match=text):
        OPERATORS[operator](left, right)


@pytest.mark.parametrize(
    ("sign", "value", "result"),
    [
        ("-", 5, -5),
        ("-", 2.5, -2.5),
        ("-", TimeSpan(5), TimeSpan(-5)),
        ("-", "a", None),
        ("-", None, None),
        ("+", 5, 5),
        ("+", TimeSpan(5), TimeSpan(5)),
        ("+", "a", None),
        ("+", True, None),
    ],
)
def test_signs(sign: str, value: Value, result: Value) -> None:
    assert SIGNS[sign](value) == result


def test_the_smallest_integer_has_no_opposite() -> None:
    with pytest.raises(EvaluationFailed, match="overflow"):
        SIGNS["-"](INT64_MIN)

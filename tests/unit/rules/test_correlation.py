"""Correlation filters (semantics A §3), and the limits they count towards."""

from __future__ import annotations

import pytest

from postbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from postbus.model.values import DateTime, TimeSpan, TypedValue, ValueType
from postbus.rules.values import Value
from tests.unit.rules.samples import Sample, rule


def selects(chosen: CorrelationFilter, facts: Sample) -> bool:
    return rule(chosen).selector.is_true(facts)


def text(value: str) -> TypedValue:
    return TypedValue(ValueType.STRING, value)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("correlation_id", "CorrelationId"),
        ("message_id", "MessageId"),
        ("to", "To"),
        ("reply_to", "ReplyTo"),
        ("label", "Label"),
        ("session_id", "SessionId"),
        ("reply_to_session_id", "ReplyToSessionId"),
        ("content_type", "ContentType"),
    ],
)
def test_each_system_property_is_compared(field: str, name: str) -> None:
    chosen = CorrelationFilter(**{field: "high"})  # type: ignore[arg-type]
    assert selects(chosen, Sample(**{name: "high"}))  # type: ignore[arg-type]
    assert not selects(chosen, Sample(**{name: "High"}))  # type: ignore[arg-type]
    assert not selects(chosen, Sample({name: "high"}))


def test_all_conditions_must_hold() -> None:
    chosen = CorrelationFilter(
        label="Important", reply_to="john@fragment", properties={"color": text("Red")}
    )
    assert selects(chosen, Sample({"Color": "Red"}, Label="Important", ReplyTo="john@fragment"))
    assert not selects(chosen, Sample({"color": "Red"}, Label="Important"))
    assert not selects(chosen, Sample({"color": "red"}, Label="Important", ReplyTo="john@fragment"))
    assert not selects(chosen, Sample({}, Label="Important", ReplyTo="john@fragment"))


@pytest.mark.parametrize(
    ("typed", "equal", "unequal"),
    [
        (text("2"), ["2"], [2, 2.0, None, "2 "]),
        (TypedValue(ValueType.INT, "2"), [2, 2.0], ["2", True, 3]),
        (TypedValue(ValueType.LONG, "1"), [1], [True, "1"]),
        (TypedValue(ValueType.BOOLEAN, "true"), [True], [1, "true", False]),
        (TypedValue(ValueType.DOUBLE, "2.5"), [2.5], ["2.5", 2]),
        (TypedValue(ValueType.DOUBLE, "NaN"), [], [float("nan")]),
        (TypedValue(ValueType.DURATION, "PT1S"), [TimeSpan(10_000_000)], ["PT1S", 10_000_000]),
        (
            TypedValue(ValueType.DATE_TIME, "0001-01-01T00:00:01Z"),
            [DateTime(10_000_000)],
            [TimeSpan(10_000_000)],
        ),
    ],
)
def test_values_equal_only_their_own_kind(
    typed: TypedValue, equal: list[Value], unequal: list[Value]
) -> None:
    chosen = CorrelationFilter(properties={"key": typed})
    assert all(selects(chosen, Sample({"KEY": value})) for value in equal)
    assert not any(selects(chosen, Sample({"KEY": value})) for value in unequal)


def test_an_empty_text_is_a_condition() -> None:
    assert selects(CorrelationFilter(label=""), Sample(Label=""))
    assert not selects(CorrelationFilter(label=""), Sample())


def test_true_and_false_filters_select_all_and_none_and_count_as_sql() -> None:
    everything, nothing = rule(TrueFilter()), rule(FalseFilter())
    assert everything.selector.is_true(Sample())
    assert not nothing.selector.is_true(Sample())
    assert not everything.is_correlation
    assert not nothing.is_correlation
    assert not rule(SqlFilter("a = 1")).is_correlation
    assert rule(CorrelationFilter(label="a")).is_correlation

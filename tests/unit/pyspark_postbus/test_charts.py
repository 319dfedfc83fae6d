"""Charts and their scales: round numbers, one mark for each value, nothing that is not escaped."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from pyspark_postbus.pipelines.charts import column_chart, line_chart, rank_chart
from pyspark_postbus.pipelines.scales import (
    bytes_text,
    linear_marks,
    log_marks,
    millis_text,
    number_text,
    time_marks,
    time_text,
    width_of_column,
)

START = datetime(2026, 6, 30, 20, 0, tzinfo=UTC)
TIMES = [START + timedelta(minutes=number) for number in range(5)]


def drawing(text: str) -> ElementTree.Element:
    """The SVG in it, which must be well-formed."""
    found = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


@pytest.mark.parametrize(
    ("top", "marks"),
    [(10, [0, 2, 4, 6, 8, 10]), (7, [0, 2, 4, 6, 8]), (0.3, [0, 0.1, 0.2, 0.3]), (0, [0, 1])],
)
def test_marks_of_an_axis_are_round_and_reach_the_top(top: float, marks: list[float]) -> None:
    assert linear_marks(top) == pytest.approx(marks)


def test_marks_of_a_logarithmic_axis_are_powers_of_ten() -> None:
    assert log_marks(3, 450) == [1, 10, 100, 1000]
    assert log_marks(5, 5) == [1, 10]


def test_points_in_time_are_round_and_written_as_short_as_they_can_be() -> None:
    marks = time_marks(START + timedelta(seconds=7), START + timedelta(hours=4))
    assert marks[0] == START + timedelta(minutes=30)
    assert [time_text(at, marks) for at in marks[:2]] == ["20:30", "21:00"]
    days = time_marks(START, START + timedelta(days=6))
    assert time_text(days[0], days) == "1 Jul"


def test_so_many_columns_of_time_are_not_exceeded() -> None:
    assert width_of_column(60) == 1
    assert width_of_column(3_600) == 30
    assert width_of_column(30 * 86_400) == 21_600
    for seconds in (1, 100, 12_345, 10_000_000, 400_000_000):
        assert seconds / width_of_column(seconds) <= 120


def test_numbers_are_written_as_people_say_them() -> None:
    assert [number_text(one) for one in (0, 7, 1.5, 1_234_567)] == ["0", "7", "1.5", "1.23M"]
    assert [millis_text(one) for one in (0, 0.5, 40, 90_000, 7_300_000)] == [
        "0", "0.5 ms", "40 ms", "90 s", "2.03 h",
    ]  # fmt: skip
    assert [bytes_text(one) for one in (12, 2_048, 5 << 30)] == ["12 B", "2 KiB", "5 GiB"]


def test_a_line_has_a_point_for_each_value_and_a_gap_where_there_is_none() -> None:
    chart = line_chart("rate", TIMES, 60, {"sent": [1, 2, None, 4, 5], "done": [0, 1, 1, 1, 1]})
    svg = drawing(chart)
    assert len(svg.findall("circle")) == 9
    assert len(svg.findall("polyline")) == 3
    assert "sent, 2026-06-30 20:01:00: 2" in chart
    assert '<ul class="legend">' in chart


def test_columns_stand_on_top_of_each_other() -> None:
    chart = column_chart("letters", TIMES, 60, {"a": [3, 0, 0, 0, 0], "b": [1, 2, 0, 0, 0]})
    first, second, third = drawing(chart).findall("rect")
    assert float(second.attrib["y"]) + float(second.attrib["height"]) == pytest.approx(
        float(first.attrib["y"]), abs=0.2
    )
    assert first.attrib["x"] == second.attrib["x"] != third.attrib["x"]


def test_names_from_messages_cannot_become_markup() -> None:
    nasty = "<script>alert('x')</script> & more"
    for chart in (
        rank_chart("sessions", [(nasty, 3)]),
        line_chart("rate", TIMES, 60, {nasty: [1, 2, 3, 4, 5], "other": [1, 1, 1, 1, 1]}),
    ):
        drawing(chart)
        assert "<script" not in chart


def test_a_chart_of_nothing_says_so() -> None:
    for chart in (
        line_chart("rate", [], 60, {}),
        line_chart("rate", TIMES, 60, {"sent": [None] * 5}),
        column_chart("letters", TIMES, 60, {"a": [0] * 5}),
        rank_chart("sessions", []),
    ):
        assert "nothing in this time" in chart

"""R-PIPE-01: filters of a query narrow what is read, and never cut off a row that it wants."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from pyspark_postbus.client import Client
from pyspark_postbus.filters import Narrowing
from pyspark_postbus.ranges import Range


class Journal:
    """One offset each second since 1970."""

    def offset_at(self, entity: str, fragment: int, at: int) -> int:
        assert at >= 0, "a broker refuses it"
        return -(-at // 1_000)


WHOLE = Range(0, 100, 200)


def narrowed(*filters: Filter) -> tuple[int, int]:
    narrowing = Narrowing()
    narrowing.take(filters)
    found = narrowing.narrowed(WHOLE, "orders", cast("Client", Journal()))
    return found.start, found.end


def time(seconds: float) -> Any:
    return datetime.fromtimestamp(seconds, UTC)


OFFSET, TIME, PARTITION = ("offset",), ("timestamp",), ("partition",)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], (100, 200)),
        ([EqualTo(OFFSET, 150)], (150, 151)),
        ([GreaterThanOrEqual(OFFSET, 150), LessThan(OFFSET, 160)], (150, 161)),
        ([GreaterThan(OFFSET, 150), LessThanOrEqual(OFFSET, 160)], (150, 161)),
        ([GreaterThan(OFFSET, 900)], (200, 200)),
        ([EqualTo(PARTITION, 0)], (100, 200)),
        ([In(PARTITION, (1, 2))], (100, 100)),
        ([GreaterThanOrEqual(TIME, time(120)), LessThan(TIME, time(130))], (120, 131)),
        ([LessThan(TIME, time(-3_600))], (100, 100)),
        ([Not(EqualTo(OFFSET, 150)), StringContains(("body",), "x")], (100, 200)),
    ],
)
def test_a_range_is_narrowed(filters: list[Filter], wanted: tuple[int, int]) -> None:
    assert narrowed(*filters) == wanted


def test_operations_are_narrowed_to_what_all_filters_allow() -> None:
    narrowing = Narrowing()
    column = ("operation",)
    narrowing.take([In(column, ("enqueued", "completed", "x")), EqualTo(column, "completed")])
    assert narrowing.operations == {"completed"}

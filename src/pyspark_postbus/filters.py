"""The part of the feed in which a query's filters allow rows.

Only to read less: a filter that is not understood here is left to Spark, which applies every
filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_postbus.client import Client
from pyspark_postbus.ranges import Range

_NO_END: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Narrowing:
    """The part of each fragment that can have rows."""

    def __init__(self) -> None:
        self.operations: frozenset[str] | None = None
        self._fragments: frozenset[int] | None = None
        self._offsets = (0, _NO_END)
        self._times = (0, _NO_END)

    def take(self, filters: Iterable[Filter]) -> None:
        """Note these conditions; all of them must hold."""
        for each in filters:
            column = getattr(each, "attribute", ())
            if column == ("operation",):
                self.operations = _both(self.operations, _names(each))
            elif column == ("partition",):
                self._fragments = _both(self._fragments, _numbers(each))
            elif column == ("offset",):
                self._offsets = _within(self._offsets, each, int)
            elif column == ("timestamp",):
                self._times = _within(self._times, each, _instant)

    def narrowed(self, wanted: Range, entity: str, client: Client) -> Range:
        """The rest of a range; it may be empty."""
        fragment, start, end = wanted
        if self._fragments is not None and fragment not in self._fragments:
            return Range(fragment, start, start)
        start, end = max(start, self._offsets[0]), min(end, self._offsets[1])
        after, before = self._times
        if start < end and after > 0:
            start = max(start, client.offset_at(entity, fragment, after))
        if start < end and before < _NO_END:
            # Nothing is older than 1970, and the broker is not asked for it.
            end = min(end, client.offset_at(entity, fragment, before)) if before > 0 else start
        return Range(fragment, min(start, wanted.end), max(min(start, wanted.end), end))


def _both(former: frozenset[Any] | None, found: frozenset[Any] | None) -> frozenset[Any] | None:
    if found is None or former is None:
        return found if former is None else former
    return former & found


def _values(each: Filter) -> tuple[Any, ...] | None:
    match each:
        case EqualTo():
            return (each.value,)
        case In():
            return tuple(each.value)
    return None


def _names(each: Filter) -> frozenset[str] | None:
    values = _values(each)
    return None if values is None else frozenset(value for value in values if value is not None)


def _numbers(each: Filter) -> frozenset[int] | None:
    values = _values(each)
    return None if values is None else frozenset(value for value in values if value is not None)


def _within(bounds: tuple[int, int], each: Filter, number: Callable[[Any], int]) -> tuple[int, int]:
    """Bounds, the end not included, with another condition on the column."""
    low, high = bounds
    match each:
        case EqualTo():
            value = number(each.value)
            return max(low, value), min(high, value + 1)
        case GreaterThan() | GreaterThanOrEqual():
            return max(low, number(each.value)), high
        case LessThan() | LessThanOrEqual():
            return low, min(high, number(each.value) + 1)
    return bounds


def _instant(value: Any) -> int:
    """A point in time in whole ms, rounded down. A time without a zone is UTC, as from Spark."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return int((value - _EPOCH).total_seconds() * 1_000)

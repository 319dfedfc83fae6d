"""R-PIPE-02: what is read is split and packed so that nothing is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_postbus.client import Fragment
from pyspark_postbus.ranges import (
    RANGE_MIN,
    RANGE_USUAL,
    DataLoss,
    Range,
    checked,
    limited,
    partitions,
)

sizes = st.lists(st.integers(0, 400_000), min_size=1, max_size=20)


def ranges_of(lengths: list[int]) -> list[Range]:
    return [Range(index, 1_000, 1_000 + size) for index, size in enumerate(lengths)]


@given(sizes, st.integers(1, 20), st.integers(1, 20))
def test_every_offset_is_in_one_partition(lengths: list[int], least: int, more: int) -> None:
    most = least + more
    groups = partitions(ranges_of(lengths), least, most)
    assert all(each.size > 0 for group in groups for each in group)
    for index, size in enumerate(lengths):
        pieces = sorted(each for group in groups for each in group if each.fragment == index)
        assert sum(piece.size for piece in pieces) == size
        ends = [1_000, *(piece.end for piece in pieces)]
        assert [piece.start for piece in pieces] == ends[:-1]
    total = sum(lengths)
    assert len(groups) <= most
    assert len(groups) >= min(least, total)


def test_small_fragments_are_packed_into_one_partition() -> None:
    assert len(partitions(ranges_of([10] * 16), 1, 16)) == 1


def test_a_large_fragment_is_split() -> None:
    assert len(partitions(ranges_of([RANGE_MIN + 1]), 1, 16)) == 2
    assert len(partitions(ranges_of([4 * RANGE_MIN]), 1, 16)) == 4
    assert len(partitions(ranges_of([4 * RANGE_MIN]), 1, 2)) == 2
    # one task costs as much as thousands of rows, so there are few until each has much to do
    assert len(partitions(ranges_of([4 * RANGE_USUAL]), 1, 16)) == 4
    assert len(partitions(ranges_of([9 * RANGE_USUAL]), 1, 16)) == 9
    assert len(partitions(ranges_of([99 * RANGE_USUAL]), 1, 16)) == 16


def test_nothing_to_read_is_no_partition() -> None:
    assert partitions(ranges_of([0, 0]), 3, 4) == []


@given(sizes, st.integers(1, 500_000))
def test_a_limit_is_kept_and_shared(lengths: list[int], count_max: int) -> None:
    start = dict.fromkeys(range(len(lengths)), 5)
    end = {index: 5 + size for index, size in enumerate(lengths)}
    found = limited(start, end, count_max)
    assert sum(found[index] - 5 for index in found) == min(sum(lengths), count_max)
    assert all(5 <= found[index] <= end[index] for index in found)


def test_an_offset_that_is_gone_is_an_error_or_the_nearest_that_is_left() -> None:
    fragment = Fragment(0, 7, 100, 200)
    assert checked(fragment, "orders", 150, fail=True) == 150
    assert checked(fragment, "orders", 99, fail=False) == 100
    assert checked(fragment, "orders", 201, fail=False) == 200
    with pytest.raises(DataLoss, match="offset 99 was trimmed; the oldest one left is 100"):
        checked(fragment, "orders", 99, fail=True)
    with pytest.raises(DataLoss, match="offset 201 is past the end of the journal, 200"):
        checked(fragment, "orders", 201, fail=True)

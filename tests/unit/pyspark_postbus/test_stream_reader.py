"""R-PIPE-02: a micro-batch is what it was planned to be, also when the feed has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_postbus.client import Chunk, Feed, Fragment, OffsetAhead
from pyspark_postbus.options import Bound, read_options
from pyspark_postbus.ranges import DataLoss, Range, snapshot
from pyspark_postbus.stream_reader import FeedPartition, FeedStreamReader, offset_of, planned

CONNECTION = (
    "Endpoint=sb://localhost:5672;SharedAccessKeyName=r;SharedAccessKey=k;"
    "UseDevelopmentEmulator=true"
)


def feed(*fragments: Fragment) -> Feed:
    return Feed("orders", "queue", fragments, {})


class Broker:
    """Tells of one feed after the other, and of the last one from then on."""

    def __init__(self, *feeds: Feed, at: int = 0) -> None:
        self._feeds = iter(feeds)
        self._last = feeds[0]
        self._at = at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def feed(self, entity: str) -> Feed:
        self._last = next(self._feeds, self._last)
        return self._last

    def offset_at(self, entity: str, fragment: int, at: int) -> int:
        return self._at

    def read(self, entity: str, fragment: int, start: int, *_: Any, wait_s: int = 0) -> Chunk:
        raise OffsetAhead(416, "offset ahead", {"first": 0, "next": 0})


class Reader(FeedStreamReader):
    def __init__(self, *feeds: Feed, at: int = 0, **options: str) -> None:
        given = {"connectionString": CONNECTION, "queue": "orders", **options}
        super().__init__(read_options(given, streaming=True), ("offset",))
        self._broker = Broker(*feeds, at=at)

    def _client(self) -> Any:
        return self._broker

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Range]:
        for each in self.partitions(start, end):
            assert isinstance(each, FeedPartition)
            yield from each.ranges


OLD = feed(Fragment(0, 7, 0, 100))
NEW = feed(Fragment(0, 8, 0, 100))
START, END = offset_of({0: 10}, OLD), offset_of({0: 60}, OLD)


def test_a_planned_batch_of_a_journal_that_is_gone_is_not_read_from_the_new_one() -> None:
    assert planned(START, END, OLD, fail=True) == [Range(0, 10, 60)]
    with pytest.raises(DataLoss, match="deleted and created again"):
        planned(START, END, NEW, fail=True)
    assert planned(START, END, NEW, fail=False) == []
    with pytest.raises(DataLoss, match="deleted and created again"):
        planned(START, END, feed(), fail=True)


def test_a_planned_batch_that_was_empty_has_lost_nothing() -> None:
    assert planned(END, END, NEW, fail=True) == []
    assert planned(START, START, feed(Fragment(0, 7, 50, 100)), fail=True) == []


def test_a_batch_that_goes_over_to_a_new_journal_reads_that_from_its_beginning() -> None:
    assert planned(END, offset_of({0: 30}, NEW), NEW, fail=False) == [Range(0, 0, 30)]


def test_a_fragment_that_has_come_since_has_no_part_in_where_the_others_begin() -> None:
    more = feed(Fragment(0, 7, 0, 100), Fragment(1, 9, 0, 40))
    end = offset_of({0: 60, 1: 40}, more)
    assert planned(START, end, more, fail=True) == [Range(0, 10, 60), Range(1, 0, 40)]


def test_what_was_trimmed_from_a_planned_batch_is_an_error_or_left_out() -> None:
    trimmed = feed(Fragment(0, 7, 50, 100))
    with pytest.raises(DataLoss, match="offset 10 was trimmed"):
        planned(START, END, trimmed, fail=True)
    assert planned(START, END, trimmed, fail=False) == [Range(0, 50, 60)]


def test_a_journal_that_ends_before_a_planned_batch_does_is_an_error_or_read_to_its_end() -> None:
    shorter = feed(Fragment(0, 7, 0, 30))
    with pytest.raises(DataLoss, match="offset 60 is past the end of the journal, 30"):
        planned(START, END, shorter, fail=True)
    assert planned(START, END, shorter, fail=False) == [Range(0, 10, 30)]


def test_a_journal_that_was_put_back_is_gone_on_with_and_not_read_twice() -> None:
    shorter = feed(Fragment(0, 7, 0, 30))
    reader = Reader(shorter, failOnDataLoss="false")
    end = reader.latestOffset(END, ReadMaxRows(5))
    assert end == offset_of({0: 30}, shorter)
    assert list(reader.ranges(END, end)) == []


def test_offsets_lost_while_a_batch_is_measured_are_for_its_tasks_to_tell() -> None:
    reader = Reader(OLD, maxBytesPerTrigger="1000")
    assert reader.latestOffset(START, reader.getDefaultReadLimit()) == offset_of({0: 11}, OLD)


def test_an_entity_made_anew_while_news_are_waited_for_is_data_loss() -> None:
    idle = offset_of({0: 100}, OLD)
    with pytest.raises(DataLoss, match="deleted and created again"):
        Reader(OLD, NEW).latestOffset(idle, ReadAllAvailable())
    reader = Reader(OLD, NEW, failOnDataLoss="false")
    end = reader.latestOffset(idle, ReadAllAvailable())
    assert end == offset_of({0: 100}, NEW)
    assert list(reader.ranges(idle, end)) == [Range(0, 0, 100)]


def test_a_stream_may_start_at_a_time_on_a_busy_entity() -> None:
    """The offset of that time may be one that was not there when the feed was first looked at."""
    grown = feed(Fragment(0, 7, 0, 120))
    found = Reader(OLD, grown, at=110, startingTimestamp="5").initialOffset()
    assert found == offset_of({0: 110}, grown)


def test_the_ends_of_a_range_of_time_fit_together_on_a_busy_entity() -> None:
    grown = feed(Fragment(0, 7, 0, 120))
    broker: Any = Broker(OLD, grown, at=110)
    found, (start, end) = snapshot(broker, "orders", Bound(at=5), Bound(-1))
    assert (found, start, end) == (grown, {0: 110}, {0: 120})

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
        self.told: dict[str, dict[str, Any]] = {}
        self.reports = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def feed(self, entity: str) -> Feed:
        self._last = next(self._feeds, self._last)
        return self._last

    def readers(self, entity: str) -> list[dict[str, Any]]:
        return list(self.told.values())

    def report(
        self, entity: str, name: str, offsets: dict[int, int], query: str | None, batch: int | None
    ) -> None:
        self.reports += 1
        self.told[name] = {"name": name, "offsets": offsets, "query": query, "batch": batch}

    def offset_at(self, entity: str, fragment: int, at: int) -> int:
        return self._at

    def read(self, entity: str, fragment: int, start: int, *_: Any, wait_s: int = 0) -> Chunk:
        raise OffsetAhead(416, "offset ahead", {"first": 0, "next": 0})


class Reader(FeedStreamReader):
    def __init__(self, *feeds: Feed, at: int = 0, **options: str) -> None:
        given = {"connectionString": CONNECTION, "queue": "orders", **options}
        super().__init__(read_options(given, streaming=True), ("offset",))
        self.broker = Broker(*feeds, at=at)

    def _client(self, retry_s: float = 0) -> Any:
        return self.broker

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
    assert found == offset_of({0: 110}, grown, found["reader"])


def test_the_ends_of_a_range_of_time_fit_together_on_a_busy_entity() -> None:
    grown = feed(Fragment(0, 7, 0, 120))
    broker: Any = Broker(OLD, grown, at=110)
    found, (start, end) = snapshot(broker, "orders", Bound(at=5), Bound(-1))
    assert (found, start, end) == (grown, {0: 110}, {0: 120})


# -- how far it is -----------------------------------------------------------------------------


def test_what_is_done_is_told_when_spark_asks_for_more_and_not_when_there_is_more() -> None:
    """An idle reader, and one that has finished, have no micro-batch after their last."""
    reader = Reader(OLD, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    [told] = reader.broker.told.values()
    assert told["offsets"] == {0: 0}
    reader.broker.told[told["name"]] |= {"query": "q", "batch": 4}  # as a task says it
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    [told] = reader.broker.told.values()
    assert told == {"name": told["name"], "offsets": {0: 100}, "query": "q", "batch": 4}
    assert reader.broker.reports == 2, "an idle reader tells the same again and again"


def test_an_idle_reader_is_heard_of_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_postbus.stream_reader.REPORT_EVERY_S", 0.0)
    reader = Reader(OLD)
    for _ in range(3):
        reader.latestOffset(offset_of({0: 100}, OLD), ReadAllAvailable())
    assert reader.broker.reports == 3


def test_queries_with_the_same_options_are_readers_of_their_own_over_restarts() -> None:
    names = set()
    for _ in range(2):
        first = Reader(OLD, startingOffsets="earliest")
        end = first.latestOffset(first.initialOffset(), ReadMaxRows(5))
        again = Reader(OLD, startingOffsets="earliest")
        again.latestOffset(end, ReadMaxRows(5))
        assert first.broker.told.keys() == again.broker.told.keys()
        names |= first.broker.told.keys()
    assert len(names) == 2


def test_a_checkpoint_of_an_earlier_version_goes_on_as_it_is() -> None:
    reader = Reader(OLD)
    idle = offset_of({0: 100}, OLD)
    assert reader.latestOffset(idle, ReadAllAvailable()) == idle, "an empty micro-batch for nothing"
    named = Reader(OLD, readerName="audit")
    named.latestOffset(idle, ReadAllAvailable())
    assert list(named.broker.told) == ["audit"]


def test_a_name_that_is_given_goes_before_that_of_the_checkpoint() -> None:
    named = Reader(OLD, readerName="audit")
    named.latestOffset(named.initialOffset(), ReadAllAvailable())
    assert list(named.broker.told) == ["audit"]


def test_a_stream_from_the_end_begins_where_it_was_when_it_was_first_asked() -> None:
    """Spark asks twice, and what comes in between is of the first micro-batch."""
    reader = Reader(OLD, feed(Fragment(0, 7, 0, 150)))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(reader.ranges(reader.initialOffset(), end)) == [Range(0, 100, 150)]


def test_one_task_of_a_micro_batch_tells_of_it() -> None:
    reader = Reader(OLD, minPartitions="3")
    parts = reader.partitions(START, END)
    told = [each.told for each in parts if isinstance(each, FeedPartition)]
    assert told == [(told[0].name, {0: 10}) if told[0] else None, None, None]

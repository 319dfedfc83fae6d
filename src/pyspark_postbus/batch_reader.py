"""The change feed as a table: a range of offsets or of time, read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_postbus.client import Client
from pyspark_postbus.fetching import fetched, plan_of
from pyspark_postbus.filters import Narrowing
from pyspark_postbus.options import BadOption, ReadOptions
from pyspark_postbus.ranges import Range, checked, lost, partitions, snapshot
from pyspark_postbus.stream_reader import FeedPartition
from pyspark_postbus.worker import settle


class FeedReader(DataSourceReader):
    """Reads the part of the feed that existed when the query was planned."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        options, narrowing = self._options, self._narrowing
        with Client(options.namespace) as client:
            feed, (start, end) = snapshot(client, options.entity, options.start, options.end)
            ranges = []
            for one in feed.fragments:
                until = min(end[one.fragment], one.next)
                begin = start[one.fragment]
                if until < end[one.fragment] and options.fail_on_data_loss:
                    raise lost(feed.entity, one.fragment, end[one.fragment], 0, one.next)
                # A range that is empty loses nothing.
                if begin < until:
                    begin = checked(one, feed.entity, begin, options.fail_on_data_loss)
                elif begin > end[one.fragment]:
                    raise BadOption(
                        f"'{feed.entity}', partition {one.fragment}: the start, {begin}, is after "
                        f"the end, {end[one.fragment]}"
                    )
                wanted = Range(one.fragment, begin, until)
                ranges.append(narrowing.narrowed(wanted, feed.entity, client))
        plan = plan_of(options, self._columns, feed)
        operations = narrowing.operations
        if operations is not None:
            if options.operations is not None:
                operations &= options.operations
            plan = replace(plan, selection=replace(plan.selection, operations=operations))
        groups = partitions(ranges, options.min_partitions, options.max_partitions)
        # Without any partition, Spark makes and reads one of its own.
        return [FeedPartition(plan, group) for group in groups or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FeedPartition)
        settle()
        return fetched(partition.plan, partition.ranges)


class FilteringFeedReader(FeedReader):
    """As FeedReader, for sessions that push filters down: Spark refuses a reader that can do so
    where `spark.sql.python.filterPushdown.enabled` is not set."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._narrowing.take(filters)
        # Spark applies them all again: here they only save reading.
        return filters

"""The change feed as a stream: offsets by fragment, in micro-batches of a bounded size."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_postbus.chunk_records import base_of
from pyspark_postbus.client import (
    RETRY_S,
    Client,
    Feed,
    OffsetAhead,
    OffsetTrimmed,
    PostbusError,
)
from pyspark_postbus.fetching import Plan, fetched, plan_of
from pyspark_postbus.options import ReadOptions
from pyspark_postbus.ranges import (
    Range,
    check_kind,
    checked,
    limited,
    lost,
    made_anew,
    partitions,
    snapshot,
)
from pyspark_postbus.worker import BATCH_ID, QUERY_ID, settle

SAMPLE_BYTES: Final = 65_536
"""Bytes that are read to learn how large the next records are."""
WAIT_S: Final = 1
"""How long to wait for events when there are none: a query that is stopped waits no longer."""
PAUSE_S: Final = 0.2
"""The same for several fragments: a request can wait for only one."""
REPORT_S: Final = 5.0
"""How long to try to tell the broker of our progress: it is not worth more."""
REPORT_EVERY_S: Final = 60.0
"""An idle reader reports this often, for the broker forgets a reader that is silent for a week."""

_JOURNAL: Final = "journal"
_READER: Final = "reader"
_LOG = logging.getLogger("pyspark_postbus")


class Told(NamedTuple):
    """How far a reader is."""

    name: str
    offsets: dict[int, int]


class FeedPartition(InputPartition):
    """The part of the feed that a task reads."""

    def __init__(self, plan: Plan, ranges: tuple[Range, ...], told: Told | None = None) -> None:
        super().__init__(ranges)
        self.plan = plan
        self.ranges = ranges
        self.told = told
        """For one task of a micro-batch: the report to the broker about the reader before it."""


def offset_of(offsets: Mapping[int, int], feed: Feed, reader: str | None = None) -> dict[str, Any]:
    """A position as Spark keeps it in its checkpoint: `{"0": next, "journal": {"0": id}, "reader":
    id}`. An entity that was deleted and created again has other ids of journals. The id of the
    reader stays with the checkpoint, so that each query has its own."""
    names = sorted(offsets)
    ids = {fragment.fragment: fragment.id for fragment in feed.fragments}
    return {
        **{str(name): offsets[name] for name in names},
        _JOURNAL: {str(name): str(ids[name]) for name in names},
        **({} if reader is None else {_READER: reader}),
    }


def offsets_in(offset: Mapping[str, Any]) -> dict[int, int]:
    """The next offset of each fragment, from a result of `offset_of`."""
    return {int(name): int(value) for name, value in offset.items() if name.isdigit()}


def planned(
    start: Mapping[str, Any], end: Mapping[str, Any], feed: Feed, fail: bool
) -> list[Range]:
    """The ranges of a micro-batch, which Spark may have planned long before a restart. If the feed
    no longer has them: DataLoss, or the rest of them if not `fail`."""
    offsets, fragments = offsets_in(start), {one.fragment: one for one in feed.fragments}
    found = []
    for name, until in sorted(offsets_in(end).items()):
        one = fragments.get(name)
        journal = end[_JOURNAL][str(name)]
        # From its beginning where it has come, or was made anew, since the batch before.
        known = start[_JOURNAL].get(str(name)) == journal
        if known and offsets[name] >= until:
            continue
        if one is None or str(one.id) != journal:
            if fail:
                raise made_anew(feed.entity, name)
            _LOG.warning(
                "entity=%s partition=%d: made anew before offsets up to %d were read",
                *(feed.entity, name, until - 1),
            )
            continue
        begin = checked(one, feed.entity, offsets[name], fail) if known else one.first
        if until > one.next and fail:
            raise lost(feed.entity, name, until, one.first, one.next)
        found.append(Range(name, begin, min(until, one.next)))
    return found


class FeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the feed in micro-batches. Lives on the driver; tasks have a FeedPartition each."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._target: dict[int, int] | None = None
        self._initial: dict[str, Any] | None = None
        self._told: Told | None = None
        self._told_at = 0.0

    # -- where to read -----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        # The first micro-batch begins where it was planned to, though the end may have moved since.
        if self._initial is None:
            self._initial = self._first()
        return self._initial

    def _first(self) -> dict[str, Any]:
        with self._client() as client:
            feed, (start,) = snapshot(client, self._options.entity, self._options.start)
            check_kind(feed, self._options.is_topic)
            fail = self._options.fail_on_data_loss
            for fragment in feed.fragments:
                found = checked(fragment, feed.entity, start[fragment.fragment], fail)
                start[fragment.fragment] = found
            return offset_of(start, feed, uuid4().hex[:12])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._client() as client:
            feed = client.feed(self._options.entity)
            self._target = {one.fragment: one.next for one in feed.fragments}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        with self._client() as client:
            feed = client.feed(self._options.entity)
            return offset_of({one.fragment: one.next for one in feed.fragments}, feed)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # All before it is done. Spark's `commit` says so too late: not before there is more.
        self._tell(start)
        with self._client() as client:
            feed = client.feed(self._options.entity)
            begin = self._begin(start, feed)
            if self._target is None and all(
                begin[one.fragment] == one.next for one in feed.fragments
            ):
                feed = self._waited(client, feed)
                begin = self._begin(start, feed)
            end = {one.fragment: one.next for one in feed.fragments}
            if self._target is not None:
                # A journal that was replaced may end before the target.
                end = {name: min(end[name], self._target.get(name, 0)) for name in end}
            end = {name: max(end[name], begin[name]) for name in end}
            # The engine's word counts, and ours beside it where it has left that to us.
            if isinstance(limit, ReadMaxRows):
                end = limited(begin, end, limit.max_rows)
            if isinstance(limit, ReadMaxBytes):
                end = self._limited_bytes(client, begin, end, limit.max_bytes)
            elif isinstance(limit, ReadMaxRows) and self._options.max_bytes is not None:
                end = self._limited_bytes(client, begin, end, self._options.max_bytes)
            return offset_of(end, feed, start.get(_READER))

    def _waited(self, client: Client, feed: Feed) -> Feed:
        """The feed when something has come, or after a while: Spark asks a hundred times a second
        as long as there is nothing."""
        [first, *others] = feed.fragments
        if others:
            time.sleep(PAUSE_S)
        else:
            # The next look at the feed reports a loss.
            with suppress(OffsetAhead, OffsetTrimmed):
                client.read(feed.entity, first.fragment, first.next, 1, wait_s=WAIT_S)
        return client.feed(feed.entity)

    def _begin(self, start: Mapping[str, Any], feed: Feed) -> dict[int, int]:
        """Where the next micro-batch begins; DataLoss where that is no more."""
        offsets, journal = offsets_in(start), start[_JOURNAL]
        fail = self._options.fail_on_data_loss
        begin = {}
        for one in feed.fragments:
            known = journal.get(str(one.fragment))
            if known is not None and known != str(one.id):
                if fail:
                    raise made_anew(feed.entity, one.fragment)
                begin[one.fragment] = one.first
                continue
            # A fragment that has come since is read from its beginning.
            offset = offsets.get(one.fragment, one.first)
            begin[one.fragment] = checked(one, feed.entity, offset, fail)
        return begin

    def _limited_bytes(
        self, client: Client, begin: dict[int, int], end: dict[int, int], bytes_max: int
    ) -> dict[int, int]:
        """An end with about `bytes_max` bytes before it, by the size of the next records."""
        ranges = [Range(name, begin[name], end[name]) for name in end if end[name] > begin[name]]
        if not ranges:
            return end
        size = count = 0
        for fragment, start, _ in ranges:
            try:
                chunk = client.read(self._options.entity, fragment, start, SAMPLE_BYTES)
            except (OffsetTrimmed, OffsetAhead):
                continue  # lost since; whether that matters is for the tasks to say
            size += len(chunk.data)
            count += chunk.next - (base_of(chunk.data) if chunk.data else start)
        # At least one record of each range, of any size.
        return limited(begin, end, max(bytes_max * count // max(size, 1), len(ranges)))

    # -- ranges to read ----------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        with self._client() as client:
            feed = client.feed(options.entity)
        plan = plan_of(options, self._columns, feed)
        ranges = planned(start, end, feed, options.fail_on_data_loss)
        groups = partitions(ranges, options.min_partitions, options.max_partitions)
        told = Told(self._name(start), offsets_in(start))
        return [
            FeedPartition(plan, group, None if place else told)
            for place, group in enumerate(groups)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FeedPartition)
        settle()
        _tell_batch(partition)
        return fetched(partition.plan, partition.ranges)

    # -- how far it is -----------------------------------------------------------------------

    def _tell(self, start: Mapping[str, Any]) -> None:
        """Tell the broker how far this reader is, for `postbus feed status`. The stream does not
        depend on it: the next micro-batch makes up for a failed report."""
        told, now = Told(self._name(start), offsets_in(start)), time.monotonic()
        if told == self._told and now - self._told_at < REPORT_EVERY_S:
            return
        self._told, self._told_at = told, now
        try:
            with self._client(REPORT_S) as client:
                # Which query and micro-batch it is only tasks know, and they have told the broker.
                known = {one["name"]: one for one in client.readers(self._options.entity)}
                last = known.get(told.name, {})
                entity, query, batch = self._options.entity, last.get("query"), last.get("batch")
                client.report(entity, *told, query, batch)
        except PostbusError as error:
            _LOG.warning("reader=%s: progress was not reported: %s", told.name, error)

    def _name(self, offset: Mapping[str, Any]) -> str:
        """From the options, or made for the checkpoint; those of earlier versions have none."""
        reader = offset.get(_READER)
        options = self._options
        return options.reader_name or (f"spark-{reader}" if reader else options.former_reader_name)

    def _client(self, retry_s: float = RETRY_S) -> Client:
        return Client(self._options.namespace, retry_s)


def _tell_batch(partition: FeedPartition) -> None:
    """Tell the broker the query and the micro-batch of a reader, from one of its tasks."""
    told, task = partition.told, TaskContext.get()
    if told is None or task is None:
        return
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query is None or batch is None:
        return
    try:
        with Client(partition.plan.namespace, REPORT_S) as client:
            client.report(partition.plan.entity, *told, query, int(batch))
    except PostbusError as error:
        _LOG.warning("reader=%s: micro-batch was not reported: %s", told.name, error)

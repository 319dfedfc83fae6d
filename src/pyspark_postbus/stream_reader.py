"""The change feed as a stream: offsets by fragment, in micro-batches of a bounded size."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_postbus.chunk_records import base_of
from pyspark_postbus.client import Client, Feed, OffsetAhead, OffsetTrimmed, PostbusError
from pyspark_postbus.fetching import Plan, fetched, plan_of
from pyspark_postbus.options import ReadOptions
from pyspark_postbus.ranges import (
    Range,
    checked,
    limited,
    lost,
    made_anew,
    partitions,
    snapshot,
)
from pyspark_postbus.worker import settle

SAMPLE_BYTES: Final = 65_536
"""What is read to learn how large the next records are."""
WAIT_S: Final = 1
"""How long to wait for events when there are none: a query that is stopped waits no longer."""
PAUSE_S: Final = 0.2
"""The same where there are several fragments, of which only one can be waited for."""
REPORT_S: Final = 5.0
"""How long to try to tell the broker of our progress: it is not worth more."""

_JOURNAL: Final = "journal"
_LOG = logging.getLogger("pyspark_postbus")


class FeedPartition(InputPartition):
    """What one task reads."""

    def __init__(self, plan: Plan, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.plan = plan
        self.ranges = ranges


def offset_of(offsets: Mapping[int, int], feed: Feed) -> dict[str, Any]:
    """A position as Spark keeps it in its checkpoint: `{"0": next, "journal": {"0": id}}`. The ids
    tell a journal from that of an entity which was deleted and created again."""
    names = sorted(offsets)
    ids = {fragment.fragment: fragment.id for fragment in feed.fragments}
    return {
        **{str(name): offsets[name] for name in names},
        _JOURNAL: {str(name): str(ids[name]) for name in names},
    }


def offsets_in(offset: Mapping[str, Any]) -> dict[int, int]:
    """The next offset of each fragment, in what `offset_of` made."""
    return {int(name): int(value) for name, value in offset.items() if name != _JOURNAL}


def planned(
    start: Mapping[str, Any], end: Mapping[str, Any], feed: Feed, fail: bool
) -> list[Range]:
    """What a micro-batch is to read. It may be one of the checkpoint, planned long before a
    restart: DataLoss where the feed has it no more, or what is left of it if not `fail`."""
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

    # -- where to read -----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with self._client() as client:
            feed, (start,) = snapshot(client, self._options.entity, self._options.start)
            fail = self._options.fail_on_data_loss
            for fragment in feed.fragments:
                found = checked(fragment, feed.entity, start[fragment.fragment], fail)
                start[fragment.fragment] = found
            return offset_of(start, feed)

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
                # A journal that is another one now may end before the target.
                end = {name: min(end[name], self._target.get(name, 0)) for name in end}
            end = {name: max(end[name], begin[name]) for name in end}
            # The engine's word counts, and ours beside it where it has left that to us.
            if isinstance(limit, ReadMaxRows):
                end = limited(begin, end, limit.max_rows)
            if isinstance(limit, ReadMaxBytes):
                end = self._limited_bytes(client, begin, end, limit.max_bytes)
            elif isinstance(limit, ReadMaxRows) and self._options.max_bytes is not None:
                end = self._limited_bytes(client, begin, end, self._options.max_bytes)
            return offset_of(end, feed)

    def _waited(self, client: Client, feed: Feed) -> Feed:
        """What there is when something has come, or after a while: Spark asks a hundred times a
        second for as long as there is nothing."""
        [first, *others] = feed.fragments
        if others:
            time.sleep(PAUSE_S)
        else:
            # Who has lost what is for the next look at the feed to say.
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
        """An end with about so many bytes before it, by the size of the records that come next."""
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
        # At least one record of each, however large it is.
        return limited(begin, end, max(bytes_max * count // max(size, 1), len(ranges)))

    # -- what to read ------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        with self._client() as client:
            feed = client.feed(options.entity)
        plan = plan_of(options, self._columns, feed)
        ranges = planned(start, end, feed, options.fail_on_data_loss)
        groups = partitions(ranges, options.min_partitions, options.max_partitions)
        return [FeedPartition(plan, group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FeedPartition)
        settle()
        return fetched(partition.plan, partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the broker how far this reader is, for `postbus feed status`. The stream does not
        depend on it: what is not told now is told with the next micro-batch."""
        options = self._options
        try:
            with Client(options.namespace, REPORT_S) as client:
                client.report(options.entity, options.reader_name, offsets_in(end))
        except PostbusError as error:
            _LOG.warning("reader=%s: progress was not reported: %s", options.reader_name, error)

    def _client(self) -> Client:
        return Client(self._options.namespace)

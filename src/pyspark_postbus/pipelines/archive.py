"""Archive: the feed of entities as a Delta table that outlasts the broker's retention.

Each entity has a streaming query with a checkpoint of its own, so that entities can be added and
left out at any time. All of them write into the same table, partitioned by entity and day. An event
is in the table exactly once, even if a process is killed at any moment: see
`pyspark_postbus.pipelines.lake`.
"""

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_postbus.client import Feed
from pyspark_postbus.fetching import fetched, plan_of
from pyspark_postbus.options import read_options
from pyspark_postbus.pipelines.inputs import (
    WITH_MESSAGES,
    Address,
    is_remote,
    known_feed,
    offsets_text,
    options_of,
    parallelism,
)
from pyspark_postbus.pipelines.lake import Added, Lake, Source
from pyspark_postbus.ranges import DataLoss, Range

EVENTS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 30
"""Of a batch, so that a crash repeats no more than that."""
EVERY_S: Final = 10.0
COMPACT_EVERY: Final = 60
CLEAN_HOURS: Final = 168
"""For so long readers may go on with the files of an older version of the table."""

_LOG = logging.getLogger(__name__)
_WAIT_S: Final = 1
_COMPARED: Final = ("timestamp", "operation", "sequenceNumber")
"""By which an event is known: the commit of another broker was at another time."""


class ArchiveError(Exception):
    """The request cannot be archived."""


class Step(NamedTuple):
    """A batch that is in the table now."""

    entity: str
    batch: int
    added: Added
    behind: int
    """Events that the broker had by then and the table lacks."""


Told = Callable[[Step], None]


def archive(
    spark: SparkSession,
    connection: str,
    table: str,
    entities: Sequence[str],
    *,
    once: bool = False,
    every_s: float = EVERY_S,
    checkpoint: str | None = None,
    storage: Mapping[str, str] | None = None,
    compact_every: int = COMPACT_EVERY,
    events_max: int = EVENTS_MAX,
    fail_on_data_loss: bool = True,
    told: Told | None = None,
) -> "Archive":
    """Start archiving; with `once` return when everything that was there at the start is archived.

    `checkpoint` is a folder for Spark; by default it lies within the table, if its address is a
    path. Every `compact_every` batches, and at the end of `once`, small files are put together.
    Without `fail_on_data_loss` the archive goes on with the rest of the feed after the retention
    was faster.
    """
    if not entities:
        raise ArchiveError("no entity was named")
    _check_numbers(every_s, compact_every, events_max)
    if is_remote(spark):
        raise ArchiveError(
            "an archive is written by Spark's driver, which over Spark Connect is another process: "
            "name the cluster itself as the master, such as spark://host:7077"
        )
    folder = checkpoint or _folder_within(table)
    running = Archive(Lake(table, storage), compact_every)
    try:
        for entity in entities:
            feed = known_feed(connection, entity)
            work = _Work(connection, running, Lake(table, storage), feed.entity, told)
            work.check(feed)
            options = {
                "maxOffsetsPerTrigger": str(events_max),
                "failOnDataLoss": str(fail_on_data_loss).lower(),
            }
            stream = _stream(spark, connection, feed, work.lake, options)
            writer = (
                stream.writeStream.foreachBatch(work.commit)
                .option(
                    "checkpointLocation", f"{folder}/{_place(feed, work.lake.id(stream.schema))}"
                )
                .queryName(f"archive {feed.entity}")
            )
            trigger = (
                writer.trigger(availableNow=True)
                if once
                else writer.trigger(processingTime=f"{every_s} seconds")
            )
            running.queries.append(trigger.start())
            if once:
                # In turn: each starts workers of Python, and all at once are slow.
                running.wait()
    except BaseException:
        # Nobody else holds the queries that were started.
        running.stop()
        raise
    if once:
        running.tidy()
    return running


def _check_numbers(every_s: float, compact_every: int, events_max: int) -> None:
    if not every_s >= 0:
        raise ArchiveError(f"every_s is {every_s}, but must not be below 0")
    for name, value in (("compact_every", compact_every), ("events_max", events_max)):
        if value < 1:
            raise ArchiveError(f"{name} is {value}, but must be above 0")


def _folder_within(table: str) -> str:
    if "://" in table and not table.startswith("file://"):
        raise ArchiveError(
            f"{table} is no folder of a file system: say where Spark may keep its checkpoint"
        )
    # Delta passes over names that begin with an underscore.
    return str(Path(table.removeprefix("file://")).absolute() / "_postbus_checkpoints")


def _first_id(feed: Feed) -> int:
    # An entity that was deleted and created again starts from the beginning, so it has another
    # checkpoint.
    return min(one.id for one in feed.fragments)


def sources_of(feed: Feed) -> list[Source]:
    return [Source(feed.entity, one.fragment, one.id) for one in feed.fragments]


def _place(feed: Feed, table: str) -> str:
    """The checkpoint of an entity within its folder, for this table. A checkpoint that was made for
    another table would leave out the events which that table has."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', feed.entity)}-{_first_id(feed):x}-{table}"


def _stream(
    spark: SparkSession, connection: str, feed: Feed, lake: Lake, more: Mapping[str, str]
) -> DataFrame:
    options = options_of(connection, feed.kind, Address(feed.entity)) | {
        "maxBytesPerTrigger": str(BYTES_MAX),
        # The same after a restart: where it starts from is not.
        "readerName": f"archive-{hashlib.sha256(lake.uri.encode()).hexdigest()[:12]}",
        # An entity may have a single fragment, and the machine more cores.
        "minPartitions": str(parallelism(spark)),
        **more,
    }
    # For a start without a checkpoint: the table itself knows where it ends.
    ends = lake.ends(sources_of(feed))
    starts = {one.fragment: ends.get(one.fragment, one.first) for one in feed.fragments}
    return (
        spark.readStream.format("postbus")
        .schema(WITH_MESSAGES)
        .options(**options, startingOffsets=offsets_text(starts) if ends else "earliest")
        .load()
    )


@dataclass
class Archive:
    """An archive that is being written."""

    lake: Lake
    compact_every: int
    queries: list[StreamingQuery] = field(default_factory=list)
    batches: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Batches of several entities come in threads of their own. After any of them the table may be
    put in order."""

    def wait(self) -> None:
        """Wait until every query has ended; raises the failure of a query."""
        for query in self.queries:
            query.awaitTermination()

    def run(self) -> None:
        """Wait until a query fails, or until this is interrupted; raises the failure."""
        try:
            while all(query.isActive for query in self.queries):
                for query in self.queries:
                    query.awaitTermination(_WAIT_S)
            # Skip queries that still run: they would be waited for in vain.
            for query in self.queries:
                if not query.isActive:
                    query.awaitTermination()
        finally:
            self.stop()

    def stop(self) -> None:
        """End after the batches that are being written."""
        for query in self.queries:
            query.stop()

    def tidy(self) -> None:
        """Put small files together, and remove files that nobody has needed for a week."""
        with self.lock:
            try:
                self.lake.compact()
                self.lake.clean(CLEAN_HOURS)
            except CommitFailedError as error:
                # Somebody else was putting it in order: the next time will do.
                _LOG.info("the table was not put in order: %s", error)

    def counted(self) -> bool:
        """Count a batch; says whether it is time to put the table in order."""
        with self.lock:
            self.batches += 1
            return self.batches % self.compact_every == 0


@dataclass
class _Work:
    """The work on the batches of an entity."""

    connection: str
    running: Archive
    lake: Lake
    entity: str
    told: Told | None

    def check(self, feed: Feed) -> None:
        """A table that is ahead of the feed, or has other events, belongs to another broker. Events
        of this broker would be left out as if they were there."""
        ends = self.lake.ends(sources_of(feed))
        for one in feed.fragments:
            end = ends.get(one.fragment, 0)
            if end > one.next:
                raise ArchiveError(
                    f"{self.lake.uri} has '{feed.entity}' up to offset {end} of "
                    f"partition {one.fragment}, and this broker's feed ends at {one.next}: "
                    "the table is of another broker, or of one with newer data"
                )
            # The newest event that both should have; trimmed events cannot be compared.
            if one.first < end and not self._is_known(feed, one.fragment, end - 1):
                raise ArchiveError(
                    f"{self.lake.uri} has another event of '{feed.entity}' at offset {end - 1} of "
                    f"partition {one.fragment} than this broker: the table is of another one, or "
                    "its data was begun anew or restored since. Name another table"
                )

    def _is_known(self, feed: Feed, fragment: int, offset: int) -> bool:
        """Whether the table has this event as the feed has it. A deleted entity of the same name
        may have had the same offset."""
        stored = self.lake.rows(feed.entity, fragment, offset, _COMPARED)
        if not stored:
            return True
        options = options_of(self.connection, feed.kind, Address(feed.entity))
        plan = plan_of(read_options(options, streaming=False), _COMPARED, feed)
        try:
            batches = list(fetched(plan, [Range(fragment, offset, offset + 1)]))
        except DataLoss:
            return True
        found = [event for batch in batches for event in batch.to_pylist()]
        return any(row.items() <= event.items() for event in found for row in stored)

    def commit(self, events: DataFrame, batch: int) -> None:
        feed = known_feed(self.connection, self.entity)
        added = self.lake.append(events, sources_of(feed))
        if self.told is not None:
            ends = self.lake.ends(sources_of(feed))
            behind = sum(
                one.next - max(ends.get(one.fragment, 0), one.first) for one in feed.fragments
            )
            self.told(Step(self.entity, batch, added, max(0, behind)))
        if self.running.counted():
            self.running.tidy()

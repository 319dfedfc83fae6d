"""Archive: the feed of entities as a Delta table that keeps what the broker's retention lets go.

Each entity has a streaming query with a checkpoint of its own, so that entities can be added and
left out at any time; all of them write into one table, partitioned by entity and day. An event is
in the table exactly once, whatever is killed and when: see `pyspark_postbus.pipelines.lake`.
"""

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
from pyspark_postbus.pipelines.inputs import (
    WITH_MESSAGES,
    Address,
    known_feed,
    offsets_text,
    options_of,
)
from pyspark_postbus.pipelines.lake import Added, Lake, Source

EVENTS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 30
"""Of one batch, so that a crash repeats no more than that."""
EVERY_S: Final = 10.0
COMPACT_EVERY: Final = 60
CLEAN_HOURS: Final = 168
"""For so long readers may go on with the files of an older version of the table."""

_LOG = logging.getLogger(__name__)
_WAIT_S: Final = 1


class ArchiveError(Exception):
    """What cannot be archived the way it was asked."""


class Step(NamedTuple):
    """One batch that is in the table now."""

    entity: str
    batch: int
    added: Added
    behind: int
    """Events that the broker had by then and the table has not."""


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
    told: Told | None = None,
) -> "Archive":
    """Start archiving; with `once` return when everything that was there at the start is archived.

    `checkpoint` is a folder for Spark; by default it lies within the table, where its address is a
    path. Every `compact_every` batches, and at the end of `once`, small files are put together.
    """
    if not entities:
        raise ArchiveError("no entity was named")
    _check_numbers(every_s, compact_every, events_max)
    folder = checkpoint or _folder_within(table)
    running = Archive(Lake(table, storage), compact_every)
    try:
        for entity in entities:
            feed = known_feed(connection, entity)
            work = _Work(connection, running, Lake(table, storage), feed.entity, told)
            work.check(feed)
            place = f"{folder}/{re.sub(r'[^A-Za-z0-9._-]', '_', feed.entity)}-{_first_id(feed):x}"
            writer = (
                _stream(spark, connection, feed, work.lake, events_max)
                .writeStream.foreachBatch(work.commit)
                .option("checkpointLocation", place)
                .queryName(f"archive {feed.entity}")
            )
            trigger = (
                writer.trigger(availableNow=True)
                if once
                else writer.trigger(processingTime=f"{every_s} seconds")
            )
            running.queries.append(trigger.start())
            if once:
                # One after the other: each starts workers of Python, all at once they are slow.
                running.wait()
    except BaseException:
        # Nobody else has a hold of those that were started.
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
    # An entity that was deleted and created again starts from the beginning, so its checkpoint is
    # another one.
    return min(one.id for one in feed.fragments)


def sources_of(feed: Feed) -> list[Source]:
    return [Source(feed.entity, one.fragment, one.id) for one in feed.fragments]


def _stream(
    spark: SparkSession, connection: str, feed: Feed, lake: Lake, events_max: int
) -> DataFrame:
    options = options_of(connection, feed.kind, Address(feed.entity)) | {
        "maxOffsetsPerTrigger": str(events_max),
        "maxBytesPerTrigger": str(BYTES_MAX),
        # An entity may have one fragment, and the machine more cores.
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    # Of use where there is no checkpoint: the table itself knows where it ends.
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
    """Batches of several entities come in threads of their own, and each may be the one after which
    the table is put in order."""

    def wait(self) -> None:
        """Until every query has ended; raises what ended one."""
        for query in self.queries:
            query.awaitTermination()

    def run(self) -> None:
        """Until one of them fails, or this is interrupted; raises what ended it."""
        try:
            while all(query.isActive for query in self.queries):
                for query in self.queries:
                    query.awaitTermination(_WAIT_S)
            # Not those that are still going on: they would be waited for in vain.
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
        """Put small files together, and remove what nobody has needed for a week."""
        with self.lock:
            try:
                self.lake.compact()
                self.lake.clean(CLEAN_HOURS)
            except CommitFailedError as error:
                # Somebody else was putting it in order: the next time will do.
                _LOG.info("the table was not put in order: %s", error)

    def counted(self) -> bool:
        """One more batch; says whether it is time to put the table in order."""
        with self.lock:
            self.batches += 1
            return self.batches % self.compact_every == 0


@dataclass
class _Work:
    """What is done with the batches of one entity."""

    connection: str
    running: Archive
    lake: Lake
    entity: str
    told: Told | None

    def check(self, feed: Feed) -> None:
        """A table that is ahead of the feed is of another broker: its events would be left out."""
        ends = self.lake.ends(sources_of(feed))
        for one in feed.fragments:
            if ends.get(one.fragment, 0) > one.next:
                raise ArchiveError(
                    f"{self.lake.uri} has '{feed.entity}' up to offset {ends[one.fragment]} of "
                    f"partition {one.fragment}, and this broker's feed ends at {one.next}: "
                    "the table is of another broker, or of one with newer data"
                )

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

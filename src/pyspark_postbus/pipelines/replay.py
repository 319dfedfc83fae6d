"""Replay: send messages again that came in some time ago, from the feed or from an archive.

Each message is sent as it came, byte for byte, with its ids and properties. It has an additional
application property, `postbus-replayed-from`, which says where it was, as
`entity/partition/offset`. By it a receiver tells a replayed message from a new message.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from postbus.client.connection_string import parse
from pyspark_postbus.columns import ddl
from pyspark_postbus.pipelines.envelopes import marked, message_of
from pyspark_postbus.pipelines.inputs import (
    WITH_MESSAGES,
    address_of,
    known_feed,
    offsets_text,
    parts_of,
    read_feed,
)
from pyspark_postbus.pipelines.lake import Lake, instant
from pyspark_postbus.sender import Sender

CAME_IN: Final = ("enqueued", "scheduled", "published", "staged", "arrived")
"""The events that brought a message in from outside. A message put back was there before."""
CANCELLED: Final = "cancelled"
_WHERE: Final = ("entity", "partition", "offset")
_OF_CANCELLED: Final = (*_WHERE, "timestamp", "operation", "sequenceNumber", "messageId")
_SLICE: Final = 1_000
_SLICE_S: Final = 0.25

Told = Callable[[int], None]


class ReplayError(Exception):
    """The request cannot be replayed."""


class Pace:
    """A limit of messages a second, in slices."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and not 0 < rate < float("inf"):
            raise ReplayError("a rate is a number above 0")
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._due = clock()
        self.slice = _SLICE if rate is None else max(1, int(rate * _SLICE_S))

    def wait(self, count: int) -> None:
        """Wait until `count` messages may be sent. Time without messages to send is not made up
        for."""
        if self._rate is None:
            return
        now = self._clock()
        self._sleep(max(0.0, self._due - now))
        self._due = max(self._due, now) + count / self._rate


@dataclass(frozen=True)
class Replay:
    """Messages that were chosen: nothing has been sent yet."""

    chosen: DataFrame
    """The events that brought them in."""
    messages: DataFrame
    """The messages to send: the origin, and the message, or its envelope and body."""

    def count(self) -> int:
        return self.chosen.count()

    def send(
        self, connection: str, to: str, rate: float | None = None, told: Told | None = None
    ) -> int:
        """Send them to a queue or topic in their order, at no more than `rate` messages a second;
        returns how many. A replay that is broken off and begun again sends messages twice. If that
        matters, let the target detect duplicates, for the ids are kept."""
        pace = Pace(rate)
        check_target(connection, to)
        sent = 0
        with Sender(parse(connection), to) as sender:
            for slice_of in _slices(self._in_order(), pace.slice):
                pace.wait(len(slice_of))
                for row in slice_of:
                    sender.send(_message(row))
                sender.flush()
                sent += len(slice_of)
                if told is not None:
                    told(sent)
        return sent

    def _in_order(self) -> Iterator[Row]:
        """By partition and offset, with not more than a part of them in memory."""
        by = ("partition", "offset")
        size = F.lit(0)
        for name in self.messages.columns[len(_WHERE) :]:
            size = size + F.coalesce(F.length(name), F.lit(0))
        count, total = self.messages.agg(F.count("*"), F.sum(size)).collect()[0]
        parts = parts_of(count, total or 0)
        ranged = self.messages.repartitionByRange(parts, *by).sortWithinPartitions(*by)
        return ranged.toLocalIterator(prefetchPartitions=True)


def prepare(
    spark: SparkSession,
    entity: str,
    *,
    connection: str | None = None,
    table: str | None = None,
    storage: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    offsets: Mapping[int, tuple[int, int]] | None = None,
    where: str | None = None,
) -> Replay:
    """Choose messages by time, or by offsets ([first, end) by partition), and a SQL condition over
    their columns. They come from the archive `table`, or else from the feed."""
    address = address_of(entity)
    if address.subscription is not None:
        raise ReplayError(
            f"'{entity}' is a subscription, and nothing comes in there: replay its topic, "
            f"'{address.entity}'"
        )
    if since is not None and until is not None and instant(since) >= instant(until):
        raise ReplayError("nothing came in between these times: the first is not before the second")
    _check_offsets(offsets or {})
    if table is not None:
        lake = Lake(table, storage)
        _check_archived(spark, lake, address.entity, offsets or {})
        events = lake.read(spark, [address.entity], since, until)
        withdrawn = lake.read(spark, [address.entity], since, columns=_OF_CANCELLED)
    elif connection is not None:
        bounds = _bounds(connection, address.entity, offsets) if offsets else {}
        if since or until:
            bounds = {}
        events = read_feed(
            spark, connection, entity, since, until, bounds,
            options={"operations": ",".join(CAME_IN)}, schema=WITH_MESSAGES,
        )  # fmt: skip
        # A message may have been cancelled long after.
        bounds.pop("endingOffsets", None)
        withdrawn = read_feed(
            spark, connection, entity, since, None, bounds,
            options={"operations": CANCELLED}, schema=ddl(_OF_CANCELLED),
        )  # fmt: skip
    else:
        raise ReplayError("a replay is from a broker's feed or from an archive")
    return choose(_without(events, withdrawn), offsets, where)


def _without(events: DataFrame, withdrawn: DataFrame) -> DataFrame:
    """The events without scheduled messages that were cancelled: nobody ever had them. An entity
    that is created again repeats the numbers, so the ids must be equal as well."""
    later = withdrawn.where(F.col("operation") == CANCELLED).alias("later")
    same = [F.col(f"came.{name}") == F.col(f"later.{name}") for name in _WHERE[:2]]
    same.append(F.col("came.sequenceNumber") == F.col("later.sequenceNumber"))
    same.append(F.col("came.messageId").eqNullSafe(F.col("later.messageId")))
    same.append(F.col("came.timestamp") <= F.col("later.timestamp"))
    return events.alias("came").join(later, same, "left_anti")


def check_target(connection: str, to: str) -> None:
    """PostbusError if the queue or topic does not exist."""
    known_feed(connection, to)


def _check_offsets(offsets: Mapping[int, tuple[int, int]]) -> None:
    for partition, (first, end) in offsets.items():
        if first >= end:
            raise ReplayError(f"there are no offsets from {first} to before {end}: {partition}:…")


def _check_archived(
    spark: SparkSession, lake: Lake, entity: str, offsets: Mapping[int, tuple[int, int]]
) -> None:
    for partition, (first, end) in offsets.items():
        stored = lake.read(spark, [entity], columns=("partition", "offset"))
        if stored.where(_within(partition, first, end)).isEmpty():
            raise ReplayError(
                f"the archive has nothing of '{entity}' from offset {first} to before {end} of "
                f"partition {partition}"
            )


def _within(partition: int, first: int, end: int) -> Column:
    at = F.col("offset")
    return (F.col("partition") == partition) & (at >= first) & (at < end)


def _bounds(connection: str, entity: str, offsets: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """Offsets as the data source takes them: it fails where some were trimmed."""
    feed = known_feed(connection, entity)
    nexts = {one.fragment: one.next for one in feed.fragments}
    for name, (first, _) in offsets.items():
        if name not in nexts:
            raise ReplayError(f"'{feed.entity}' has no partition {name}; there are: {[*nexts]}")
        if first >= nexts[name]:
            raise ReplayError(
                f"'{feed.entity}' has nothing at offset {first} of partition {name}: it ends "
                f"before {nexts[name]}"
            )
    ends = {name: min(end, nexts[name]) for name, (_, end) in offsets.items()}
    starts = {name: first for name, (first, _) in offsets.items()}
    return {"startingOffsets": offsets_text(starts), "endingOffsets": offsets_text(ends)}


def choose(
    events: DataFrame,
    offsets: Mapping[int, tuple[int, int]] | None = None,
    where: str | None = None,
) -> Replay:
    """The messages of these events that came in, in their order."""
    whole = "message" if "message" in events.columns else "envelope"
    if whole not in events.columns:
        raise ReplayError("these events are without their messages")
    chosen = events.where(F.col("operation").isin(*CAME_IN) & F.col(whole).isNotNull())
    if offsets is not None:
        within = F.lit(False)
        for partition, (first, end) in offsets.items():
            within = within | _within(partition, first, end)
        chosen = chosen.where(within)
    if where:
        chosen = chosen.where(where)
    columns = (*_WHERE, whole)
    messages = chosen.select(*columns, *(("body",) if whole == "envelope" else ()))
    return Replay(chosen, messages)


def parse_offsets(texts: list[str]) -> dict[int, tuple[int, int]] | None:
    """`partition:first-end`, as on a command line."""
    found = {}
    for text in texts:
        match = re.fullmatch(r"(\d+):(\d+)-(\d+)", text.strip())
        if match is None:
            raise ReplayError(f"'{text}' is not of the form partition:first-end, such as 0:120-500")
        partition, first, end = map(int, match.groups())
        found[partition] = (first, end)
    return found or None


def _slices(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while taken := list(islice(rows, size)):
        yield taken


def _message(row: Row) -> bytes:
    whole = row.message if "message" in row else message_of(row.envelope, row.body)
    return marked(whole, f"{row.entity}/{row.partition}/{row.offset}")

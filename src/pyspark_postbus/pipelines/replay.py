"""Replay: send messages again that came in some time ago, from the feed or from an archive.

What is sent is the message as it came, byte for byte, with its ids and properties, and with one
application property more: `postbus-replayed-from`, which says where it was, as
`entity/partition/offset`. By it a receiver tells a replayed message from a new one.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pyspark_postbus.pipelines.inputs import known_feed, read_feed
from pyspark_postbus.pipelines.lake import Lake

MARK: Final = "postbus-replayed-from"
CAME_IN: Final = ("enqueued", "scheduled", "published", "staged", "arrived")
"""The events that brought a message in from outside. What was put back was there before."""
_SLICE_S: Final = 0.25

Batches = Iterator[pa.RecordBatch]


class ReplayError(Exception):
    """What cannot be replayed the way it was asked."""


@dataclass(frozen=True)
class Replay:
    """Messages that were chosen: nothing has been sent yet."""

    messages: DataFrame
    """What the data source's writer takes."""
    chosen: DataFrame
    """The events they are of."""

    def count(self) -> int:
        return self.chosen.count()

    def send(self, connection: str, to: str, rate: float | None = None) -> None:
        """Send them to a queue or topic, at no more than `rate` messages a second in all."""
        messages = self.messages
        if rate is not None:
            if rate <= 0:
                raise ReplayError("a rate is above 0")
            # One task: its pace is the pace, and the order is kept.
            messages = messages.coalesce(1).mapInArrow(_paced(rate), messages.schema)
        kind = known_feed(connection, to).kind
        options = {"connectionString": connection, kind: to}
        messages.write.format("postbus").options(**options).mode("append").save()


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
    their columns; from the archive `table`, or else from the feed."""
    if table is not None:
        events = Lake(table, storage).read(spark, [entity], since, until)
    elif connection is not None:
        options = {"operations": ",".join(CAME_IN), "includeMessage": "true"}
        events = read_feed(spark, connection, entity, since, until, options=options)
    else:
        raise ReplayError("a replay is from a broker's feed or from an archive")
    return choose(events, offsets, where)


def choose(
    events: DataFrame,
    offsets: Mapping[int, tuple[int, int]] | None = None,
    where: str | None = None,
) -> Replay:
    """The messages of these events that came in, in their order."""
    if "message" not in events.columns:
        raise ReplayError("these events are without their messages")
    chosen = events.where(F.col("operation").isin(*CAME_IN) & F.col("message").isNotNull())
    if offsets is not None:
        within = F.lit(False)
        for partition, (first, end) in offsets.items():
            at = F.col("offset")
            within = within | ((F.col("partition") == partition) & (at >= first) & (at < end))
        chosen = chosen.where(within)
    if where:
        chosen = chosen.where(where)
    origin = F.concat_ws(
        "/", "entity", F.col("partition").cast("string"), F.col("offset").cast("string")
    )
    messages = chosen.select("message", F.create_map(F.lit(MARK), origin).alias("properties"))
    return Replay(messages, chosen)


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


def _paced(rate: float) -> Callable[[Batches], Batches]:
    """Let rows pass at a pace, a quarter of a second's worth at a time."""

    def pass_on(batches: Batches) -> Batches:
        size = max(1, int(rate * _SLICE_S))
        began, passed = time.monotonic(), 0
        for batch in batches:
            for start in range(0, batch.num_rows, size):
                part = batch.slice(start, size)
                early = began + passed / rate - time.monotonic()
                if early > 0:
                    time.sleep(early)
                passed += part.num_rows
                yield part

    return pass_on

"""Events, counted: the tables behind the traffic report, made by Spark.

Every function takes events as the feed or the archive gives them. Bodies are not needed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from pyspark_postbus.pipelines.scales import width_of_column

COLUMNS: Final = (
    "entity string, subscription string, subQueue string, partition int, offset bigint, "
    "timestamp timestamp, operation string, sequenceNumber bigint, enqueuedTime timestamp, "
    "sessionId string, deliveryCount int, deadLetterReason string, deliveredTime timestamp, "
    "bodySize bigint"
)
"""Columns that a report asks of the feed, so that nothing else is decoded."""

SENT: Final = ("enqueued", "scheduled", "published", "staged", "posted", "duplicate")
"""The events of a client's send; a duplicate was sent, too."""
TAKEN: Final = ("completed", "received")
"""The ends that a receiver brings about."""
DELIVERED: Final = (*TAKEN, "abandoned", "lock-expired", "deferred", "dead-lettered")
"""Outcomes of deliveries, where the event says when it was delivered."""
HOT: Final = 20

_COMES: Final = ("enqueued", "arrived", "activated", "distributed", "staged", "posted", "put-back")
_GOES: Final = (
    *("completed", "received", "expired", "deleted", "spread", "forwarded", "resubmitted"),
)
_PERCENTILES: Final = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Tables:
    """The answers, each a small table of its own."""

    start: datetime
    end: datetime
    width_s: int
    traffic: pa.Table
    """column of time, entity, operation: events, bytes, units."""
    latency: pa.Table
    """column of time, entity, subscription: percentiles from enqueued to completed, in ms."""
    latency_whole: pa.Table
    """The same over the whole time, with waiting and handling apart."""
    backlog: pa.Table
    """column of time, entity, subscription, subQueue: how many more were there than at the
    start."""
    deliveries: pa.Table
    """entity, number of delivery attempts: messages completed at that attempt."""
    dead_letters: pa.Table
    """column of time, entity, subscription, reason: letters."""
    sessions: pa.Table
    """The sessions with the most messages."""
    fragments: pa.Table
    """entity, partition: events and bytes."""
    operations: pa.Table
    """entity: sends and deliveries, in units of the price table, and bytes in and out."""

    def named(self) -> dict[str, pa.Table]:
        return {name: value for name, value in vars(self).items() if isinstance(value, pa.Table)}


def tables(events: DataFrame, unit_kb: int = 64) -> Tables | None:
    """Count everything; None when there are no events. `events` is read several times: keep it
    (`persist`) if it is expensive."""
    [[first, last]] = events.agg(
        F.unix_millis(F.min("timestamp")), F.unix_millis(F.max("timestamp"))
    ).collect()
    if first is None:
        return None
    width_s = width_of_column((last - first) / 1_000 + 1)
    timed = events.withColumn("time", column_of_time(width_s)).withColumn("units", units(unit_kb))
    done = timed.where(F.col("operation").isin(*TAKEN) & (F.col("subQueue") == ""))
    return Tables(
        start=_instant(first),
        end=_instant(last),
        width_s=width_s,
        traffic=_counted(timed, "time", "entity", "operation"),
        latency=latency(done, "time", "entity", "subscription").toArrow(),
        latency_whole=latency(done, "entity", "subscription").toArrow(),
        backlog=backlog(timed).toArrow(),
        deliveries=_deliveries(done),
        dead_letters=_dead_letters(timed),
        sessions=_sessions(timed),
        fragments=_counted(timed, "entity", "partition"),
        operations=operations(timed).toArrow(),
    )


def column_of_time(width_s: int) -> Column:
    """The beginning of the column of time that an event lies in."""
    seconds = F.unix_seconds("timestamp")
    return F.timestamp_seconds(seconds - F.pmod(seconds, F.lit(width_s)))


def units(unit_kb: int) -> Column:
    """How often a message of its size counts."""
    return F.greatest(F.lit(1), F.ceil(F.col("bodySize") / F.lit(unit_kb * 1_024)))


def _counted(events: DataFrame, *by: str) -> pa.Table:
    grouped = events.groupBy(*by).agg(
        F.count("*").alias("events"),
        F.sum("bodySize").alias("bytes"),
        F.sum("units").alias("units"),
    )
    return grouped.orderBy(*by).toArrow()


def latency(done: DataFrame, *by: str) -> DataFrame:
    """Milliseconds from enqueued to completed; and apart, waiting for a receiver, and with it."""
    at, enqueued, delivered = (
        F.unix_millis(name) for name in ("timestamp", "enqueuedTime", "deliveredTime")
    )
    spans = {"total": at - enqueued, "waiting": delivered - enqueued, "handling": at - delivered}
    columns = []
    for name, span in spans.items():
        # Clocks of brokers may be set back: nothing is done before it began. An unknown value stays
        # unknown (`greatest` passes over nulls).
        value = F.when(span.isNotNull(), F.greatest(span, F.lit(0)))
        found = F.percentile_approx(value, list(_PERCENTILES), 1_000)
        for place, share in enumerate(_PERCENTILES):
            columns.append(found[place].alias(f"{name}_p{share * 100:g}"))
        columns.append(F.max(value).alias(f"{name}_max"))
    return done.groupBy(*by).agg(F.count("*").alias("messages"), *columns).orderBy(*by)


def backlog(timed: DataFrame) -> DataFrame:
    """How many messages more than at the start each subqueue had at the end of each column."""
    operation, place = F.col("operation"), F.col("subQueue")
    step = F.when(operation.isin(*_COMES), 1).when(operation.isin(*_GOES), -1).otherwise(0)
    is_dead = operation == "dead-lettered"
    steps = F.when(
        is_dead,
        F.array(
            F.struct(place.alias("subQueue"), F.lit(1).alias("step")),
            F.struct(F.lit("").alias("subQueue"), F.lit(-1).alias("step")),
        ),
    ).otherwise(F.array(F.struct(place.alias("subQueue"), step.alias("step"))))
    moved = timed.select("time", "entity", "subscription", F.inline(steps))
    by = ("entity", "subscription", "subQueue")
    net = moved.groupBy("time", *by).agg(F.sum("step").alias("change"))
    running = Window.partitionBy(*by).orderBy("time")
    level = F.sum("change").over(running.rowsBetween(Window.unboundedPreceding, 0))
    return net.withColumn("level", level).orderBy("time", *by)


def _deliveries(done: DataFrame) -> pa.Table:
    attempts = (F.col("deliveryCount") + 1).alias("attempts")
    return (
        done.groupBy("entity", attempts)
        .agg(F.count("*").alias("messages"))
        .orderBy("entity", "attempts")
        .toArrow()
    )


def _dead_letters(timed: DataFrame) -> pa.Table:
    by = ("time", "entity", "subscription", "reason")
    return (
        timed.where(F.col("operation") == "dead-lettered")
        .withColumn("reason", F.coalesce("deadLetterReason", F.lit("(none)")))
        .groupBy(*by)
        .agg(F.count("*").alias("letters"))
        .orderBy(*by)
        .toArrow()
    )


def _sessions(timed: DataFrame) -> pa.Table:
    sent = timed.where(F.col("operation").isin("enqueued", "distributed", "arrived"))
    return (
        sent.where("sessionId IS NOT NULL")
        .groupBy("entity", "subscription", "sessionId")
        .agg(F.count("*").alias("messages"), F.sum("bodySize").alias("bytes"))
        .orderBy(F.desc("messages"), "entity", "subscription", "sessionId")
        .limit(HOT)
        .toArrow()
    )


def operations(timed: DataFrame) -> DataFrame:
    """Sends and deliveries by entity: messages, billable units and bytes."""
    sent = F.col("operation").isin(*SENT)
    given = F.col("operation").isin(*DELIVERED) & F.col("deliveredTime").isNotNull()

    def total(condition: Column, value: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, value)), F.lit(0))

    return (
        timed.groupBy("entity")
        .agg(
            total(sent, F.lit(1)).alias("sends"),
            total(sent, F.col("units")).alias("send_units"),
            total(sent, F.col("bodySize")).alias("bytes_in"),
            total(given, F.lit(1)).alias("deliveries"),
            total(given, F.col("units")).alias("delivery_units"),
            total(given, F.col("bodySize")).alias("bytes_out"),
        )
        .orderBy("entity")
    )


def _instant(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1_000, UTC)

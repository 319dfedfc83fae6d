"""Triage: the kinds of dead letters, how many, since when, and samples of them."""

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)

SAMPLES: Final = 3
_BODY_SHOWN: Final = 200

_BY: Final = ("entity", "subscription", "reason", "error")


class Triage(NamedTuple):
    """The answers, small enough to be collected."""

    kinds: DataFrame
    """A row for each entity, subscription, reason and error: count, size, first, last, samples."""
    hours: DataFrame
    """How many of each reason by the hour in which they were enqueued."""


def triage(letters: DataFrame, samples: int = SAMPLES) -> Triage:
    """Sort dead letters, as `read_dead_letters` gives them, into kinds.

    Errors that differ only in numbers and ids are one kind. `order 4711 not found` and `order 4712
    not found` need the same repair.
    """
    told = letters.select(
        "entity",
        "subscription",
        F.coalesce("deadLetterReason", F.lit("")).alias("reason"),
        kind_of_error(F.coalesce("deadLetterErrorDescription", F.lit(""))).alias("error"),
        "enqueuedTime",
        "deliveryCount",
        "bodySize",
        F.struct(
            "sequenceNumber",
            "messageId",
            "deadLetterErrorDescription",
            _beginning(F.col("body")).alias("body"),
        ).alias("sample"),
    )
    place = Window.partitionBy(*_BY).orderBy("sample.sequenceNumber")
    numbered = told.withColumn("place", F.row_number().over(place))
    kinds = numbered.groupBy(*_BY).agg(
        F.count("*").alias("letters"),
        F.sum("bodySize").alias("bytes"),
        F.min("enqueuedTime").alias("first"),
        F.max("enqueuedTime").alias("last"),
        F.max("deliveryCount").alias("deliveries"),
        F.sort_array(F.collect_list(F.when(F.col("place") <= samples, F.col("sample")))).alias(
            "samples"
        ),
    )
    hours = told.groupBy(
        "entity", "subscription", F.date_trunc("hour", "enqueuedTime").alias("hour"), "reason"
    ).agg(F.count("*").alias("letters"))
    return Triage(
        kinds.orderBy(F.desc("letters"), *_BY),
        hours.orderBy("hour", "entity", "subscription", "reason"),
    )


def _beginning(body: Column) -> Column:
    """The first characters, if it has any: a body may be anything, and `decode` fails on that."""
    bytes_of = F.substring(body, 1, _BODY_SHOWN * 4)
    return F.substring(F.make_valid_utf8(bytes_of.cast("string")), 1, _BODY_SHOWN)


def kind_of_error(error: Column) -> Column:
    """The text with its numbers and ids taken out."""
    without_ids = F.regexp_replace(
        error, r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"
    )
    without_hex = F.regexp_replace(without_ids, r"\b(?:0x)?[0-9a-fA-F]{16,}\b", "<id>")
    return F.regexp_replace(without_hex, r"\d+(?:[.,]\d+)*", "<n>")

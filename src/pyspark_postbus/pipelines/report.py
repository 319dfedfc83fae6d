"""Report: the fate of the messages of some entities in some time, as a page and as tables.

The page is a single file of HTML with its charts in it. Beside it lie the tables it was drawn from,
as Parquet, for further work.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pyspark_postbus.client import Client, PostbusError
from pyspark_postbus.pipelines.inputs import address_of, known_feed, read_feed
from pyspark_postbus.pipelines.lake import Lake
from pyspark_postbus.pipelines.prices import Prices
from pyspark_postbus.pipelines.report_page import Meters, page
from pyspark_postbus.pipelines.report_tables import COLUMNS, Tables, tables

PAGE: Final = "report.html"


class NothingToReport(Exception):
    """There are no events in that time."""


class Report(NamedTuple):
    """The page and the tables that were written, and the number of events."""

    page: Path
    tables: Tables
    events: int


def report(
    spark: SparkSession,
    folder: Path,
    connection: str | None = None,
    entities: Sequence[str] = (),
    *,
    table: str | None = None,
    storage: Mapping[str, str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    prices: Prices | None = None,
    title: str = "Traffic report",
) -> Report:
    """Write a report into a folder, from the feeds of a broker or from an archive (`table`)."""
    if table is not None:
        names = [name.strip() for name in COLUMNS.split(",")]
        columns = [name.split(" ")[0] for name in names]
        events = Lake(table, storage).read(spark, entities or None, since, until, columns)
        is_whole, meters = False, None
    elif connection is not None and entities:
        events = _union([read_feed(spark, connection, entity, since, until, schema=COLUMNS)
                         for entity in entities])  # fmt: skip
        is_whole = since is None and _goes_back_to_the_beginning(connection, entities)
        meters = _meters(connection, entities)
    else:
        raise ValueError("a report needs a connection string with entities, or an archive")
    return write_report(events, folder, prices or Prices(), is_whole, meters, title)


def write_report(
    events: DataFrame,
    folder: Path,
    prices: Prices,
    is_whole: bool = False,
    meters: Meters | None = None,
    title: str = "Traffic report",
) -> Report:
    """The same for any frame that has the columns of `report_tables.COLUMNS`."""
    kept = events.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        count = kept.count()
        counted = tables(kept, prices.unit_kb)
    finally:
        kept.unpersist()
    if counted is None:
        raise NothingToReport("there are no events in this time")
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in counted.named().items():
        pq.write_table(rows, folder / f"{name}.parquet")
    place = folder / PAGE
    place.write_text(page(counted, prices, is_whole, meters, title), encoding="utf-8")
    return Report(place, counted, count)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _goes_back_to_the_beginning(connection: str, entities: Sequence[str]) -> bool:
    feeds = [known_feed(connection, address_of(entity).entity) for entity in entities]
    return all(one.first == 0 for feed in feeds for one in feed.fragments)


def _meters(connection: str, entities: Sequence[str]) -> Meters | None:
    """The broker's own counts, if the key may ask for them: they are an extra."""
    found = []
    try:
        with Client(connection, retry_s=5.0) as client:
            for entity in entities:
                found.append(client.get_json(address_of(entity).entity, "$usage"))
    except PostbusError:
        return None
    rows = [row for usage in found for row in usage["entities"]]
    return Meters(found[0]["since"], found[0]["now"], rows) if rows else None

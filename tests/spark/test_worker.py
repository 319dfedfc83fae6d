"""What a worker of Spark's does once, and what it leaves alone elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from pyspark_postbus.worker import settle


def test_a_worker_puts_aside_what_it_has_imported_once(spark: SparkSession) -> None:
    def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            settle()
            once = gc.get_freeze_count()
            later = [[] for _ in range(1_000)]
            settle()
            yield pa.RecordBatch.from_pydict({"once": [once], "twice": [gc.get_freeze_count()]})
            del later

    [row] = spark.range(1).coalesce(1).mapInArrow(counts, "once long, twice long").collect()

    assert row["once"] == row["twice"] > 10_000


def test_nothing_is_put_aside_outside_of_a_task() -> None:
    before = gc.get_freeze_count()

    settle()

    assert gc.get_freeze_count() == before

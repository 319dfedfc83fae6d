"""R-PIPE-01: the ordinary interface of Spark, in and out, on a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_postbus.columns import ALL
from tests.support.rest import RestClient
from tests.support.server import Server


@pytest.mark.spark_smoke
def test_what_spark_writes_is_received_and_its_history_can_be_read(
    spark: SparkSession, broker: Server, queue: str, read: Callable[..., DataFrame]
) -> None:
    # given rows written to a queue
    rows = spark.sql(
        "select concat('order ', id) as body, concat('m', id) as messageId, 'tea' as subject,"
        " map('cups', cast(id as string)) as properties from range(100)"
    )
    rows.write.format("postbus").mode("append").options(
        connectionString=broker.connection_string, queue=queue
    ).save()

    # when one of them is received
    with RestClient(broker.connection_string) as rest:
        taken = rest.take(queue)
    assert taken.body.startswith(b"order ")

    # then the feed has all that happened, and the queue what is left
    feed = read(broker, queue)
    assert tuple(feed.columns) == ALL
    counts = {row["operation"]: row["count"] for row in feed.groupBy("operation").count().collect()}
    assert counts == {"enqueued": 100, "received": 1}
    [row] = feed.where("messageId = 'm7' and operation = 'enqueued'").collect()
    assert (bytes(row["body"]), row["subject"]) == (b"order 7", "tea")
    assert (row["properties"], row["entity"], row["partition"]) == ({"cups": "7"}, queue, 0)
    left = read(broker, queue, readMode="messages")
    assert left.count() == 99
    assert left.where(f"messageId = '{taken.properties['MessageId']}'").count() == 0

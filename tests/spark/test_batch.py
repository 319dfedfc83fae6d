"""R-PIPE-01, R-PIPE-02: the feed as a table: by offsets, by time, by what happened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.administration import Administration
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

Read = Callable[..., DataFrame]
Send = Callable[..., None]
WITHIN_S = 300


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_a_range_of_offsets_is_read(broker: Server, queue: str, read: Read, send: Send) -> None:
    send(broker, queue, 500)
    found = read(
        broker,
        queue,
        "offset long, body binary",
        startingOffsets=json.dumps({"0": 100}),
        endingOffsets=json.dumps({"0": 300}),
        minPartitions="3",
    )
    assert found.rdd.getNumPartitions() == 3
    assert offsets(found) == list(range(100, 300))
    rows = found.orderBy("offset").collect()
    assert [bytes(row["body"]) for row in rows] == [b"%d" % number for number in range(100, 300)]


def test_a_range_of_time_is_read(broker: Server, queue: str, read: Read, send: Send) -> None:
    send(broker, queue, 20)
    first = read(broker, queue).agg({"timestamp": "max"}).collect()[0][0]
    # Times are those of commits, in ms: the next one has a later one.
    at = int(first.timestamp() * 1_000) + 1

    def later() -> bool:
        send(broker, queue, 1, first=1_000)
        newest = read(broker, queue).agg({"timestamp": "max"}).collect()[0][0]
        return bool(newest.timestamp() * 1_000 >= at)

    until_blocking("the clock has gone on", later, within_s=60)
    before = read(broker, queue, endingTimestamp=str(at))
    after = read(broker, queue, startingTimestamp=str(at))
    whole = offsets(read(broker, queue))
    assert offsets(before) + offsets(after) == whole
    assert before.where(f"timestamp >= timestamp_millis({at})").count() == 0
    assert after.where(f"timestamp < timestamp_millis({at})").count() == 0
    assert offsets(before)[:20] == list(range(20))


def test_operations_and_subqueues_are_chosen(broker: Server, read: Read, send: Send) -> None:
    queue = Administration(broker.connection_string).make_queue(max_delivery_count=1)
    send(broker, queue, 2)
    with RestClient(broker.connection_string) as rest:
        assert rest.request("DELETE", rest.lock(queue).location).status == 200
        assert rest.request("PUT", rest.lock(queue).location).status == 200
    done = read(broker, queue, operations="completed, dead-lettered").collect()
    assert [row["operation"] for row in done] == ["completed", "dead-lettered"]
    [dead] = read(broker, queue, subQueue="deadletter").collect()
    assert (dead["operation"], dead["deadLetterReason"]) == (
        "dead-lettered",
        "MaxDeliveryCountExceeded",
    )
    [letter] = read(broker, queue, readMode="messages", subQueue="deadletter").collect()
    assert letter["sequenceNumber"] == dead["sequenceNumber"]
    assert letter["deadLetterReason"] == "MaxDeliveryCountExceeded"


def test_a_queue_that_is_a_topic_is_refused_by_name_and_the_reverse(
    spark: SparkSession, broker: Server, queue: str, tmp_path: Path
) -> None:
    topic = Administration(broker.connection_string).make_topic()
    for given, wanted in (({"queue": str(topic)}, "topic"), ({"topic": queue}, "queue")):
        options = {"connectionString": broker.connection_string, **given}
        said = f"is a {wanted}: name it with the option '{wanted}'"
        with pytest.raises(PySparkException, match=said):
            spark.read.format("postbus").options(**options).load().count()
        peek = {**options, "readMode": "messages"}
        if "topic" in given:
            peek["subscription"] = "any"
        with pytest.raises(PySparkException, match=said):
            spark.read.format("postbus").options(**peek).load().count()
        frame = spark.range(1).selectExpr("'tea' as body")
        with pytest.raises(PySparkException, match=said):
            frame.write.format("postbus").mode("append").options(**options).save()
        stream = spark.readStream.format("postbus").options(**options).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        with pytest.raises(PySparkException, match=said):
            query.trigger(availableNow=True).start().awaitTermination(WITHIN_S)


def test_a_subscription_of_a_topic_is_chosen(
    spark: SparkSession, broker: Server, send: Send
) -> None:
    admin = Administration(broker.connection_string)
    topic = admin.make_topic()
    admin.make_subscription(topic, name="All")
    admin.make_subscription(topic, "1 = 0", name="none")
    send(broker, topic, 10)
    base = spark.read.format("postbus").options(
        connectionString=broker.connection_string, topic=topic
    )
    feed = base.load()
    published = feed.where("operation = 'published'")
    assert published.where("subscription is null and body is not null").count() == 10
    given = base.option("subscription", "all").load().select("operation", "subscription")
    assert {tuple(row) for row in given.distinct().collect()} == {("distributed", "All")}
    assert base.option("subscription", "All").option("readMode", "messages").load().count() == 10
    assert base.option("subscription", "none").option("readMode", "messages").load().count() == 0
    with pytest.raises(PySparkException, match="has no subscription 'other'"):
        base.option("readMode", "feed").option("subscription", "other").load().count()


def test_filters_narrow_what_is_read(broker: Server, queue: str, read: Read, send: Send) -> None:
    send(broker, queue, 400)
    pushed = read(broker, queue, "partition int, offset long, operation string", pushFilters="true")
    some = pushed.where("offset >= 100 and offset < 150 and operation = 'enqueued'")
    assert offsets(some) == list(range(100, 150))
    assert offsets(pushed.where("partition = 1")) == []
    assert pushed.where("operation = 'no such'").count() == 0


def test_the_schema_decides_what_is_decoded(
    broker: Server, queue: str, read: Read, send: Send
) -> None:
    send(broker, queue, 3)
    assert read(broker, queue, "`to` string, offset long").columns == ["to", "offset"]
    assert "body" not in read(broker, queue, includeBody="false").columns
    assert read(broker, queue, includeBody="false").count() == 3
    with pytest.raises(PySparkException, match="there is no column 'colour'"):
        read(broker, queue, "offset long, colour string").count()
    with pytest.raises(PySparkException, match="the column 'offset' is bigint, not int"):
        read(broker, queue, "offset int").count()


def test_an_empty_queue_is_an_empty_table(broker: Server, queue: str, read: Read) -> None:
    assert read(broker, queue).count() == 0
    assert read(broker, queue, readMode="messages").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingoffset'; did you mean 'startingOffs"),
        ({"startingOffsets": "first"}, "'startingOffsets' is 'first'"),
        ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for stream, not for batch"),
        ({"startingOffsets": '{"7": 1}'}, "has no partition 7"),
        ({"startingOffsets": '{"0": 999}'}, "offset 999 is past the end|the start, 999, is after"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    broker: Server, queue: str, read: Read, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        read(broker, queue, **options).count()


def test_a_key_that_does_not_open_the_queue_is_told(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    wrong = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    frame = spark.read.format("postbus").options(connectionString=wrong, queue=queue).load()
    with pytest.raises(PySparkException, match="HTTP 401"):
        frame.count()

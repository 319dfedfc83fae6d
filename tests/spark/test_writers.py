"""R-PIPE-01: DataFrames and streams into queues and topics; what is sent again is dropped there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_postbus.client import Client
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.waiting import until_blocking

Read = Callable[..., DataFrame]
Send = Callable[..., None]
WITHIN_S = 300


def write(frame: DataFrame, server: Server, mode: str = "append", **options: str) -> None:
    writer = frame.write.format("postbus").mode(mode)
    writer.options(connectionString=server.connection_string, **options).save()


def test_every_column_arrives_as_a_property(
    spark: SparkSession, broker: Server, read: Read
) -> None:
    queue = Administration(broker.connection_string).make_queue(requires_session=True)
    frame = spark.sql(
        "select encode('tea', 'utf-8') as body, 'm1' as messageId, 's1' as sessionId,"
        " 's1' as partitionKey, 'c1' as correlationId, 'subject' as subject,"
        " 'text/plain' as contentType, 'there' as `to`, 'here' as replyTo,"
        " 60000L as timeToLive, timestamp '2040-01-02 03:04:05' as scheduledEnqueueTime,"
        " map('cups', 2) as properties"
    )
    write(frame, broker, queue=queue)
    [row] = read(broker, queue).collect()
    said = row.asDict()
    assert bytes(said["body"]) == b"tea"
    wanted = {
        "messageId": "m1",
        "sessionId": "s1",
        "partitionKey": "s1",
        "correlationId": "c1",
        "subject": "subject",
        "contentType": "text/plain",
        "to": "there",
        "replyTo": "here",
        "timeToLive": 60_000,
        "properties": {"cups": "2"},
        "operation": "scheduled",
    }
    assert {name: said[name] for name in wanted} == wanted
    assert said["scheduledEnqueueTime"].isoformat() == "2040-01-02T03:04:05"


def test_many_rows_arrive_once_and_with_ids_of_their_own(
    spark: SparkSession, broker: Server, queue: str, read: Read
) -> None:
    frame = spark.range(0, 20_000, 1, 4).selectExpr("cast(id as string) as body")
    write(frame, broker, queue=queue)
    found = read(broker, queue)
    assert found.count() == 20_000
    assert found.select("messageId").distinct().count() == 20_000
    assert found.selectExpr("cast(body as string)").distinct().count() == 20_000


def test_rows_go_to_a_topic(spark: SparkSession, broker: Server) -> None:
    admin = Administration(broker.connection_string)
    topic = admin.make_topic()
    admin.make_subscription(topic, name="all")
    write(spark.range(50).selectExpr("cast(id as string) as body"), broker, topic=topic)
    peek = spark.read.format("postbus").options(
        connectionString=broker.connection_string,
        topic=topic,
        subscription="all",
        readMode="messages",
    )
    assert peek.load().count() == 50


def test_a_task_that_fails_and_is_run_again_doubles_nothing(
    spark: SparkSession, broker: Server, read: Read, tmp_path: Path
) -> None:
    queue = Administration(broker.connection_string).make_queue(requires_duplicate_detection=True)
    mark = str(tmp_path / "failed-once")
    connection = broker.connection_string

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id")[0].as_py() >= 9_000 and not Path(mark).exists():
                with Client(connection) as client:
                    # More than the other task has: some of it is from this one.
                    until_blocking(
                        "the broker has a part of it",
                        lambda: client.feed(queue).fragments[0].next > 5_000,
                        within_s=60,
                    )
                Path(mark).touch()
                raise RuntimeError("a disk is full, or so")
            yield batch

    frame = spark.range(0, 10_000, 1, 2).mapInArrow(fail_once, "id long")
    # Rows reach the writer in batches as well: large ones, and it would see none of them.
    rows_at_once = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(rows_at_once, "500")
    try:
        body = "concat(id, repeat(' ', 1000)) as body"
        write(frame.selectExpr(body), broker, queue=queue)
    finally:
        spark.conf.unset(rows_at_once)
    assert Path(mark).exists()
    counts = {
        row["operation"]: row["count"]
        for row in read(broker, queue).groupBy("operation").count().collect()
    }
    assert counts["enqueued"] == 10_000
    assert counts["duplicate"] > 0, "nothing was sent twice: this has shown nothing"
    bodies = read(broker, queue, operations="enqueued").selectExpr("cast(body as string)")
    assert bodies.distinct().count() == 10_000


def test_a_stream_is_written_and_a_batch_that_is_repeated_is_dropped(
    spark: SparkSession, broker: Server, queue: str, read: Read, send: Send, tmp_path: Path
) -> None:
    target = Administration(broker.connection_string).make_queue(requires_duplicate_detection=True)
    send(broker, queue, 300)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = (
            spark.readStream.format("postbus")
            .options(connectionString=broker.connection_string, queue=queue)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "100")
            .load()
        )
        writer: DataStreamWriter = stream.select("body", "subject").writeStream.format("postbus")
        query = (
            writer.options(connectionString=broker.connection_string, queue=target)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WITHIN_S)

    run()
    # As after a kill between the last send and the note that it was done.
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "commits" / ".2.crc").unlink(missing_ok=True)
    run()
    counts = {
        row["operation"]: row["count"]
        for row in read(broker, target).groupBy("operation").count().collect()
    }
    assert counts == {"enqueued": 300, "duplicate": 100}


def test_a_write_within_a_micro_batch_that_is_run_again_doubles_nothing(
    spark: SparkSession, broker: Server, queue: str, read: Read, send: Send, tmp_path: Path
) -> None:
    """`foreachBatch` with `df.write`, twice in each micro-batch and shuffled, and the function
    fails after it has written. Rows that are equal are as many messages."""
    target = Administration(broker.connection_string).make_queue(requires_duplicate_detection=True)
    send(broker, queue, 200)
    failures: list[int] = []

    def pass_on(batch: DataFrame, number: int) -> None:
        kinds = batch.selectExpr("cast(cast(body as string) as int) % 10 as kind")
        for parity in (0, 1):
            half = kinds.where(f"kind % 2 = {parity}").repartition(2)
            write(half.selectExpr("cast(kind as string) as body"), broker, queue=target)
            if number == 1 and len(failures) < 2:
                failures.append(number)
                raise RuntimeError("killed half-way")

    def run() -> StreamingQuery:
        stream = (
            spark.readStream.format("postbus")
            .options(connectionString=broker.connection_string, queue=queue)
            .options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
            .load()
        )
        writer = stream.writeStream.foreachBatch(pass_on)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    for _ in range(2):
        with pytest.raises(PySparkException, match="killed half-way"):
            run().awaitTermination(WITHIN_S)
    assert run().awaitTermination(WITHIN_S)
    counts = {
        row["operation"]: row["count"]
        for row in read(broker, target).groupBy("operation").count().collect()
    }
    assert counts == {"enqueued": 200, "duplicate": 100}


def test_a_write_that_is_done_again_by_its_name_doubles_nothing(
    spark: SparkSession, broker: Server, read: Read
) -> None:
    target = Administration(broker.connection_string).make_queue(requires_duplicate_detection=True)
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as body")
    for name in ("monday", "monday", "tuesday"):
        write(frame, broker, queue=target, writeId=name)
    operations = read(broker, target).groupBy("operation").count().collect()
    assert {row["operation"]: row["count"] for row in operations} == {
        "enqueued": 200,
        "duplicate": 100,
    }


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("cast(id as string) as body, id as offset", "the column 'offset' cannot be written"),
        ("cast(id as string) as text", "needs a column 'body'"),
        ("id as body", "the column 'body' cannot be written as bigint"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    spark: SparkSession, broker: Server, queue: str, columns: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        write(spark.range(1).selectExpr(*columns.split(", ")), broker, queue=queue)


def test_a_queue_is_not_overwritten_and_must_be_there(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        write(frame, broker, "overwrite", queue=queue)
    with pytest.raises(PySparkException, match="could not be found"):
        write(frame, broker, queue="nothing")
    with pytest.raises(PySparkException, match="no option 'colour'"):
        write(frame, broker, queue=queue, colour="red")

"""R-PIPE-02: the feed as a stream: bounded micro-batches, checkpoints, and what is lost is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_postbus.client import Client
from tests.support.administration import Administration
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

Send = Callable[..., None]
WITHIN_S = 300


class Kept:
    """The rows of each micro-batch, as a list of offsets."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.folder = folder
        self.batches: list[list[int]] = []

    def start(self, server: Server, queue: str, **options: str) -> StreamingQuery:
        """All that is there now, in as many micro-batches as it takes."""
        stream = (
            self._spark.readStream.format("postbus")
            .options(connectionString=server.connection_string, queue=queue, **options)
            .schema("offset long, body binary")
            .load()
        )

        def keep(batch: DataFrame, number: int) -> None:
            found = sorted(row["offset"] for row in batch.select("offset").collect())
            if found:
                self.batches.append(found)

        writer = stream.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self, server: Server, queue: str, **options: str) -> None:
        query = self.start(server, queue, **options)
        assert query.awaitTermination(WITHIN_S), "the stream goes on and on"

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path) -> Kept:
    return Kept(spark, tmp_path)


def test_what_is_there_is_read_in_bounded_batches_and_later_the_rest(
    kept: Kept, broker: Server, queue: str, send: Send
) -> None:
    send(broker, queue, 250)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100", "readerName": "me"}
    kept.run(broker, queue, **options)
    assert [len(batch) for batch in kept.batches] == [100, 100, 50]
    # The next run goes on from the checkpoint, whatever the starting offsets say.
    send(broker, queue, 30, first=250)
    kept.run(broker, queue, **options)
    assert kept.offsets == list(range(280))
    with Client(broker.connection_string) as client:
        [reader] = client.readers(queue)
    assert reader["name"] == "me"
    assert (reader["offsets"], reader["lag"]) == ({"0": 280}, 0), "it has finished"
    assert (reader["query"], reader["batch"]) == (query_id(kept), 3)


def query_id(kept: Kept) -> str:
    """As Spark keeps it for all runs of a query."""
    folder = kept.folder / "checkpoint"
    return str(json.loads((folder / "metadata").read_text())["id"])


def test_queries_with_the_same_options_are_seen_apart_and_idle_ones_have_no_lag(
    spark: SparkSession, broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    queries = []
    for name in ("one", "two"):
        stream = (
            spark.readStream.format("postbus")
            .options(connectionString=broker.connection_string, queue=queue)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = stream.writeStream.format("noop")
        queries.append(writer.option("checkpointLocation", str(tmp_path / name)).start())
    send(broker, queue, 40)
    with Client(broker.connection_string) as client:

        def seen() -> list[tuple[str | None, int]]:
            readers = client.readers(queue)
            return sorted((one["query"], one["lag"]) for one in readers if one["query"])

        wanted = sorted((query.id, 0) for query in queries)
        until_blocking("both are seen to be done", lambda: seen() == wanted, within_s=120)
    for query in queries:
        query.stop()


def test_a_micro_batch_is_bounded_by_bytes(
    kept: Kept, broker: Server, queue: str, send: Send
) -> None:
    send(broker, queue, 300, body="x" * 1_000)
    kept.run(broker, queue, startingOffsets="earliest", maxBytesPerTrigger="100000")
    assert kept.offsets == list(range(300))
    # Some 1,170 bytes each, in the journal.
    assert all(70 <= len(batch) <= 95 for batch in kept.batches[:-1])


def test_a_stream_starts_at_offsets_that_are_given(
    kept: Kept, broker: Server, queue: str, send: Send
) -> None:
    send(broker, queue, 50)
    kept.run(broker, queue, startingOffsets=json.dumps({"0": 20}))
    assert kept.offsets == list(range(20, 50))


def test_an_unknown_option_of_a_stream_is_refused(
    spark: SparkSession, broker: Server, queue: str
) -> None:
    reader = spark.readStream.format("postbus").options(
        connectionString=broker.connection_string, queue=queue, endingOffsets="latest"
    )
    with pytest.raises(Exception, match="'endingOffsets' is for batch, not for stream"):
        reader.load().writeStream.format("noop").start().processAllAvailable()


def trimmed(server: Server, queue: str, upto: int) -> int:
    """Take what is in a queue whose history is not kept, until that is gone; the oldest left."""
    with RestClient(server.connection_string) as rest, Client(server.connection_string) as client:
        while rest.take(queue, 0).status == 200:
            pass

        def gone() -> int:
            rest.send(queue, b"more")
            assert rest.take(queue).status == 200
            first = client.feed(queue).fragments[0].first
            return first if first >= upto else 0

        return until_blocking("the journal is trimmed", gone, within_s=120)


@pytest.fixture
def forgetful(make_server: Callable[..., Server]) -> Server:
    """A broker that keeps no history."""
    return make_server("--retention-hours", "0").start()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_offsets_that_were_trimmed_are_an_error_or_left_out(
    kept: Kept, forgetful: Server, send: Send, fail: str
) -> None:
    queue = Administration(forgetful.connection_string).make_queue()
    send(forgetful, queue, 40)
    # Held by nobody: a message keeps its batch, and with it the history from there on.
    kept.run(forgetful, queue, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    send(forgetful, queue, 40, first=40)
    first = trimmed(forgetful, queue, 90)
    seen = len(kept.offsets)
    options: dict[str, Any] = {"failOnDataLoss": fail, "startingOffsets": "earliest"}
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="was trimmed; the oldest one left is"):
            kept.run(forgetful, queue, **options)
        assert len(kept.offsets) == seen
    else:
        kept.run(forgetful, queue, **options)
        later = kept.offsets[seen:]
        assert later[0] >= first
        assert later == list(range(later[0], later[0] + len(later)))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_queue_that_was_made_anew_is_not_taken_for_the_old_one(
    kept: Kept, broker: Server, queue: str, send: Send, fail: str
) -> None:
    send(broker, queue, 20)
    kept.run(broker, queue, startingOffsets="earliest")
    admin = Administration(broker.connection_string)
    admin.client.delete_queue(queue)
    admin.client.create_queue(queue)
    send(broker, queue, 30)
    if fail == "true":
        with pytest.raises(StreamingQueryException, match="deleted and created again"):
            kept.run(broker, queue, startingOffsets="earliest", failOnDataLoss=fail)
    else:
        kept.run(broker, queue, startingOffsets="earliest", failOnDataLoss=fail)
        assert kept.offsets == [*range(20), *range(30)]

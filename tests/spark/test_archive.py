"""R-PIPE-03: the archive has each event exactly once, whatever is killed and when."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pyspark_postbus.client import Client
from pyspark_postbus.pipelines.archive import ArchiveError, archive
from pyspark_postbus.pipelines.lake import Added, Lake, NotArchived, Source
from tests.support.administration import Administration
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.spark import Program
from tests.support.waiting import until_blocking

Send = Callable[..., None]
PROGRAM = Path(__file__).parent / "programs" / "archive_slowly.py"
WITHIN_S = 300.0
ORDERS = [Source("or/ders", 0, 7)]


def archived(table: Path) -> list[tuple[int, str]]:
    """Offset and message id of all rows, through the table's log."""
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["offset", "messageId"])
    return sorted((row["offset"], row["messageId"]) for row in rows.to_pylist())


def events(spark: SparkSession, first: int, end: int) -> DataFrame:
    """Rows as the feed has them, with a day's change in their midst."""
    return spark.range(first, end, 1, 2).select(
        F.lit("or/ders").alias("entity"),
        F.lit(0).alias("partition"),
        F.col("id").alias("offset"),
        F.timestamp_millis(F.lit(1_767_225_600_000) + F.col("id") * 60_000).alias("timestamp"),
        F.col("id").cast("string").alias("messageId"),
        F.map_from_arrays(F.array(F.lit("a")), F.array(F.lit("b"))).alias("properties"),
    )


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


# -- the table ---------------------------------------------------------------------------------


def test_events_that_are_there_already_are_left_out_however_batches_are_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    assert lake.ends(ORDERS) == {}
    added = [lake.append(events(spark, a, b), ORDERS) for a, b in ((0, 50), (50, 90), (50, 90))]
    assert [one.events for one in added] == [50, 40, 0]
    assert lake.append(events(spark, 20, 120), ORDERS).events == 30
    assert lake.ends(ORDERS) == {0: 120}
    assert offsets(lake.read(spark)) == list(range(120))


def test_small_files_are_put_together_and_readers_see_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    for first in range(0, 2_000, 500):
        lake.append(events(spark, first, first + 500), ORDERS)
    before = DeltaTable(lake.uri).file_uris()
    assert lake.compact()["numFilesRemoved"] > 0
    table = DeltaTable(lake.uri)
    assert len(table.file_uris()) == 2 < len(before), "one for each day"
    assert offsets(lake.read(spark)) == list(range(2_000))
    assert lake.ends(ORDERS) == {0: 2_000}
    # Those that are replaced stay for readers of an older version, until they are cleaned up.
    assert all(Path(file).exists() for file in before)
    lake.clean(0)
    assert not any(Path(file).exists() for file in before)
    assert offsets(lake.read(spark)) == list(range(2_000))
    assert lake.ends(ORDERS) == {0: 2_000}, "the log's checkpoint keeps it"


def test_a_table_of_an_earlier_version_gets_the_columns_that_came_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.append(events(spark, 0, 5), ORDERS)
    later = events(spark, 5, 10).withColumn("originalSequenceNumber", F.col("offset") + 100)
    lake.append(later, ORDERS)
    Lake(lake.uri).append(later, ORDERS)
    rows = Lake(lake.uri).read(spark).orderBy("offset").collect()
    numbers = [row.originalSequenceNumber for row in rows]
    assert numbers == [None] * 5 + [number + 100 for number in range(5, 10)]


def test_a_table_is_read_by_entity_time_and_column(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.append(events(spark, 0, 2_000), ORDERS)
    midnight = datetime(2026, 1, 2, tzinfo=UTC)
    later = lake.read(spark, ["or/ders"], since=midnight, columns=["offset", "timestamp", "entity"])
    assert offsets(later) == list(range(1_440, 2_000))
    assert later.first().entity == "or/ders"
    early = lake.read(spark, until=midnight - timedelta(minutes=1_430))
    assert offsets(early) == list(range(10))
    with pytest.raises(NotArchived, match="no events of 'others'; it has: or/ders"):
        lake.read(spark, ["others"])


def test_an_entity_that_was_made_anew_in_other_letters_is_read_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.append(events(spark, 0, 5), ORDERS)
    again = events(spark, 0, 3).withColumn("entity", F.lit("Or/Ders"))
    lake.append(again, [Source("Or/Ders", 0, 77)])
    for name in ("or/ders", "Or/Ders", "OR/DERS"):
        assert lake.read(spark, [name]).count() == 8


def test_a_table_has_all_columns_before_the_entities_of_an_archive_begin(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two that add them at once get into each other's way, and one of the two would end."""
    first, second = Lake(str(tmp_path / "lake")), Lake(str(tmp_path / "lake"))
    first.append(events(spark, 0, 5), ORDERS)
    later = events(spark, 5, 10).withColumn("originalSequenceNumber", F.col("offset") + 100)
    second.id(later.schema)
    version = DeltaTable(first.uri).version()
    first.append(later, ORDERS)
    assert DeltaTable(first.uri).version() == version + 1, "rows, and no columns"


def test_of_two_writers_of_one_fragment_the_slower_one_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Lake(str(tmp_path / "lake")), Lake(str(tmp_path / "lake"))
    first.append(events(spark, 0, 10), ORDERS)
    ends = first.ends

    def overtaken(sources: list[Source]) -> dict[int, int]:
        found = ends(sources)
        second.append(events(spark, 10, 20), ORDERS)
        return found

    monkeypatch.setattr(first, "ends", overtaken)
    with pytest.raises(CommitFailedError):
        first.append(events(spark, 10, 20), ORDERS)
    assert offsets(second.read(spark)) == list(range(20))


# -- from a broker -----------------------------------------------------------------------------


def test_a_queue_is_archived_once_and_then_from_where_the_table_ends(
    spark: SparkSession, broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    steps: list[Added] = []
    table = tmp_path / "lake"

    def run() -> None:
        connection = broker.connection_string
        archive(spark, connection, str(table), [queue], once=True,
                told=lambda step: steps.append(step.added))  # fmt: skip

    send(broker, queue, 300)
    run()
    run()
    assert [one.events for one in steps] == [300]
    # A lost checkpoint means nothing: the table itself knows what it has.
    shutil.rmtree(table / "_postbus_checkpoints")
    send(broker, queue, 100, first=300)
    run()
    assert [one.events for one in steps] == [300, 100]
    assert archived(table) == [(number, f"id-{number}") for number in range(400)]


def foreign(spark: SparkSession, broker: Server, queue: str, table: Path) -> Lake:
    """A table with ten events that the broker never had, as if they were its own."""
    with Client(broker.connection_string) as client:
        [fragment] = client.feed(queue).fragments
    lake = Lake(str(table))
    rows = events(spark, 0, 10).withColumn("entity", F.lit(queue))
    lake.append(rows, [Source(queue, 0, fragment.id)])
    return lake


def test_a_table_that_is_ahead_of_the_broker_is_refused(
    spark: SparkSession, broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    lake = foreign(spark, broker, queue, tmp_path / "lake")
    with pytest.raises(ArchiveError, match="another broker"):
        archive(spark, broker.connection_string, lake.uri, [queue], once=True)


def test_a_checkpoint_of_one_table_leaves_nothing_out_of_another(
    spark: SparkSession, broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    send(broker, queue, 30)
    for name in ("lake", "other lake"):
        archive(spark, broker.connection_string, str(tmp_path / name), [queue], once=True,
                checkpoint=str(tmp_path / "checkpoint"))  # fmt: skip
        assert [offset for offset, _ in archived(tmp_path / name)] == list(range(30))


def test_an_archive_that_the_retention_has_overtaken_goes_on_only_when_it_is_told_to(
    spark: SparkSession, make_server: Callable[..., Server], send: Send, tmp_path: Path
) -> None:
    server = make_server("--retention-hours", "0").start()
    connection, table = server.connection_string, tmp_path / "lake"
    queue = Administration(connection).make_queue()
    send(server, queue, 20)
    archive(spark, connection, str(table), [queue], once=True)
    with RestClient(connection) as rest, Client(connection) as client:
        while rest.take(queue, 0).status == 200:
            pass

        def is_trimmed() -> bool:
            rest.send(queue, b"more")
            rest.take(queue)
            return client.feed(queue).fragments[0].first > 45

        until_blocking("the journal is trimmed", is_trimmed, within_s=120)
        first = client.feed(queue).fragments[0].first
    # Messages that are there keep their own events, too.
    send(server, queue, 5, first=100)
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        archive(spark, connection, str(table), [queue], once=True)
    assert len(archived(table)) == 20
    archive(spark, connection, str(table), [queue], once=True, fail_on_data_loss=False)
    later = archived(table)[20:]
    assert later[0][0] >= first
    assert [name for _, name in later][-5:] == [f"id-{number}" for number in range(100, 105)]
    assert [offset for offset, _ in later] == list(range(later[0][0], later[-1][0] + 1))


def test_a_table_of_a_broker_that_was_begun_anew_is_refused_also_where_the_new_one_has_more(
    spark: SparkSession, broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    lake = foreign(spark, broker, queue, tmp_path / "lake")
    send(broker, queue, 30)
    with pytest.raises(ArchiveError, match="begun anew"):
        archive(spark, broker.connection_string, lake.uri, [queue], once=True)
    assert offsets(lake.read(spark)) == list(range(10))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []
    (tmp_path / "marks").mkdir()

    def start(server: Server, queue: str, *more: str) -> Program:
        places = (str(tmp_path / "lake"), str(tmp_path / "marks"))
        arguments = (server.connection_string, queue, *places, *more)
        started.append(Program(PROGRAM, tmp_path / "driver.log", *arguments))
        return started[-1]

    yield start
    for program in started:
        program.kill()


def killed(program: Program, marks: Path, where: str) -> None:
    """Kill the driver and its JVM where they were told to stay."""
    (marks / where).touch()

    def stays() -> bool:
        assert program.running, program.tail()
        return (marks / f"{where}-reached").exists()

    until_blocking(f"it stays {where} the commit", stays, WITHIN_S)
    program.kill()
    (marks / where).unlink()


def test_an_archive_killed_within_a_batch_has_each_event_once(
    make_server: Callable[..., Server], send: Send, run: Callable[..., Program], tmp_path: Path
) -> None:
    server = make_server().start()
    queue = Administration(server.connection_string).make_queue()
    table, marks = tmp_path / "lake", tmp_path / "marks"
    send(server, queue, 5_000)

    # where files are written that the table does not have yet
    (marks / "before").touch()
    killed(run(server, queue), marks, "before")
    listed = {Path(file).resolve() for file in DeltaTable(str(table)).file_uris()}
    found = {file.resolve() for file in table.rglob("*.parquet") if "_delta_log" not in str(file)}
    assert found - listed, "a reader of the folder would find what was never committed"

    # and where the table has them, and Spark begins the same batch again
    (marks / "after").touch()
    killed(run(server, queue), marks, "after")
    count = len(archived(table))
    assert 0 < count < 5_000

    send(server, queue, 500, first=5_000)
    run(server, queue, "--once").wait(WITHIN_S)
    whole = [(number, f"id-{number}") for number in range(5_500)]
    assert archived(table) == whole
    with Client(server.connection_string) as client:
        assert client.feed(queue).fragments[0].next == 5_500
    assert any(entry["operation"] == "OPTIMIZE" for entry in DeltaTable(str(table)).history())
    Lake(str(table)).compact()
    assert archived(table) == whole


def test_an_archive_goes_on_when_the_broker_was_killed(
    make_server: Callable[..., Server], send: Send, run: Callable[..., Program], tmp_path: Path
) -> None:
    server = make_server().start()
    queue = Administration(server.connection_string).make_queue()
    table = tmp_path / "lake"
    send(server, queue, 1_000)
    program = run(server, queue)

    def has(count: int) -> Callable[[], bool]:
        def ask() -> bool:
            assert program.running, program.tail()
            return DeltaTable.is_deltatable(str(table)) and len(archived(table)) >= count

        return ask

    for number in (1, 2):
        until_blocking(f"{number},000 are archived", has(number * 1_000), WITHIN_S)
        server.kill()
        server.start()
        send(server, queue, 1_000, first=number * 1_000)
    until_blocking("all are archived", has(3_000), WITHIN_S)
    program.kill()
    assert archived(table) == [(number, f"id-{number}") for number in range(3_000)]

"""How fast Spark reads the change feed, beside its own Parquet reader: `make bench-spark`.

A queue is filled with messages of 1 KB, and the feed is written to Parquet once: both have the same
rows. Then each is read into Spark's noop sink in alternating rounds, so that both sides of a ratio
had the same minute: with the record's own columns and the body, and with every column. The broker
serves the feed on the same machine, so its work counts, too. In the same rounds a source that has
the same rows ready in memory says what is left of a round when nothing is fetched or decoded.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.brokers import Postbus
from bench.numbers import Spread
from bench.processes import machine, usage_of
from bench.program import add_places, conduct, say, write_json
from bench.ready_source import ReadySource
from bench.report import markdown
from bench.work import RunFailed
from postbus.client.connection_string import parse
from postbus.feed.events import JournalOrigin
from pyspark_postbus.client import Client
from pyspark_postbus.columns import ALL, OF_SECTIONS, ddl
from pyspark_postbus.decode import Decoder
from pyspark_postbus.rows import encode
from pyspark_postbus.sender import Sender

QUEUE = "events"
OWN = tuple(name for name in ALL if name not in OF_SECTIONS or name == "body")
CASES = (("the record's own columns and the body", OWN, 0.5), ("every column", ALL, 0.1))
PARTS = 2
WARM_UP = 3
"""Rounds that are not counted. Files are in memory after one, but rates, Parquet's above all, go on
rising for one or two more."""
_POOL = 4_000_000
_PLACED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Round:
    """One read of each kind, in events per second, and the CPU time of all that took part: it
    says more than the rates where the machine is not quiet."""

    feed: float
    ready: float
    parquet: float
    feed_cpu_us: float
    """Per event, broker and Spark together."""
    broker_cpu_us: float
    ready_cpu_us: float
    parquet_cpu_us: float


class Frames(NamedTuple):
    """What is read in a round."""

    feed: Callable[[], DataFrame]
    ready: DataFrame
    ready_count: int
    parquet: DataFrame


def fill(connection: str, count: int, size: int) -> None:
    """Send messages with bodies that do not repeat, as an application would."""
    pool = base64.b64encode(random.Random(1).randbytes(_POOL))
    with Sender(parse(connection), QUEUE) as sender:
        for number in range(count):
            at = number * 977 % (_POOL - size)
            row = {
                "body": pool[at : at + size],
                "messageId": f"message-{number:010}",
                "subject": "measured",
                "correlationId": f"c-{number % 1000}",
                "contentType": "text/plain",
                # Of the types that SDKs give them.
                "properties": [
                    *(("region", "north"), ("number", number), ("share", number / 7)),
                    *(("first", number % 2 == 0), ("placed", _PLACED + timedelta(seconds=number))),
                ],
            }
            sender.send(encode(row, str))


def session(folder: Path, memory: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", memory)
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def timed(frame: DataFrame) -> float:
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def measure(given: argparse.Namespace, folder: Path) -> int:
    flags = ("--retention-mb", str(1_048_576))
    with Postbus(folder / "broker", [QUEUE], flags, max_size_mb=5_120) as broker:
        connection = broker.connection_string
        began = time.monotonic()
        fill(connection, given.events, given.size)
        took_s = time.monotonic() - began
        say(f"{given.events} messages of {given.size} bytes sent in {took_s:.0f} s")
        spark = session(folder, given.memory)
        try:
            return _compare(given, spark, connection, broker, folder / "parquet")
        finally:
            spark.stop()


def _compare(
    given: argparse.Namespace, spark: SparkSession, connection: str, broker: Postbus, path: Path
) -> int:
    def feed(columns: tuple[str, ...]) -> DataFrame:
        reader = spark.read.format("postbus").options(connectionString=connection, queue=QUEUE)
        return reader.schema(ddl(columns)).load()

    feed(ALL).write.parquet(str(path))
    parquet = spark.read.parquet(str(path))
    found = parquet.count()
    if found != given.events:
        raise RunFailed(f"the feed has {found} events, not {given.events}")
    lines, missed = [], 0
    told: dict[str, list[dict[str, float]]] = {}
    for title, columns, wanted in CASES:
        file = path.with_name(f"{len(told)}.arrow")
        ready, count = _ready(spark, given, connection, columns, file)
        frames = Frames(lambda c=columns: feed(c), ready, count, parquet.select(*columns))  # type: ignore[misc]
        rounds = _rounds(given, broker, frames)
        ratio = [each.feed / each.parquet for each in rounds]
        lines.append(
            [
                title,
                _text([each.feed for each in rounds], 0),
                _text([each.parquet for each in rounds], 0),
                f"**{_text(ratio, 2)}**",
                f"{wanted}",
                _text([each.ready / each.parquet for each in rounds], 2),
                f"{median(each.feed_cpu_us for each in rounds):.1f}",
                f"{median(each.broker_cpu_us for each in rounds):.1f}",
                f"{median(each.ready_cpu_us for each in rounds):.1f}",
                f"{median(each.parquet_cpu_us for each in rounds):.1f}",
            ]
        )
        told[title] = [asdict(each) for each in rounds]
        missed += median(ratio) < wanted
    heads = ["columns", "feed, events/s", "Parquet, rows/s", "ratio", "wanted"]
    heads.append("ratio of rows that are ready")
    heads += [f"CPU µs/event, {of}" for of in ("feed", "of it the broker", "ready", "Parquet")]
    say(markdown(heads, lines))
    write_json(given.output, {"machine": machine(path), "broker": broker.full_name, "rounds": told})
    return 1 if missed else 0


def _text(values: list[float], digits: int) -> str:
    spread = Spread.of(values)
    return "-" if spread is None else spread.text(digits)


def _ready(
    spark: SparkSession,
    given: argparse.Namespace,
    connection: str,
    columns: tuple[str, ...],
    path: Path,
) -> tuple[DataFrame, int]:
    """A frame of about as many rows, all of them ready; and how many there are."""
    with Client(connection) as client:
        journal = client.feed(QUEUE)
        chunk = client.read(QUEUE, 0, journal.fragments[0].first)
    batch = Decoder(JournalOrigin(QUEUE, 0, {}), columns).decode(chunk.data, 0, chunk.next)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    spark.dataSource.register(ReadySource)
    times = max(given.events // batch.num_rows // PARTS, 1) * PARTS
    reader = spark.read.format("ready").options(path=str(path), times=times, parts=PARTS)
    return reader.schema(ddl(columns)).load(), times * batch.num_rows


def _rounds(given: argparse.Namespace, broker: Postbus, frames: Frames) -> list[Round]:
    rounds = []
    for number in range(given.rounds + WARM_UP):
        broker_before = usage_of(broker.pid).cpu_s
        feed, feed_cpu_us = _measured(frames.feed(), given.events)
        broker_s = usage_of(broker.pid).cpu_s - broker_before
        ready, ready_cpu_us = _measured(frames.ready, frames.ready_count)
        parquet, parquet_cpu_us = _measured(frames.parquet, given.events)
        broker_cpu_us = broker_s / given.events * 1e6
        each = Round(
            *(feed, ready, parquet, feed_cpu_us, broker_cpu_us, ready_cpu_us, parquet_cpu_us)
        )
        is_warm = number >= WARM_UP
        told = "" if is_warm else " (warm-up)"
        say(
            f"  feed {feed:.0f}/s with {feed_cpu_us:.1f} µs, ready {ready:.0f}/s with "
            f"{ready_cpu_us:.1f} µs, Parquet {parquet:.0f}/s with {parquet_cpu_us:.1f} µs{told}"
        )
        if is_warm:
            rounds.append(each)
    return rounds


def _measured(frame: DataFrame, count: int) -> tuple[float, float]:
    """Rows per second, and µs of CPU for each. The broker is a child of this process, and so are
    Spark's."""
    before = usage_of(os.getpid()).cpu_s
    took_s = timed(frame)
    return count / took_s, (usage_of(os.getpid()).cpu_s - before) / count * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", default="2g", help="Spark's, which Parquet needs more of")
    add_places(parser, "bench-spark.json")
    return conduct(measure, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

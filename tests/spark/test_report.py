"""R-PIPE-03, R-COST-01: the report counts what happened, and its page needs nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import DataFrame, SparkSession

from pyspark_postbus.pipelines.prices import Prices
from pyspark_postbus.pipelines.report import NothingToReport, report, write_report
from pyspark_postbus.pipelines.report_tables import COLUMNS
from tests.support.server import Server
from tests.support.spark import environment

Send = Callable[..., None]


def row(minute: int, operation: str, **values: Any) -> dict[str, Any]:
    """An event at a minute past eight, of a message that was enqueued ten seconds before."""
    at = datetime(2026, 6, 30, 20, minute, 30, tzinfo=UTC)
    return {
        "entity": "orders", "subscription": None, "subQueue": "", "partition": 0, "offset": 0,
        "timestamp": at, "operation": operation, "sequenceNumber": 1,
        "enqueuedTime": at.replace(second=20), "sessionId": None, "deliveryCount": 0,
        "deadLetterReason": None, "deliveredTime": None, "bodySize": 100, **values,
    }  # fmt: skip


def frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame(list(rows), COLUMNS)


def outcome(minute: int, operation: str, **values: Any) -> dict[str, Any]:
    delivered = datetime(2026, 6, 30, 20, minute, 28, tzinfo=UTC)
    return row(minute, operation, deliveredTime=delivered, **values)


@pytest.fixture(scope="module")
def story(spark: SparkSession) -> DataFrame:
    """Nine are sent; six completed, one after a second delivery; one dead-lettered; two wait."""
    dead = {"subQueue": "deadletter", "deadLetterReason": "BadOrder"}
    return frame(
        spark,
        *(row(0, "enqueued", sessionId="hot") for _ in range(6)),
        *(row(5, "enqueued", sessionId="<cold>", bodySize=70_000, partition=1) for _ in range(3)),
        outcome(6, "abandoned", deliveryCount=1),
        outcome(6, "lock-expired", deliveryCount=1),
        *(outcome(7, "completed") for _ in range(5)),
        outcome(8, "completed", deliveryCount=1),
        outcome(9, "dead-lettered", **dead),
        row(9, "session-state-set"),
    ).persist()


def test_the_tables_count_what_happened(story: DataFrame, tmp_path: Path) -> None:
    written = write_report(story, tmp_path, Prices(), is_whole=True)
    tables = written.tables
    assert written.events == 19
    assert tables.width_s == 5
    traffic = {
        (one["operation"], one["time"].minute): one["events"] for one in tables.traffic.to_pylist()
    }
    assert traffic["enqueued", 0] == 6
    assert traffic["completed", 7] == 5
    [latency] = tables.latency_whole.to_pylist()
    assert (latency["messages"], latency["total_p50"], latency["total_max"]) == (6, 10_000, 10_000)
    assert (latency["waiting_p99"], latency["handling_p99"]) == (8_000, 2_000)
    levels = [
        (one["subQueue"], one["time"].minute, one["level"])
        for one in tables.backlog.to_pylist()
        if one["change"]
    ]
    assert levels == [
        ("", 0, 6), ("", 5, 9), ("", 7, 4), ("", 8, 3), ("", 9, 2), ("deadletter", 9, 1),
    ]  # fmt: skip
    attempts = [(one["attempts"], one["messages"]) for one in tables.deliveries.to_pylist()]
    assert attempts == [(1, 5), (2, 1)]
    [letters] = tables.dead_letters.to_pylist()
    assert (letters["reason"], letters["letters"]) == ("BadOrder", 1)
    sessions = [(one["sessionId"], one["messages"]) for one in tables.sessions.to_pylist()]
    assert sessions == [("hot", 6), ("<cold>", 3)]
    fragments = [(one["partition"], one["events"]) for one in tables.fragments.to_pylist()]
    assert fragments == [(0, 16), (1, 3)]


def test_a_large_message_counts_once_for_each_started_unit(
    story: DataFrame, tmp_path: Path
) -> None:
    [counted] = write_report(story, tmp_path, Prices()).tables.operations.to_pylist()
    assert (counted["sends"], counted["send_units"]) == (9, 12)
    assert (counted["deliveries"], counted["delivery_units"]) == (9, 9)
    assert counted["bytes_in"] == 6 * 100 + 3 * 70_000


class Page(HTMLParser):
    """What a page refers to, and whether its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.refers += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "rect", "circle", "polyline", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect", "circle", "polyline"):
            assert self.open.pop() == tag


def test_the_page_needs_nothing_from_anywhere_else(story: DataFrame, tmp_path: Path) -> None:
    written = write_report(story, tmp_path, Prices(currency="EUR"), is_whole=True)
    text = written.page.read_text()
    page = Page(text)
    assert page.open == []
    assert page.refers == []
    assert "script" not in page.tags
    assert not re.search(r"https?:|@import|url\(", text)
    assert "prefers-color-scheme:dark" in text
    assert "&lt;cold&gt;" in text
    assert "<cold>" not in text
    assert " EUR" in text
    for name, rows in written.tables.named().items():
        assert pq.read_table(tmp_path / f"{name}.parquet").num_rows == rows.num_rows


def test_a_history_that_was_cut_off_shows_no_negative_backlog(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = frame(spark, *(outcome(7, "completed") for _ in range(5)), row(8, "enqueued"))
    text = write_report(events, tmp_path, Prices(), is_whole=False).page.read_text()
    assert "does not go back to the beginning" in text
    assert re.search(r"waiting at the end</dt><dd>1</dd><small>at least", text)


def test_what_is_not_known_of_a_delivery_is_not_taken_for_no_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = frame(spark, row(7, "completed"), row(8, "completed", enqueuedTime=None))
    written = write_report(events, tmp_path, Prices())
    [latency] = written.tables.latency_whole.to_pylist()
    assert (latency["total_p50"], latency["waiting_p50"]) == (10_000, None)
    unknown = frame(spark, row(7, "completed", enqueuedTime=None))
    assert "n/a" in write_report(unknown, tmp_path, Prices()).page.read_text()


def test_nothing_to_report_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NothingToReport):
        write_report(frame(spark), tmp_path, Prices())


def test_the_report_of_a_broker_agrees_with_what_was_done(
    spark: SparkSession, broker: Server, queue: str, tmp_path: Path
) -> None:
    connection = broker.connection_string
    with ServiceBusClient.from_connection_string(connection) as bus:
        with bus.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(f"{number}") for number in range(50)])
        with bus.get_queue_receiver(queue) as receiver:
            for place, message in enumerate(receiver.receive_messages(50, max_wait_time=5)):
                if place < 10:
                    receiver.abandon_message(message)
                elif place < 15:
                    receiver.dead_letter_message(message, reason="BadOrder")
                elif place < 40:
                    receiver.complete_message(message)
    written = report(spark, tmp_path, connection, [queue])
    counts: dict[str, int] = {}
    for one in written.tables.traffic.to_pylist():
        counts[one["operation"]] = counts.get(one["operation"], 0) + one["events"]
    assert counts == {"enqueued": 50, "abandoned": 10, "dead-lettered": 5, "completed": 25}
    ends = {one["subQueue"]: one["level"] for one in written.tables.backlog.to_pylist()}
    assert ends == {"": 20, "deadletter": 5}
    assert re.search(r"waiting at the end</dt><dd>20</dd>", written.page.read_text())


def test_a_report_is_made_on_a_machine_without_java(
    broker: Server, queue: str, send: Send, tmp_path: Path
) -> None:
    send(broker, queue, 20)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "cat", "ps", "uname", "readlink", "rm", "mkdir"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    assert not (tools / "java").exists()
    bare = {"PATH": str(tools), "HOME": str(tmp_path), "POSTBUS_CONNECTION_STRING": ""}
    variables = {**os.environ, **environment(), **bare}
    variables.pop("JAVA_HOME", None)
    variables["POSTBUS_CONNECTION_STRING"] = broker.connection_string
    command = [sys.executable, "-m", "postbus", "pipeline", "report", queue, "--master", "local[2]"]
    ended = subprocess.run(
        [*command, "--out", str(tmp_path / "report")],
        check=False, capture_output=True, text=True, timeout=400, env=variables,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "20 events" in ended.stdout
    assert ended.stderr == "", "nothing is said that its user could not act on"
    assert (tmp_path / "report" / "report.html").exists()

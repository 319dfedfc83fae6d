"""R-PIPE-03: messages of some time are sent again as they were, from the feed or an archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql import SparkSession

from pyspark_postbus.client import PostbusError
from pyspark_postbus.pipelines.archive import archive
from pyspark_postbus.pipelines.lake import NotArchived
from pyspark_postbus.pipelines.replay import ReplayError, prepare
from tests.support.administration import Administration
from tests.support.server import Server

Read = Callable[[str], list[Any]]


@pytest.fixture
def filled(broker: Server, queue: str) -> str:
    """A queue that 40 messages went through, half of which are gone."""
    with ServiceBusClient.from_connection_string(broker.connection_string) as bus:
        with bus.get_queue_sender(queue) as sender:
            messages = [
                ServiceBusMessage(
                    f"body {number}", message_id=f"id-{number}", session_id=None, subject="tea",
                    correlation_id=f"c{number}", content_type="text/plain",
                    application_properties={"number": number, "share": 0.5, "ok": True},
                )
                for number in range(40)
            ]  # fmt: skip
            sender.send_messages(messages)
        with bus.get_queue_receiver(queue) as receiver:
            for message in receiver.receive_messages(20, max_wait_time=5):
                receiver.complete_message(message)
    return queue


def peeked(connection: str, queue: str) -> list[Any]:
    with (
        ServiceBusClient.from_connection_string(connection) as bus,
        bus.get_queue_receiver(queue) as receiver,
    ):
        return list(receiver.peek_messages(250))


@pytest.mark.parametrize("origin", ["feed", "archive"])
def test_messages_are_sent_again_as_they_were_and_are_marked(
    spark: SparkSession, broker: Server, filled: str, tmp_path: Path, origin: str
) -> None:
    connection = broker.connection_string
    target = Administration(connection).make_queue()
    table = None
    if origin == "archive":
        table = str(tmp_path / "lake")
        archive(spark, connection, table, [filled], once=True)
    replay = prepare(
        spark, filled, connection=connection, table=table, offsets={0: (5, 30)},
        where="properties['number'] % 2 = 0",
    )  # fmt: skip
    assert replay.count() == 12
    assert replay.send(connection, target) == 12
    found = peeked(connection, target)
    assert [message.message_id for message in found] == [f"id-{n}" for n in range(6, 30, 2)]
    first = found[0]
    assert str(first) == "body 6"
    assert (first.subject, first.correlation_id, first.content_type) == ("tea", "c6", "text/plain")
    assert first.application_properties == {
        b"number": 6, b"share": 0.5, b"ok": True,
        b"postbus-replayed-from": f"{filled}/0/6".encode(),
    }  # fmt: skip


def test_a_replay_keeps_to_its_rate(spark: SparkSession, broker: Server, filled: str) -> None:
    connection = broker.connection_string
    target = Administration(connection).make_queue()
    replay = prepare(spark, filled, connection=connection)
    began = time.monotonic()
    told: list[int] = []
    assert replay.send(connection, target, 20, told.append) == 40
    # Slices of a quarter of a second; the last may go when the others have had their time.
    assert told == list(range(5, 41, 5))
    assert time.monotonic() - began >= 35 / 20
    assert len(peeked(connection, target)) == 40
    with pytest.raises(ReplayError, match="above 0"):
        replay.send(connection, target, 0)


def test_a_range_of_offsets_is_read_and_nothing_else(
    spark: SparkSession, broker: Server, filled: str
) -> None:
    connection = broker.connection_string
    chosen = prepare(spark, filled, connection=connection, offsets={0: (35, 1_000)})
    assert chosen.count() == 5, "an end beyond what is there is what is there"


@pytest.mark.parametrize("origin", ["feed", "archive"])
def test_what_was_scheduled_and_cancelled_is_not_sent(
    spark: SparkSession, broker: Server, queue: str, tmp_path: Path, origin: str
) -> None:
    """Also where it was cancelled after the range that is replayed."""
    connection = broker.connection_string
    target = Administration(connection).make_queue()
    later = datetime.now(UTC) + timedelta(hours=1)
    with (
        ServiceBusClient.from_connection_string(connection) as bus,
        bus.get_queue_sender(queue) as sender,
    ):
        messages = [ServiceBusMessage(name, message_id=name) for name in ("a", "b", "c")]
        numbers = sender.schedule_messages(messages, later)
        sender.send_messages(ServiceBusMessage("d", message_id="d"))
        sender.cancel_scheduled_messages(numbers[1])
    table = None
    if origin == "archive":
        table = str(tmp_path / "lake")
        archive(spark, connection, table, [queue], once=True)
    for offsets in (None, {0: (0, 4)}):
        replay = prepare(spark, queue, connection=connection, table=table, offsets=offsets)
        assert replay.count() == 3
    assert replay.send(connection, target) == 3
    assert {message.message_id for message in peeked(connection, target)} == {"a", "c", "d"}


def test_what_cannot_match_is_refused(
    spark: SparkSession, broker: Server, filled: str, tmp_path: Path
) -> None:
    connection = broker.connection_string
    table = str(tmp_path / "lake")
    archive(spark, connection, table, [filled], once=True)
    feed: dict[str, Any] = {"connection": connection}
    now = datetime.now(UTC)
    for asked, why in (
        ({"entity": "news/subscriptions/all", **feed}, "is a subscription.*replay its topic"),
        ({"entity": f"{filled}/Subscriptions/x", "table": table}, "is a subscription"),
        ({"entity": f"{filled}x", "table": table}, f"no events of '{filled}x'; it has: {filled}"),
        ({"entity": filled, "offsets": {0: (35, 20)}, **feed}, "no offsets from 35 to before 20"),
        ({"entity": filled, "offsets": {3: (0, 9)}, **feed}, "no partition 3"),
        ({"entity": filled, "offsets": {0: (900, 999)}, **feed}, "nothing at offset 900"),
        ({"entity": filled, "offsets": {0: (900, 999)}, "table": table}, "from offset 900 to"),
        ({"entity": filled, "offsets": {3: (0, 9)}, "table": table}, "of partition 3"),
        ({"entity": filled, "since": now, "until": now, **feed}, "nothing came in between"),
    ):
        with pytest.raises((ReplayError, NotArchived), match=why):
            prepare(spark, **asked)
    with pytest.raises(PostbusError, match="could not be found"):
        prepare(spark, f"{filled}x", connection=connection)
    assert prepare(spark, filled.upper(), table=table).count() == 40

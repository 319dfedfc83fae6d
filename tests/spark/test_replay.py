"""R-PIPE-03: messages of some time are sent again as they were, from the feed or an archive."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_postbus.pipelines.archive import archive
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
    # It is the data source that is asked, so offsets that were trimmed are an error as they are
    # there, and no fewer messages.
    turned = prepare(spark, filled, connection=connection, offsets={0: (35, 20)})
    with pytest.raises(PySparkException, match="is after the end"):
        turned.count()

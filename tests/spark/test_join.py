"""R-PIPE-02: the join of docs/spark.md finds the message of every outcome, by whatever way it came:
each message says its own name in its id and in its body."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyspark.sql import DataFrame, SparkSession

from pyspark_postbus.client import Client
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.spark import ROOT

WITHIN_S = 60


class Bus:
    """Sends and completes with the SDK, and knows which outcomes there must be."""

    def __init__(self, server: Server, client: ServiceBusClient) -> None:
        self.server = server
        self.client = client
        self.admin = Administration(server.connection_string)
        self.outcomes: list[tuple[str, str | None, str]] = []
        """Entity, subscription, and the message's name."""

    def send(self, sender: Any, name: str, is_scheduled: bool = False) -> None:
        message = ServiceBusMessage(f"body of {name}", message_id=name)
        if is_scheduled:
            sender.schedule_messages(message, datetime.now(UTC) + timedelta(seconds=1))
        else:
            sender.send_messages(message)

    def to_queue(self, queue: str, *names: str, is_scheduled: bool = False) -> None:
        with self.client.get_queue_sender(queue) as sender:
            for name in names:
                self.send(sender, name, is_scheduled)

    def to_topic(self, topic: str, *names: str, is_scheduled: bool = False) -> None:
        with self.client.get_topic_sender(topic) as sender:
            for name in names:
                self.send(sender, name, is_scheduled)

    def finish(self, receiver: Any, place: tuple[str, str | None], *names: str) -> None:
        """Complete these; any other message is one that ought not to be there."""
        left = set(names)
        with receiver:
            while left:
                [message] = receiver.receive_messages(1, max_wait_time=WITHIN_S)
                left.remove(message.message_id)
                receiver.complete_message(message)
        self.outcomes += [(*place, name) for name in names]

    def from_queue(self, queue: str, *names: str) -> None:
        self.finish(self.client.get_queue_receiver(queue), (queue, None), *names)

    def from_subscription(self, topic: str, name: str, *names: str) -> None:
        receiver = self.client.get_subscription_receiver(topic, name)
        self.finish(receiver, (topic, name), *names)


@pytest.fixture
def bus(broker: Server) -> Iterator[Bus]:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield Bus(broker, client)


def joined(spark: SparkSession, bus: Bus, **entities: str) -> list[tuple[str, str | None, str]]:
    """What the page's join gives for these entities together: whose outcome it is, and the name
    in the body that was found for it."""
    page = (ROOT / "docs" / "spark.md").read_text()
    _, code = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    frames = [
        spark.read.format("postbus")
        .options(connectionString=bus.server.connection_string, **{kind.split("_")[0]: name})
        .load()
        for kind, name in entities.items()
    ]
    feed = frames[0]
    for frame in frames[1:]:
        feed = feed.unionByName(frame)
    found: dict[str, Any] = {"feed": feed}
    exec(code, found)
    frame: DataFrame = found["joined"]
    rows = frame.where("operation = 'completed'").collect()
    assert all(bytes(row["body"]) == f"body of {row['messageId']}".encode() for row in rows)
    return [(row["entity"], row["subscription"], row["messageId"]) for row in rows]


def test_of_queues_topics_schedules_forwards_and_letters_sent_again(
    spark: SparkSession, bus: Bus
) -> None:
    admin, server = bus.admin, bus.server
    topic = admin.make_topic()
    for name in ("one", "two"):
        admin.make_subscription(topic, name=name)
    queue, target = admin.make_queue(), admin.make_queue()
    to_queue = admin.make_queue(forward_to=target)
    to_topic = admin.make_queue(forward_to=str(topic))
    # Numbers of the entities run apart, or one would pass for the other.
    bus.to_queue(target, *(f"early {number}" for number in range(3)))
    bus.from_queue(target, *(f"early {number}" for number in range(3)))

    bus.to_queue(queue, "plain", "letter")
    bus.to_queue(queue, "later", is_scheduled=True)
    bus.to_topic(topic, "published")
    bus.to_topic(topic, "published later", is_scheduled=True)
    bus.to_queue(to_queue, "forwarded")
    bus.to_queue(to_queue, "forwarded later", is_scheduled=True)
    bus.to_queue(to_topic, "forwarded to a topic")
    bus.from_queue(queue, "plain", "letter", "later")
    bus.from_queue(target, "forwarded", "forwarded later")
    for name in ("one", "two"):
        topical = ("published", "published later", "forwarded to a topic")
        bus.from_subscription(topic, name, *topical)

    bus.to_queue(queue, "dead")
    with bus.client.get_queue_receiver(queue) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=WITHIN_S)
        receiver.dead_letter_message(message, reason="unpaid")
    with bus.client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
        [letter] = letters.peek_messages()
    with Client(server.connection_string) as client:
        client.resubmit(queue, [{"sequenceNumber": letter.sequence_number}])
    bus.from_queue(queue, "dead")

    found = joined(spark, bus, queue=queue, queue_target=target, topic=topic)
    assert sorted(found, key=str) == sorted(bus.outcomes, key=str)

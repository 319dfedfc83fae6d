"""What entities cost, counted as the official SDK and curl use them (R-COST-01)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import Bus, Topic, receive_one
from tests.support.rest import RestClient
from tests.support.server import Server

PING = "application/vnd.ms-servicebus-ping"


def usage(server: Server, path: str = "") -> dict[str, dict[str, Any]]:
    """What is counted, by entity."""
    with RestClient(server.connection_string) as client:
        reply = client.request("GET", f"{path}/$usage")
    assert reply.status == 200, reply.body
    told = json.loads(reply.body)
    assert 0 < told["since"] <= told["now"]
    return {each["entity"]: each for each in told["entities"]}


async def test_sends_receives_empty_receives_requests_and_bytes_are_counted(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)])
        ping = ServiceBusMessage(b"", content_type=PING, time_to_live=timedelta(seconds=1))
        await sender.send_messages(ping)
    before = usage(server, f"/{queue}")[queue]
    assert (before["sends"], before["pings"]) == (3, 1)
    assert 300 < before["bytesIn"] < 2_000
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
        assert len(await receiver.peek_messages(2)) == 2
    after = usage(server, f"/{queue}")[queue]
    assert after["receives"] >= 1 and after["bytesOut"] > 100
    assert after["managementRequests"] == before["managementRequests"] + 2, "a renewal and a peek"
    assert after["resubmissions"] == 0


async def test_an_empty_receive_counts_when_its_wait_ends(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    over_amqp, over_http = administration.make_queue(), administration.make_queue()
    async with open_bus(server).receiver(over_amqp) as receiver:
        assert await receiver.receive_messages(1, 0.5) == []
    with RestClient(server.connection_string) as client:
        client.begin("DELETE", f"/{over_http}/messages/head?timeout=1")
        assert usage(server)[over_http]["emptyReceives"] == 0
        assert (await asyncio.to_thread(client.reply)).status == 204
    counted = usage(server)
    assert counted[over_amqp]["emptyReceives"] == counted[over_http]["emptyReceives"] == 1
    assert counted[over_http]["receives"] == 0


async def test_a_topic_is_counted_with_its_subscriptions_and_a_subscription_alone(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    topic = administration.make_topic()
    administration.client.create_subscription(topic, "s")
    bus = open_bus(server)
    await bus.send(Topic(topic), ServiceBusMessage("tea"))
    subscription = f"{topic}/Subscriptions/s"
    both = usage(server, f"/{topic}")
    assert {name: each["kind"] for name, each in both.items()} == {
        topic: "topic",
        subscription: "subscription",
    }
    assert both[topic]["sends"] == 1
    administration.client.get_rule(topic, "s", "$Default")
    alone = usage(server, f"/{topic}/subscriptions/s")
    assert list(alone) == [subscription]
    requests = both[subscription]["managementRequests"]
    assert alone[subscription]["managementRequests"] == requests + 1

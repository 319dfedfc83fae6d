"""Pings of paired clients: whether a message could be stored now, and nothing more (R-PAIR-07)."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError

from tests.support import feed
from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic, receive_none, texts
from tests.support.rest import RestClient
from tests.support.server import Server

PING = "application/vnd.ms-servicebus-ping"


def ping(body: bytes = b"", **fields: object) -> ServiceBusMessage:
    return ServiceBusMessage(body, content_type=PING, **fields)


async def test_r_pair_07_a_ping_is_accepted_and_shown_to_nobody(
    bus: Bus, server: Server, administration: Administration
) -> None:
    """R-PAIR-07."""
    queue = administration.make_queue(
        requires_duplicate_detection=True, dead_lettering_on_message_expiration=True
    )
    short = timedelta(seconds=1)
    await bus.send(queue, ping(message_id="1", time_to_live=short), ping(message_id="1"))
    async with bus.sender(queue) as sender:
        await sender.send_messages([ping(b"text"), ServiceBusMessage("kept", message_id="1")])
    assert texts(await bus.peek(queue)) == ["kept"]
    counts = administration.counts(queue)
    assert (counts.total_message_count, counts.dead_letter_message_count) == (1, 0)
    with RestClient(server.connection_string) as client:
        assert client.send(queue, b"", headers={"Content-Type": PING}).status == 201
        assert [each["operation"] for each in feed.events(client, queue)] == ["enqueued"]
        used = client.request("GET", f"/{queue}/$usage").body
    assert b'"pings":4' in used.replace(b" ", b"") and b'"sends":1' in used.replace(b" ", b"")
    assert texts(await bus.receive(queue)) == ["kept"]
    async with bus.receiver(queue) as receiver:
        await receive_none(receiver)
    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        await receive_none(receiver, 0.5)


async def test_r_pair_07_a_ping_reaches_no_subscription(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    """R-PAIR-07."""
    await bus.send(topic, ping(), ServiceBusMessage("after"))
    assert texts(await bus.receive(subscription)) == ["after"]
    assert await bus.peek(subscription) == []


async def test_r_pair_07_a_ping_to_a_queue_with_sessions_opens_none(
    bus: Bus, administration: Administration
) -> None:
    """R-PAIR-07."""
    queue = administration.make_queue(requires_session=True)
    await bus.send(queue, ping(session_id=str(uuid4())), ping())
    assert await bus.sessions(queue) == []


async def test_r_pair_07_a_ping_is_refused_where_a_message_would_be(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-PAIR-07."""
    administration.update(queue, status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError):
        await bus.send(queue, ping())

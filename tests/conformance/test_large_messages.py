"""Entities that take messages of a size of their own: MaxMessageSizeInKilobytes on every way in."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, receive_one
from tests.support.rest import BATCH, RestClient
from tests.support.server import Server
from tests.support.transacting import Transacting

MB = 1 << 20
LARGE = b"large " * (MB // 4)  # 1.5 MB
OVERHEAD = 1_000


def body_of(message: Any) -> bytes:
    return b"".join(message.body)


async def test_a_queue_takes_messages_up_to_its_own_size(
    bus: Bus, administration: Administration
) -> None:
    queue = administration.make_queue(max_message_size_in_kilobytes=2_048)
    assert administration.client.get_queue(queue).max_message_size_in_kilobytes == 2_048
    async with bus.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage(LARGE))
        await sender.send_messages(ServiceBusMessage(b"x" * (2 * MB - OVERHEAD)))
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * (2 * MB)))
        await sender.send_messages(ServiceBusMessage("next"))
    async with bus.receiver(queue) as receiver:
        for size in (len(LARGE), 2 * MB - OVERHEAD, len("next")):
            message = await receive_one(receiver)
            assert len(body_of(message)) == size
            await receiver.complete_message(message)


@pytest.mark.long
async def test_a_message_of_a_hundred_megabytes(
    open_bus: Callable[..., Bus], administration: Administration
) -> None:
    """In one piece of well over a thousand frames."""
    queue = administration.make_queue(max_message_size_in_kilobytes=102_400)
    bus = open_bus("sync")
    body = b"x" * (100 * MB - OVERHEAD)
    await bus.send(queue, ServiceBusMessage(body))
    async with bus.receiver(queue) as receiver:
        assert body_of(await receive_one(receiver)) == body


async def test_a_subscription_takes_what_its_topic_takes(
    bus: Bus, administration: Administration
) -> None:
    topic = administration.make_topic(max_message_size_in_kilobytes=1_024)
    subscription = administration.make_subscription(topic, requires_session=True)
    with pytest.raises(MessageSizeExceededError):
        await bus.send(topic, ServiceBusMessage(LARGE, session_id="s"))
    administration.update(topic, max_message_size_in_kilobytes=102_400)
    await bus.send(topic, ServiceBusMessage(LARGE, session_id="s"))
    async with bus.receiver(subscription, session_id="s") as receiver:
        assert body_of(await receive_one(receiver)) == LARGE
        state = b"x" * (MB - OVERHEAD)
        await bus.session(receiver).set_state(state)
        assert await bus.session(receiver).get_state() == state


async def test_a_batch_has_a_megabyte_at_most(bus: Bus, administration: Administration) -> None:
    """`com.microsoft:max-message-batch-size`, however large one message may be."""
    queue = administration.make_queue(max_message_size_in_kilobytes=102_400)
    async with bus.sender(queue) as sender:
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes == MB
        with pytest.raises(ServiceBusError):
            await sender.send_messages([ServiceBusMessage(b"x" * (MB // 2))] * 3)
        batch.add_message(ServiceBusMessage(b"x" * (MB - 2 * OVERHEAD)))
        await sender.send_messages(batch)
    assert administration.counts(queue).total_message_count == 1
    small = administration.make_queue()
    async with bus.sender(small) as sender:
        assert (await sender.create_message_batch()).max_size_in_bytes == 256 * 1_024


async def test_a_large_message_is_scheduled_as_it_is_sent(
    bus: Bus, administration: Administration
) -> None:
    """A request to `$management` has the bound of a batch."""
    queue = administration.make_queue(max_message_size_in_kilobytes=4_096)
    due = datetime.now(UTC) + timedelta(seconds=1)
    async with bus.sender(queue) as sender:
        await sender.schedule_messages(ServiceBusMessage(b"x" * (MB - 2 * OVERHEAD)), due)
        with pytest.raises(ServiceBusError):
            await sender.schedule_messages(ServiceBusMessage(LARGE), due)
        await sender.send_messages(ServiceBusMessage(LARGE, scheduled_enqueue_time_utc=due))
    async with bus.receiver(queue) as receiver:
        sizes = {len(body_of(await receive_one(receiver))) for _ in range(2)}
    assert sizes == {MB - 2 * OVERHEAD, len(LARGE)}


async def test_what_is_too_large_for_its_destination_is_a_dead_letter_of_its_source(
    bus: Bus, administration: Administration
) -> None:
    small = administration.make_queue()
    source = administration.make_queue(max_message_size_in_kilobytes=2_048, forward_to=small)
    await bus.send(source, ServiceBusMessage(LARGE), ServiceBusMessage("fits"))
    async with bus.receiver(small) as receiver:
        assert body_of(await receive_one(receiver)) == b"fits"
    async with bus.receiver(source, sub_queue=DEAD_LETTERS) as receiver:
        dead = await receive_one(receiver)
        assert body_of(dead) == LARGE
        assert "MessageSizeExceeded" in str(dead.dead_letter_reason)
        assert "262144 bytes" in str(dead.dead_letter_error_description)


async def test_a_large_dead_letter_is_sent_again(
    server: Server, bus: Bus, administration: Administration
) -> None:
    topic = administration.make_topic(max_message_size_in_kilobytes=2_048)
    subscription = administration.make_subscription(topic)
    small = administration.make_queue()
    await bus.send(topic, ServiceBusMessage(LARGE))
    async with bus.receiver(subscription) as receiver:
        message = await receive_one(receiver)
        await receiver.dead_letter_message(message)
    path = f"/{topic}/Subscriptions/{subscription.name}/$DeadLetterQueue/$resubmit"
    number = message.sequence_number
    with RestClient(server.connection_string) as client:

        def resubmit(**more: Any) -> list[Any]:
            asked = {"messages": [{"sequenceNumber": number}], **more}
            reply = client.request("POST", path, json.dumps(asked).encode())
            assert reply.status == 200, reply.body
            return list(json.loads(reply.body)["results"])

        [refused] = resubmit(to=small)
        assert "262144 bytes" in json.dumps(refused)
        resubmit()
    async with bus.receiver(subscription) as receiver:
        assert body_of(await receive_one(receiver)) == LARGE


def test_a_large_message_in_a_transaction(server: Server, administration: Administration) -> None:
    queue = administration.make_queue(max_message_size_in_kilobytes=2_048)
    with Transacting(server) as client:
        coordinator, sender = client.coordinator(), client.sender(queue)
        kept, thrown_away = client.declare(coordinator), client.declare(coordinator)
        client.send(sender, "k" * len(LARGE), kept)
        client.send(sender, "t" * len(LARGE), thrown_away)
        client.discharge(coordinator, kept)
        client.discharge(coordinator, thrown_away, fail=True)
    with RestClient(server.connection_string) as rest:
        reply = rest.take(queue)
        assert (reply.status, len(reply.body), reply.body[:1]) == (200, len(LARGE), b"k")
    assert administration.counts(queue).total_message_count == 0


def test_a_large_message_over_http(server: Server, administration: Administration) -> None:
    queue = administration.make_queue(max_message_size_in_kilobytes=4_096)
    small = administration.make_queue()
    administration.make_queue(max_message_size_in_kilobytes=16_384)  # what HTTP takes goes by it
    with RestClient(server.connection_string) as client:
        assert client.request("POST", f"/{queue}/messages", LARGE * 2).status == 201
        reply = client.request("DELETE", f"/{queue}/messages/head?timeout=5")
        assert (reply.status, reply.body) == (200, LARGE * 2)
        assert client.request("POST", f"/{queue}/messages", LARGE * 3).status == 403
    with RestClient(server.connection_string) as client:
        assert client.request("POST", f"/{small}/messages", LARGE).status == 403
    with RestClient(server.connection_string) as client:
        batch = json.dumps([{"Body": "x" * MB}]).encode()
        reply = client.request("POST", f"/{queue}/messages", batch, {"Content-Type": BATCH})
        assert (reply.status, f"{MB} bytes" in reply.detail) == (403, True)


def test_sizes_that_no_entity_can_have_are_refused(administration: Administration) -> None:
    for size_kb in (0, 255, 1_023, 102_401):
        for make in (administration.make_queue, administration.make_topic):
            with pytest.raises(HttpResponseError, match="between 1024 and 102400"):
                make(max_message_size_in_kilobytes=size_kb)


def test_a_size_is_taken_back(administration: Administration) -> None:
    queue = administration.make_queue(max_message_size_in_kilobytes=2_048)
    administration.update(queue, max_message_size_in_kilobytes=256)
    assert administration.client.get_queue(queue).max_message_size_in_kilobytes == 256

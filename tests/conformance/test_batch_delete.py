"""Deleting many messages at once. No released SDK has the call, so it is made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.types import AMQPTypes
from azure.servicebus._pyamqp.utils import amqp_long_value

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Reply, gather_messages, manage, receive_one, texts


async def delete(receiver: Any, count: int, before: datetime | None = None) -> Reply:
    """wire §6.2: batch-delete-messages."""
    instant = before or datetime.now(UTC)
    timestamp = {"TYPE": AMQPTypes.timestamp, "VALUE": int(instant.timestamp() * 1000)}
    body = {"message-count": count, "enqueued-time-utc": timestamp}
    return await manage(receiver, "batch-delete-messages", body)


async def test_the_oldest_go_first(bus: Bus, queue: str, administration: Administration) -> None:
    """semantics B §11."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])

    async with bus.receiver(queue) as receiver:
        reply = await delete(receiver, 4, datetime.now(UTC) + timedelta(seconds=1))
        assert (reply.status, reply.value[b"message-count"]) == (200, 4)
        assert texts(await receiver.peek_messages(max_message_count=20)) == [
            f"{n}" for n in range(4, 10)
        ]
    assert administration.counts(queue).active_message_count == 6


async def test_purging_is_deleting_until_nothing_is_left(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """semantics B §11: then the answer is 204, and says why (wire §6.2)."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(b"x" * 10) for _ in range(1000)])
        await sender.send_messages([ServiceBusMessage(b"x" * 10) for _ in range(500)])

    deleted = 0
    async with bus.receiver(queue) as receiver:
        limit = datetime.now(UTC) + timedelta(seconds=1)
        while (reply := await delete(receiver, 4000, limit)).status == 200:
            deleted += reply.value[b"message-count"]
        assert (reply.status, reply.condition) == (204, "com.microsoft:message-not-found")
    assert deleted == 1500
    assert administration.counts(queue).total_message_count == 0


async def test_locked_messages_are_left_alone(bus: Bus, queue: str) -> None:
    """semantics B §11."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(3)))

    async with bus.receiver(queue) as receiver:
        held = await receive_one(receiver)
        reply = await delete(receiver, 10, datetime.now(UTC) + timedelta(seconds=1))
        assert reply.value[b"message-count"] == 2
        await receiver.abandon_message(held)
        [left] = await gather_messages(receiver, 1)
        await receiver.complete_message(left)
    assert await bus.peek(queue) == []


async def test_newer_messages_are_left_alone(bus: Bus, queue: str) -> None:
    """semantics B §11: only what was enqueued before the instant given."""
    await bus.send(queue, ServiceBusMessage("new"))

    async with bus.receiver(queue) as receiver:
        reply = await delete(receiver, 10, datetime.now(UTC) - timedelta(minutes=1))
        assert reply.status == 204
    assert texts(await bus.peek(queue)) == ["new"]


async def test_dead_letters_are_purged_in_their_own_queue(bus: Bus, queue: str) -> None:
    """R-DLQ-02."""
    await bus.send(queue, ServiceBusMessage("dead"), ServiceBusMessage("alive"))
    async with bus.receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver))

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        reply = await delete(receiver, 10, datetime.now(UTC) + timedelta(seconds=1))
        assert reply.value[b"message-count"] == 1
    assert texts(await bus.peek(queue)) == ["alive"]


async def test_a_count_below_one_is_refused(bus: Bus, queue: str) -> None:
    """R-SETTLE-02."""
    async with bus.receiver(queue) as receiver:
        reply = await delete(receiver, 0)
        assert reply.status == 400
        assert "message-count" in str(reply.description)


async def test_an_unknown_operation_is_refused_by_name(bus: Bus, queue: str) -> None:
    """R-SETTLE-02: the link stays good."""
    async with bus.receiver(queue) as receiver:
        reply = await manage(receiver, "juggle", {"balls": amqp_long_value(3)})
        assert reply.status in {400, 501}
        assert "juggle" in str(reply.description)
        assert "TrackingId:" in str(reply.description)
        assert (
            await manage(
                receiver,
                "peek-message",
                {
                    "from-sequence-number": amqp_long_value(1),
                    "message-count": 1,
                },
            )
        ).status == 204

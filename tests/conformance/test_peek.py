"""Looking without taking."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState

from tests.support.bus import DEAD_LETTERS, Bus, gather_messages, receive_one, texts


async def test_peek_shows_active_locked_deferred_and_scheduled(bus: Bus, queue: str) -> None:
    """semantics B §10: in the order of their numbers, and never the dead letters."""
    await bus.send(queue, *(ServiceBusMessage(name) for name in ("deferred", "locked", "dead")))
    async with bus.sender(queue) as sender:
        due = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        await sender.send_messages(ServiceBusMessage("active"))

    async with bus.receiver(queue) as receiver:
        deferred, locked, dead = await gather_messages(receiver, 3)
        await receiver.defer_message(deferred)
        await receiver.dead_letter_message(dead)

        peeked = await receiver.peek_messages(max_message_count=10, sequence_number=1)
        assert texts(peeked) == ["deferred", "locked", "scheduled", "active"]
        assert [message.state for message in peeked] == [
            ServiceBusMessageState.DEFERRED,
            ServiceBusMessageState.ACTIVE,
            ServiceBusMessageState.SCHEDULED,
            ServiceBusMessageState.ACTIVE,
        ]
        numbers = [message.sequence_number for message in peeked]
        assert numbers == sorted(numbers)
        assert all(message.locked_until_utc is None for message in peeked)
        with pytest.raises(ValueError, match="peeked"):
            await receiver.complete_message(peeked[1])
        await receiver.complete_message(locked)
    assert texts(await bus.peek(queue, sub_queue=DEAD_LETTERS)) == ["dead"]


async def test_peek_goes_on_from_where_it_was(bus: Bus, queue: str) -> None:
    """semantics B §10: from a number, that number included."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])

    async with bus.receiver(queue) as receiver:
        first = await receiver.peek_messages(max_message_count=4)
        second = await receiver.peek_messages(max_message_count=4)
        third = await receiver.peek_messages(max_message_count=4)
        assert [texts(page) for page in (first, second, third)] == [
            ["0", "1", "2", "3"],
            ["4", "5", "6", "7"],
            ["8", "9"],
        ]
        assert await receiver.peek_messages(max_message_count=4) == []
        from_third = await receiver.peek_messages(
            max_message_count=2, sequence_number=first[2].sequence_number
        )
        assert texts(from_third) == ["2", "3"]


async def test_peek_changes_nothing(bus: Bus, queue: str) -> None:
    """semantics B §10: the count is untouched and the message can be received."""
    await bus.send(queue, ServiceBusMessage("x", application_properties={"p": 1}))

    for _ in range(3):
        [message] = await bus.peek(queue)
        assert message.delivery_count == 0
        assert message.application_properties == {b"p": 1}
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert message.delivery_count == 0
        await receiver.complete_message(message)


async def test_peek_of_an_empty_queue_is_empty(bus: Bus, queue: str) -> None:
    assert await bus.peek(queue) == []


async def test_peek_of_many_large_messages_returns_what_fits(bus: Bus, queue: str) -> None:
    """semantics B §10: fewer than asked for is normal; paging finds them all."""
    async with bus.sender(queue) as sender:
        for n in range(8):
            await sender.send_messages(ServiceBusMessage(b"x" * 100_000, message_id=f"{n}"))

    found: list[str] = []
    async with bus.receiver(queue) as receiver:
        while page := await receiver.peek_messages(max_message_count=100):
            found += [message.message_id for message in page]
    assert found == [f"{n}" for n in range(8)]

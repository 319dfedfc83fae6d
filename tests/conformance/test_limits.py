"""What is too large is refused with the right exception, and the link stays good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from tests.support.bus import Bus, texts


async def test_a_message_over_the_limit_is_refused(bus: Bus, queue: str) -> None:
    """R-SETTLE-02: 256 KB with everything in it."""
    async with bus.sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 262_144))
        await sender.send_messages(ServiceBusMessage("next"))
    assert texts(await bus.peek(queue)) == ["next"]


async def test_a_message_just_under_the_limit_is_taken(bus: Bus, queue: str) -> None:
    body = b"x" * (262_144 - 200)
    await bus.send(queue, ServiceBusMessage(body))
    [message] = await bus.receive(queue)
    assert b"".join(message.body) == body


async def test_headers_over_64_kb_are_refused(bus: Bus, queue: str) -> None:
    """R-DLQ-05: an oversize header at send is refused, not dead-lettered."""
    wide: dict[str | bytes, object] = {f"p{n}": "w" * 10_000 for n in range(7)}
    async with bus.sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage("x", application_properties=wide))
        del wide["p6"]
        await sender.send_messages(ServiceBusMessage("ok", application_properties=wide))
    assert texts(await bus.peek(queue)) == ["ok"]


async def test_one_property_over_32_kb_is_refused(bus: Bus, queue: str) -> None:
    async with bus.sender(queue) as sender:
        wide: dict[str | bytes, object] = {"p": "w" * 40_000}
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage("x", application_properties=wide))
    assert await bus.peek(queue) == []


@pytest.mark.parametrize("field", ["message_id", "session_id"])
async def test_an_id_over_128_characters_is_refused(bus: Bus, queue: str, field: str) -> None:
    """semantics B §11: the SDK checks most of these itself, so the id is set behind its back."""
    message = ServiceBusMessage("x")
    properties = message.raw_amqp_message.properties
    assert properties is not None
    setattr(properties, "message_id" if field == "message_id" else "group_id", "i" * 129)
    async with bus.sender(queue) as sender:
        with pytest.raises(ServiceBusError):
            await sender.send_messages(message)
        await sender.send_messages(ServiceBusMessage("next"))
    assert texts(await bus.peek(queue)) == ["next"]


async def test_an_oversize_message_cannot_be_scheduled_either(bus: Bus, queue: str) -> None:
    """The same limits on every way in: plain, in a batch, scheduled."""
    wide: dict[str | bytes, object] = {f"p{n}": "w" * 10_000 for n in range(7)}
    async with bus.sender(queue) as sender:
        message = ServiceBusMessage("x", application_properties=wide)
        with pytest.raises(ServiceBusError) as refused:
            await sender.schedule_messages(message, datetime.now(UTC) + timedelta(hours=1))
        assert "TrackingId:" in str(refused.value)
    assert await bus.peek(queue) == []

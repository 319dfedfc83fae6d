"""Messages for later, by both ways of sending them, and taking them back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.support.administration import Administration
from tests.support.bus import Bus, gather_messages, receive_one, text, texts

SOON = timedelta(seconds=3)
LATER = timedelta(hours=1)


async def test_a_message_scheduled_by_annotation_comes_when_it_is_due(bus: Bus, queue: str) -> None:
    """semantics B §4: a plain send with a future enqueue time."""
    due = datetime.now(UTC).replace(microsecond=0) + SOON
    sent = ServiceBusMessage("later", scheduled_enqueue_time_utc=due, message_id="m")
    await bus.send(queue, sent)

    [waiting] = await bus.peek(queue)
    assert waiting.state is ServiceBusMessageState.SCHEDULED
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert datetime.now(UTC) >= due
        assert (text(message), message.message_id, message.delivery_count) == ("later", "m", 0)
        assert message.enqueued_time_utc >= due
        assert message.scheduled_enqueue_time_utc == due
        # A receiver is told that it was scheduled, as in Azure; a peek tells what it is now.
        assert message.state is ServiceBusMessageState.SCHEDULED
        assert [each.state for each in await bus.peek(queue)] == [ServiceBusMessageState.ACTIVE]
        await receiver.complete_message(message)


async def test_a_subscription_is_told_that_a_message_was_scheduled(
    bus: Bus, administration: Administration
) -> None:
    """semantics B §4. A time that is over by the time of the send schedules nothing."""
    topic = administration.make_topic()
    subscription = administration.make_subscription(topic, "sys.State = 0")
    now = datetime.now(UTC)
    await bus.send(
        topic,
        ServiceBusMessage("past", scheduled_enqueue_time_utc=now - LATER),
        ServiceBusMessage("soon", scheduled_enqueue_time_utc=now + SOON),
    )
    async with bus.receiver(subscription) as receiver:
        messages = await gather_messages(receiver, 2)
        assert {text(each): each.state for each in messages} == {
            "past": ServiceBusMessageState.ACTIVE,
            "soon": ServiceBusMessageState.SCHEDULED,
        }
        [soon] = [each for each in messages if text(each) == "soon"]
        await receiver.defer_message(soon)
        [soon] = await receiver.receive_deferred_messages([soon.sequence_number])
        assert soon.state is ServiceBusMessageState.DEFERRED


async def test_scheduled_messages_get_new_numbers_when_they_become_active(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """semantics B §4: the number given at scheduling is valid only while scheduled."""
    due = datetime.now(UTC) + SOON
    async with bus.sender(queue) as sender:
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("first"), ServiceBusMessage("second")], due
        )
        await sender.send_messages(ServiceBusMessage("sent meanwhile"))
    assert len(set(numbers)) == 2
    counts = administration.counts(queue)
    assert (counts.scheduled_message_count, counts.active_message_count) == (2, 1)

    async with bus.receiver(queue) as receiver:
        messages = await gather_messages(receiver, 3)
        assert texts(messages) == ["sent meanwhile", "first", "second"]
        active = [message.sequence_number for message in messages]
        assert active == sorted(active)
        assert not set(active) & set(numbers)
        for message in messages:
            await receiver.complete_message(message)
    assert administration.counts(queue).scheduled_message_count == 0


async def test_a_scheduled_message_can_be_cancelled(bus: Bus, queue: str) -> None:
    """semantics B §4."""
    due = datetime.now(UTC) + LATER
    async with bus.sender(queue) as sender:
        numbers = await sender.schedule_messages([ServiceBusMessage(f"{n}") for n in range(3)], due)
        [single] = await sender.schedule_messages(ServiceBusMessage("single"), due)
        await sender.cancel_scheduled_messages(numbers[:2])
        await sender.cancel_scheduled_messages(single)
    assert texts(await bus.peek(queue)) == ["2"]


async def test_cancelling_what_is_not_scheduled_is_refused(bus: Bus, queue: str) -> None:
    """R-SETTLE-02: unknown, cancelled before, or active: not found."""
    due = datetime.now(UTC) + LATER
    async with bus.sender(queue) as sender:
        [number] = await sender.schedule_messages(ServiceBusMessage("x"), due)
        await sender.send_messages(ServiceBusMessage("active"))
        await sender.cancel_scheduled_messages(number)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(number)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(number + 1)
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(number + 1000)
    assert texts(await bus.peek(queue)) == ["active"]


async def test_a_time_that_has_passed_means_now(bus: Bus, queue: str) -> None:
    """semantics B §4: delivered at once, at the tail."""
    past = datetime.now(UTC) - timedelta(minutes=1)
    async with bus.sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("first"))
        await sender.schedule_messages(ServiceBusMessage("second"), past)
        await sender.send_messages(ServiceBusMessage("third", scheduled_enqueue_time_utc=past))
    assert texts(await bus.receive(queue, 3)) == ["first", "second", "third"]


async def test_time_to_live_counts_from_the_scheduled_time(bus: Bus, queue: str) -> None:
    """semantics B §3: a life shorter than the wait is not over before it began."""
    due = datetime.now(UTC) + SOON
    async with bus.sender(queue) as sender:
        message = ServiceBusMessage("brief", time_to_live=timedelta(seconds=2))
        await sender.schedule_messages(message, due)

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "brief"
        assert message.expires_at_utc >= due + timedelta(seconds=1.9)

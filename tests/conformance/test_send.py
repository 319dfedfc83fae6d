"""Sending: one message, a list, a batch, many at once; and that the order is kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from tests.support.administration import Administration
from tests.support.bus import Bus, gather_messages, receive_none, receive_one, text, texts
from tests.support.server import Server


async def test_a_message_sent_is_received_and_completed(bus: Bus, queue: str) -> None:
    """R-SETTLE-01, R-SETTLE-09."""
    await bus.send(queue, ServiceBusMessage("order 1"))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "order 1"
        assert message.delivery_count == 0
        await receiver.complete_message(message)
        await receive_none(receiver)


async def test_a_list_arrives_in_the_order_of_the_list(bus: Bus, queue: str) -> None:
    """R-SETTLE-01: a list is one batch transfer, one disposition, one number for each message."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"order {n}") for n in range(20)])

    messages = await bus.receive(queue, 20)
    assert texts(messages) == [f"order {n}" for n in range(20)]
    numbers = [message.sequence_number for message in messages]
    assert numbers == list(range(numbers[0], numbers[0] + 20))


def fill(batch: ServiceBusMessageBatch) -> int:
    """Add messages of 4 KB until the SDK says that no more fit."""
    for count in itertools.count():
        try:
            batch.add_message(ServiceBusMessage(b"x" * 4096, message_id=f"m{count}"))
        except MessageSizeExceededError:
            return count
    raise AssertionError("unreachable")


async def test_a_batch_filled_to_its_limit_is_accepted(bus: Bus, queue: str) -> None:
    """The size that the server names at attach is the size that it takes (wire §4.6)."""
    async with bus.sender(queue) as sender:
        batch = await sender.create_message_batch()
        count = fill(batch)
        assert count > 50
        await sender.send_messages(batch)

    assert len(await bus.receive(queue, count)) == count


async def test_a_batch_is_stored_whole_or_not_at_all(bus: Bus, queue: str) -> None:
    """R-SETTLE-01, R-SETTLE-02: one message of the batch has a header over the limit."""
    async with bus.sender(queue) as sender:
        good = ServiceBusMessage("good")
        bad = ServiceBusMessage("bad", application_properties={"wide": "w" * 70_000})
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages([good, bad, good])
        # the link is still good for the next message
        await sender.send_messages(ServiceBusMessage("after"))

    assert texts(await bus.peek(queue)) == ["after"]


async def test_messages_come_out_in_the_order_they_went_in(bus: Bus, queue: str) -> None:
    async with bus.sender(queue) as sender:
        for n in range(50):
            await sender.send_messages(ServiceBusMessage(f"{n}"))
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(50, 100)])

    async with bus.receiver(queue) as receiver:
        messages = await gather_messages(receiver, 100)
        assert texts(messages) == [f"{n}" for n in range(100)]


async def test_a_thousand_sends_at_once_are_all_accepted(
    open_bus: Callable[..., Bus], queue: str, administration: Administration
) -> None:
    """R-SETTLE-03, R-SETTLE-12: the unbounded burst."""
    bus = open_bus("async")
    senders = await asyncio.gather(*(bus.open_sender(queue) for _ in range(20)))
    await asyncio.gather(
        *(
            senders[n % len(senders)].send_messages(ServiceBusMessage(f"{n}", message_id=f"{n}"))
            for n in range(1000)
        )
    )

    assert administration.counts(queue).active_message_count == 1000
    messages = await bus.receive(queue, 1000, prefetch_count=300)
    assert sorted(int(message.message_id) for message in messages) == list(range(1000))


async def test_a_burst_with_a_bounded_number_in_flight(
    open_bus: Callable[..., Bus], queue: str
) -> None:
    """R-SETTLE-12: the semaphore pattern."""
    bus = open_bus("async")
    senders = await asyncio.gather(*(bus.open_sender(queue) for _ in range(10)))
    slots = asyncio.Semaphore(10)

    async def send(n: int) -> None:
        async with slots:
            await senders[n % 10].send_messages(ServiceBusMessage(f"{n}"))

    await asyncio.gather(*(send(n) for n in range(200)))
    assert len(await bus.receive(queue, 200)) == 200


async def test_a_sender_on_default_settings_needs_no_option(
    open_bus: Callable[..., Bus], queue: str, server: Server
) -> None:
    """The connection string alone is enough: retries, timeouts and the rest as the SDK ships."""
    bus = open_bus("sync", retry_total=3)
    await bus.send(queue, ServiceBusMessage("plain"))
    assert texts(await bus.receive(queue)) == ["plain"]


async def test_two_senders_keep_their_own_order(bus: Bus, queue: str) -> None:
    one, two = await bus.open_sender(queue), await bus.open_sender(queue)

    async def send(sender: object, name: str) -> None:
        for n in range(25):
            await sender.send_messages(ServiceBusMessage(f"{name}{n}"))  # type: ignore[attr-defined]

    await asyncio.gather(send(one, "a"), send(two, "b"))

    received = texts(await bus.receive(queue, 50))
    assert [name for name in received if name[0] == "a"] == [f"a{n}" for n in range(25)]
    assert [name for name in received if name[0] == "b"] == [f"b{n}" for n in range(25)]


async def test_an_unread_receive_ends_when_its_time_is_over(bus: Bus, queue: str) -> None:
    """R-DLQ-09: an empty queue answers with nothing, and not with an error."""
    async with bus.receiver(queue) as receiver:
        try:
            await receive_none(receiver, wait_s=0.5)
        except OperationTimeoutError:
            pytest.fail("an empty queue is not a time-out")

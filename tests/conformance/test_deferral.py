"""Messages set aside, and fetched by their sequence number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, gather_messages, receive_none, text, texts
from tests.support.waiting import until, until_past


async def defer(receiver: Any, count: int) -> list[int]:
    """Set the next messages aside and return their numbers."""
    messages = await gather_messages(receiver, count)
    assert len(messages) == count
    for message in messages:
        await receiver.defer_message(message)
    return [message.sequence_number for message in messages]


async def test_a_deferred_message_waits_until_it_is_asked_for(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-SETTLE-09: the number stays the same, and deferring counts as a delivery that failed."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(3)))

    async with bus.receiver(queue) as receiver:
        numbers = await defer(receiver, 3)
        await receive_none(receiver)
        assert administration.counts(queue).active_message_count == 3

        # in the order asked for
        fetched = await receiver.receive_deferred_messages(numbers[::-1])
        assert texts(fetched) == ["2", "1", "0"]
        for message, number in zip(fetched, numbers[::-1], strict=True):
            assert message.sequence_number == number
            assert message.delivery_count == 1
            assert message.state is ServiceBusMessageState.DEFERRED
            assert message.lock_token is not None
            await receiver.complete_message(message)
    assert administration.counts(queue).active_message_count == 0


@pytest.mark.parametrize("flavour_of_return", ["abandon", "defer"])
async def test_a_deferred_message_given_back_is_still_deferred(
    bus: Bus, queue: str, flavour_of_return: str
) -> None:
    """R-SETTLE-07, R-SETTLE-09."""
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        [message] = await receiver.receive_deferred_messages(number)
        await getattr(receiver, f"{flavour_of_return}_message")(message)
        await receive_none(receiver)
        [again] = await receiver.receive_deferred_messages([number])
        assert again.delivery_count == 2
        await receiver.complete_message(again)


async def test_a_deferred_message_can_be_dead_lettered(bus: Bus, queue: str) -> None:
    """R-SETTLE-09, R-DLQ-04."""
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        [message] = await receiver.receive_deferred_messages(number)
        await receiver.dead_letter_message(message, reason="r", error_description="d")
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert (text(dead), dead.dead_letter_reason, dead.delivery_count) == ("x", "r", 1)


async def test_the_lock_of_a_fetched_message_is_renewed(bus: Bus, queue: str) -> None:
    """R-SETTLE-06."""
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        [message] = await receiver.receive_deferred_messages(number)
        ends = message.locked_until_utc
        assert await receiver.renew_message_lock(message) >= ends
        await receiver.complete_message(message)


async def test_a_fetched_message_whose_lock_ends_can_be_fetched_again(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-SETTLE-07."""
    queue = make_queue(lock_s=5)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        [message] = await receiver.receive_deferred_messages(number)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(number)
        await until_past(message.locked_until_utc)
        await receive_none(receiver)
        [again] = await receiver.receive_deferred_messages(number)
        assert again.delivery_count == 2


async def test_fetching_and_deleting_in_one_step(bus: Bus, queue: str) -> None:
    """R-SETTLE-05, R-SETTLE-09."""
    await bus.send(queue, ServiceBusMessage("x"))
    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)

    async with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        [message] = await receiver.receive_deferred_messages(number)
        assert text(message) == "x"
    assert await bus.peek(queue) == []


async def test_one_unknown_number_fails_the_whole_request(bus: Bus, queue: str) -> None:
    """semantics B §5: and the known one is not locked by it."""
    await bus.send(queue, ServiceBusMessage("deferred"), ServiceBusMessage("active"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([number, number + 1000])
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([number + 1])  # there, but not deferred
        [message] = await receiver.receive_deferred_messages([number])
        await receiver.complete_message(message)


async def test_deferring_at_the_last_delivery_dead_letters(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-SETTLE-08: a deferral counts, so with one delivery allowed it is the end."""
    queue = make_queue(max_delivery_count=1)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        [number] = await defer(receiver, 1)
        with pytest.raises(ServiceBusError):
            await receiver.receive_deferred_messages(number)
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_a_message_can_be_deferred_in_the_dead_letter_queue(bus: Bus, queue: str) -> None:
    """R-DLQ-02: it behaves as a queue."""
    await bus.send(queue, ServiceBusMessage("x"))
    async with bus.receiver(queue) as receiver:
        [message] = await gather_messages(receiver, 1)
        await receiver.dead_letter_message(message, reason="r")

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        [number] = await defer(receiver, 1)
        await receive_none(receiver)
        [again] = await receiver.receive_deferred_messages(number)
        assert text(again) == "x"
        await receiver.complete_message(again)

    async def empty() -> bool:
        return await bus.peek(queue, sub_queue=DEAD_LETTERS) == []

    await until("the dead-letter queue is empty", empty)

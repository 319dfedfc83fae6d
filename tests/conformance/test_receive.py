"""Receiving: the two modes, waiting, prefetch, competing receivers, and leaving politely."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError

from tests.support.administration import Administration
from tests.support.bus import (
    DEAD_LETTERS,
    Bus,
    gather_messages,
    receive_none,
    receive_one,
    text,
    texts,
)
from tests.support.waiting import until, until_past

pytestmark = pytest.mark.both_kinds


async def test_receive_and_delete_removes_what_it_hands_out(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-SETTLE-05."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}", partition_key="k") for n in range(3)))

    async with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        first = await receive_one(receiver)
        assert text(first) == "0"
        with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
            await receiver.complete_message(first)
    assert administration.counts(queue).active_message_count == 2


async def test_a_locked_message_goes_to_nobody_else(bus: Bus, queue: str) -> None:
    """R-SETTLE-06: others get the next unlocked ones."""
    await bus.send(queue, *(ServiceBusMessage(n, partition_key="k") for n in ("one", "two")))
    first = await bus.open_receiver(queue)
    second = await bus.open_receiver(queue)

    mine = await receive_one(first)
    theirs = await receive_one(second)
    assert (text(mine), text(theirs)) == ("one", "two")
    await receive_none(second, wait_s=0.5)

    await first.complete_message(mine)
    await second.complete_message(theirs)


async def test_the_lock_lasts_what_the_queue_says(bus: Bus, make_queue: Callable[..., str]) -> None:
    """R-SETTLE-06, R-PRE-04: locked-until is in each message."""
    queue = make_queue(lock_s=45)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        before = datetime.now(UTC)
        message = await receive_one(receiver)
        lasts = message.locked_until_utc - before
        assert timedelta(seconds=43) < lasts < timedelta(seconds=47)
        await receiver.abandon_message(message)


async def test_the_default_lock_lasts_thirty_seconds(bus: Bus, queue: str) -> None:
    """R-SETTLE-06."""
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        before = datetime.now(UTC)
        message = await receive_one(receiver)
        lasts = message.locked_until_utc - before
        assert timedelta(seconds=28) < lasts < timedelta(seconds=32)


async def test_two_receivers_share_a_queue_without_overlap(bus: Bus, queue: str) -> None:
    """R-SETTLE-06: each message has one holder."""
    count = 200
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(count)])
    seen: list[str] = []

    async def work(receiver: object) -> int:
        done = 0
        while len(seen) < count:
            for message in await receiver.receive_messages(  # type: ignore[attr-defined]
                max_message_count=10, max_wait_time=1
            ):
                seen.append(text(message))
                await receiver.complete_message(message)  # type: ignore[attr-defined]
                done += 1
        return done

    receivers = [await bus.open_receiver(queue) for _ in range(2)]
    shares = await asyncio.gather(*(work(receiver) for receiver in receivers))
    assert sorted(seen, key=int) == [f"{n}" for n in range(count)]
    assert sum(shares) == count
    assert await bus.peek(queue) == []


async def test_a_waiting_receiver_gets_a_message_at_once(bus: Bus, queue: str) -> None:
    """A message wakes a receive that is already waiting: no polling interval anywhere."""
    async with bus.receiver(queue) as receiver:
        waiting = asyncio.ensure_future(receive_one(receiver, wait_s=20))
        began = time.monotonic()
        await bus.send(queue, ServiceBusMessage("now"))
        message = await waiting
        assert time.monotonic() - began < 5
        await receiver.complete_message(message)


async def test_iterating_over_a_receiver_ends_with_its_wait(bus: Bus, queue: str) -> None:
    """R-PRE-01: the pull style of a for loop."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}", partition_key="k") for n in range(5)))

    seen = []
    async with bus.receiver(queue, max_wait_time=2) as receiver:
        async for message in receiver:
            seen.append(text(message))
            await receiver.complete_message(message)
    assert seen == ["0", "1", "2", "3", "4"]


async def test_prefetched_messages_are_locked_ahead_of_demand(bus: Bus, queue: str) -> None:
    """R-PRE-01, R-PRE-02: another receiver does not see what lies in the buffer."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])
    eager = await bus.open_receiver(queue, prefetch_count=20)
    first = await receive_one(eager)

    other = await bus.open_receiver(queue)
    await receive_none(other)

    # closing hands the buffer back without counting it as a failure (AMQP released)
    await eager.complete_message(first)
    await eager.close()
    rest = await gather_messages(other, 9)
    assert texts(rest) == [f"{n}" for n in range(1, 10)]
    assert {message.delivery_count for message in rest} == {0}


async def test_prefetch_in_receive_and_delete_takes_messages_from_the_queue(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-PRE-02: what was prefetched is gone from the queue."""
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(10)])

    async with bus.receiver(queue, receive_mode="receiveanddelete", prefetch_count=10) as receiver:
        assert text(await receive_one(receiver)) == "0"

        async def empty() -> bool:
            return administration.counts(queue).active_message_count == 0

        await until("the queue is empty", empty)
        assert texts(await gather_messages(receiver, 9)) == [f"{n}" for n in range(1, 10)]


async def test_without_prefetch_only_what_is_asked_for_is_locked(bus: Bus, queue: str) -> None:
    """R-PRE-01: 0 switches it off."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}", partition_key="k") for n in range(3)))
    one = await bus.open_receiver(queue)
    other = await bus.open_receiver(queue)

    assert text(await receive_one(one)) == "0"
    assert texts(await gather_messages(other, 2)) == ["1", "2"]


async def test_a_lock_that_ends_in_the_prefetch_buffer_counts_as_abandoned(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-PRE-03, R-PRE-04, R-SETTLE-10."""
    queue = make_queue(lock_s=5, max_delivery_count=10)
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(3)))
    slow = await bus.open_receiver(queue, prefetch_count=2)
    first = await receive_one(slow)
    await slow.complete_message(first)

    # the other two wait in the buffer of a receiver that never comes back for them
    other = await bus.open_receiver(queue)
    await until_past(datetime.now(UTC) + timedelta(seconds=5))
    again = await gather_messages(other, 2)
    assert sorted(texts(again)) == ["1", "2"]
    assert {message.delivery_count for message in again} == {1}
    for message in again:
        await other.complete_message(message)

    # what still lies in the buffer says itself that it is stale
    stale = await slow.receive_messages(max_message_count=1, max_wait_time=1)
    for message in stale:
        assert message.locked_until_utc <= datetime.now(UTC)
        with pytest.raises(MessageLockLostError):
            await slow.complete_message(message)


async def test_a_message_that_always_expires_in_the_buffer_is_dead_lettered(
    open_bus: Callable[..., Bus], make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-PRE-03: "in the end it is dead-lettered"."""
    bus = open_bus("async")
    queue = make_queue(lock_s=5, max_delivery_count=1)
    await bus.send(queue, ServiceBusMessage("taken"), ServiceBusMessage("forgotten"))
    slow = await bus.open_receiver(queue, prefetch_count=5)
    await slow.complete_message(await receive_one(slow))

    async def dead() -> bool:
        return administration.counts(queue).dead_letter_message_count == 1

    await until("the forgotten message is dead-lettered", dead, within_s=15)
    [message] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert text(message) == "forgotten"
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_a_receiver_leaves_nothing_locked_that_it_did_not_return(
    bus: Bus, queue: str
) -> None:
    """A receive whose time is over, then a message, then close: the SDK drains and releases."""
    leaving = await bus.open_receiver(queue)
    await receive_none(leaving, wait_s=0.5)
    await bus.send(queue, ServiceBusMessage("late"))
    await leaving.close()

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver, wait_s=5)
        assert message.delivery_count == 0
        await receiver.complete_message(message)

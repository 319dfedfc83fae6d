"""The dead-letter queue: how messages get there and what can be done with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

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
from tests.support.waiting import until_past


async def dead_letter(bus: Bus, queue: str, *bodies: str) -> None:
    await bus.send(queue, *(ServiceBusMessage(body) for body in bodies))
    async with bus.receiver(queue) as receiver:
        for message in await gather_messages(receiver, len(bodies)):
            await receiver.dead_letter_message(message, reason="r", error_description="d")


async def test_the_founding_loop(bus: Bus, queue: str, administration: Administration) -> None:
    """R-DLQ-09, R-SETTLE-08: receive without waiting and abandon, until the queue is empty.

    The Python SDK takes no wait of zero, so this is the shortest that lets an answer arrive; the
    loop with a true zero is in node/receive.test.mjs and in test_amqp_clients.py.
    """
    await bus.send(queue, ServiceBusMessage("poison"))

    counts = []
    async with bus.receiver(queue) as receiver:
        while messages := await receiver.receive_messages(max_wait_time=0.5):
            for message in messages:
                counts.append(message.delivery_count)
                await receiver.abandon_message(message)
    assert counts == list(range(10))
    found = administration.counts(queue)
    assert (found.active_message_count, found.dead_letter_message_count) == (0, 1)

    [message] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert text(message) == "poison"
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert message.dead_letter_error_description
    assert message.delivery_count == 10


@pytest.mark.parametrize("most", [1, 3])
async def test_after_the_last_delivery_allowed_a_message_is_dead_lettered(
    bus: Bus, make_queue: Callable[..., str], most: int
) -> None:
    """R-SETTLE-08, R-DLQ-07."""
    queue = make_queue(max_delivery_count=most)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        for count in range(most):
            message = await receive_one(receiver)
            assert message.delivery_count == count
            await receiver.abandon_message(message)
        await receive_none(receiver)
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert (dead.dead_letter_reason, dead.delivery_count) == ("MaxDeliveryCountExceeded", most)


async def test_an_expired_lock_counts_towards_the_last_delivery(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-SETTLE-08."""
    queue = make_queue(lock_s=5, max_delivery_count=1)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await until_past(message.locked_until_utc)
        await receive_none(receiver)
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_the_delivery_count_can_be_very_high_but_not_off(
    make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-DLQ-07."""
    high = make_queue(max_delivery_count=2_147_483_647)
    assert administration.client.get_queue(high).max_delivery_count == 2_147_483_647
    with pytest.raises(HttpResponseError) as refused:
        make_queue(max_delivery_count=0)
    assert refused.value.status_code == 400
    assert "MaxDeliveryCount" in str(refused.value)


async def test_it_behaves_as_a_queue(bus: Bus, queue: str, administration: Administration) -> None:
    """R-DLQ-01, R-DLQ-02: peek, peek-lock, abandon, renew, complete."""
    await dead_letter(bus, queue, "one", "two")
    assert texts(await bus.peek(queue, sub_queue=DEAD_LETTERS)) == ["one", "two"]

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        one, two = await gather_messages(receiver, 2)
        assert (text(one), text(two)) == ("one", "two")
        await receiver.renew_message_lock(one)
        await receiver.abandon_message(one)
        await receiver.complete_message(two)
        again = await receive_one(receiver)
        assert text(again) == "one"
        await receiver.complete_message(again)
    assert administration.counts(queue).dead_letter_message_count == 0


async def test_the_count_does_not_rise_in_it_and_nothing_leaves_it(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-DLQ-02, R-DLQ-03: abandoned more often than the queue allows deliveries."""
    queue = make_queue(max_delivery_count=2)
    await dead_letter(bus, queue, "x")

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        for _ in range(5):
            message = await receive_one(receiver)
            assert message.delivery_count == 0
            await receiver.abandon_message(message)
    assert administration.counts(queue).dead_letter_message_count == 1


async def test_a_dead_letter_cannot_be_dead_lettered_again(bus: Bus, queue: str) -> None:
    """R-DLQ-02: refused, and the message is still there to be completed."""
    await dead_letter(bus, queue, "x")

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        message = await receive_one(receiver)
        with pytest.raises(ServiceBusError):
            await receiver.dead_letter_message(message, reason="again")
    [dead] = await bus.peek(queue, sub_queue=DEAD_LETTERS)
    assert dead.dead_letter_reason == "r"


async def test_nobody_can_send_to_it(bus: Bus, queue: str) -> None:
    """R-DLQ-02: only its parent puts messages there."""
    with pytest.raises(ServiceBusError):
        await bus.send(f"{queue}/$DeadLetterQueue", ServiceBusMessage("x"))
    assert await bus.peek(queue, sub_queue=DEAD_LETTERS) == []


async def test_it_is_not_managed_on_its_own(queue: str, administration: Administration) -> None:
    """R-DLQ-01: never created or deleted by itself; gone with its parent."""
    for call in (administration.client.create_queue, administration.client.delete_queue):
        with pytest.raises(HttpResponseError) as refused:
            call(f"{queue}/$DeadLetterQueue")
        assert refused.value.status_code in {400, 403, 404}


async def test_its_names_are_found_in_any_case(bus: Bus, queue: str) -> None:
    """wire §3.1: Java writes the suffix in lower case."""
    await dead_letter(bus, queue, "x")
    for suffix in ("$DeadLetterQueue", "$deadletterqueue"):
        assert texts(await bus.peek(f"{queue}/{suffix}")) == ["x"]
        assert texts(await bus.peek(f"{queue.upper()}/{suffix}")) == ["x"]


async def test_a_dead_letter_can_be_repaired_and_sent_again(bus: Bus, queue: str) -> None:
    """R-DLQ-04: as ordinary properties, reason and description travel with a copy."""
    await dead_letter(bus, queue, "x")
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    await bus.send(queue, ServiceBusMessage(b"".join(dead.body), subject="repaired"))

    [message] = await bus.receive(queue)
    assert (text(message), message.subject, message.delivery_count) == ("x", "repaired", 0)

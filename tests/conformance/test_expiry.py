"""Time to live: when a message is too old, and where it goes then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageNotFoundError

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, receive_none, receive_one, text, texts
from tests.support.waiting import until, until_past

BRIEF = timedelta(seconds=1)


async def test_an_expired_message_is_dropped(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-DLQ-06: without dead-lettering on expiry, which is the default."""
    await bus.send(queue, ServiceBusMessage("old", time_to_live=BRIEF), ServiceBusMessage("new"))
    await until_past(datetime.now(UTC) + BRIEF)

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "new"
        await receiver.complete_message(message)

        async def swept() -> bool:
            return administration.counts(queue).total_message_count == 0

        await until("the old message is swept away", swept)
    assert administration.counts(queue).dead_letter_message_count == 0


async def test_an_expired_message_is_dead_lettered_where_the_queue_says_so(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-DLQ-05, R-DLQ-06."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    await bus.send(queue, ServiceBusMessage("old", time_to_live=BRIEF))
    await until_past(datetime.now(UTC) + BRIEF)

    async with bus.receiver(queue) as receiver:
        await receive_none(receiver)

        async def dead() -> bool:
            return administration.counts(queue).dead_letter_message_count == 1

        await until("the message is dead-lettered", dead)
    [message] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert text(message) == "old"
    assert message.dead_letter_reason == "TTLExpiredException"
    assert message.dead_letter_error_description == "The message expired and was dead lettered."
    assert message.delivery_count == 0


async def test_expired_messages_are_swept_only_while_a_receiver_is_there(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-DLQ-06: nothing moves without a receiver; one that asks for nothing is enough."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    await bus.send(queue, ServiceBusMessage("old", time_to_live=BRIEF))
    await until_past(datetime.now(UTC) + BRIEF, margin_s=1.5)
    counts = administration.counts(queue)
    assert (counts.active_message_count, counts.dead_letter_message_count) == (1, 0)

    async def dead() -> bool:
        return administration.counts(queue).dead_letter_message_count == 1

    await bus.open_receiver(queue)
    await until("the message is dead-lettered", dead)


async def test_the_queue_s_default_is_the_upper_bound(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """semantics B §3: the smaller of the two counts; a longer life is cut silently."""
    queue = make_queue(default_message_time_to_live=timedelta(seconds=60))
    await bus.send(
        queue,
        ServiceBusMessage("none"),
        ServiceBusMessage("longer", time_to_live=timedelta(hours=5)),
        ServiceBusMessage("shorter", time_to_live=timedelta(seconds=30)),
    )
    messages = await bus.receive(queue, 3)
    lives = [message.expires_at_utc - message.enqueued_time_utc for message in messages]
    assert lives == [timedelta(seconds=s) for s in (60, 60, 30)]


async def test_a_locked_message_does_not_expire(bus: Bus, make_queue: Callable[..., str]) -> None:
    """semantics B §3: it can be completed past its time."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    await bus.send(queue, ServiceBusMessage("x", time_to_live=timedelta(seconds=2)))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await until_past(message.expires_at_utc)
        await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
    assert await bus.peek(queue, sub_queue=DEAD_LETTERS) == []


async def test_an_abandoned_message_past_its_time_expires_at_once(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """semantics B §3: on abandon the expiry acts."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    await bus.send(queue, ServiceBusMessage("x", time_to_live=timedelta(seconds=2)))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await until_past(message.expires_at_utc)
        await receiver.abandon_message(message)
        await receive_none(receiver)

        async def dead() -> bool:
            return administration.counts(queue).dead_letter_message_count == 1

        await until("the message is dead-lettered", dead)
    [dead_letter] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert dead_letter.dead_letter_reason == "TTLExpiredException"


async def test_a_deferred_message_past_its_time_is_not_found(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """semantics B §3: never swept, but checked when it is fetched."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    await bus.send(queue, ServiceBusMessage("x", time_to_live=timedelta(seconds=2)))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        expires = message.expires_at_utc
        await receiver.defer_message(message)
        await until_past(expires)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(message.sequence_number)

    async def dead() -> list[str]:
        return texts(await bus.peek(queue, sub_queue=DEAD_LETTERS))

    assert await until("the deferred message is dead-lettered", dead) == ["x"]


async def test_time_to_live_does_not_apply_in_the_dead_letter_queue(bus: Bus, queue: str) -> None:
    """R-DLQ-02, R-DLQ-03."""
    sent = ServiceBusMessage("x", time_to_live=timedelta(seconds=2))
    await bus.send(queue, sent)
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        expires = message.expires_at_utc
        await receiver.dead_letter_message(message)
    await until_past(expires)

    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "x"
        assert datetime.now(UTC) > expires
        await receiver.complete_message(message)

"""Messages that go on by themselves: from queues and subscriptions, into queues and topics."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import EntityStatus

from tests.support.administration import Administration
from tests.support.bus import (
    DEAD_LETTERS,
    Bus,
    Subscription,
    Topic,
    gather_messages,
    receive_one,
    text,
    texts,
)
from tests.support.waiting import until


async def peek_when(bus: Bus, source: str | Subscription, count: int) -> list[str]:
    """The texts of what is there, once so many are."""
    found: list[str] = []

    async def there() -> bool:
        found[:] = texts(await bus.peek(source))
        return len(found) >= count

    await until(f"{count} messages have arrived", there)
    return found


async def test_what_is_sent_to_a_queue_arrives_in_another(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """semantics B §8: in order, with a new number and time, and with what the sender said."""
    end = make_queue()
    source = make_queue(forward_to=end)
    async with bus.sender(source) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}", subject="s") for n in range(20)])
        await sender.send_messages(ServiceBusMessage("20", subject="s"))

    async with bus.receiver(end) as receiver:
        messages = await gather_messages(receiver, 21)
        assert texts(messages) == [f"{n}" for n in range(21)]
        assert {message.subject for message in messages} == {"s"}
        assert {message.delivery_count for message in messages} == {0}
        for message in messages:
            await receiver.complete_message(message)
    assert administration.counts(source).total_message_count == 0
    assert administration.counts(end).total_message_count == 0


async def test_a_subscription_collects_in_a_queue(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """Two topics, one queue; what an action has changed stays changed."""
    topics = [administration.make_topic() for _ in range(2)]
    for number, topic in enumerate(topics):
        administration.make_subscription(topic, ("1=1", f"SET via = {number}"), forward_to=queue)
        await bus.send(topic, ServiceBusMessage(f"{number}"))
    messages = await bus.receive(queue, 2)
    assert sorted((text(each), each.application_properties[b"via"]) for each in messages) == [
        ("0", 0),
        ("1", 1),
    ]


async def test_a_queue_forwards_to_a_topic_and_its_rules_apply(
    bus: Bus, topic: Topic, make_queue: Callable[..., str], administration: Administration
) -> None:
    everything = administration.make_subscription(topic)
    red = administration.make_subscription(topic, "sys.Label = 'red'")
    source = make_queue(forward_to=topic)
    await bus.send(source, *(ServiceBusMessage(colour, subject=colour) for colour in ("red", "b")))
    assert await peek_when(bus, everything, 2) == ["red", "b"]
    assert texts(await bus.peek(red)) == ["red"]


async def test_dead_letters_go_to_where_they_are_collected(
    bus: Bus, queue: str, topic: Topic, administration: Administration
) -> None:
    """R-DLQ-05: with their reason, and the name of where they were dead-lettered."""
    subscription = administration.make_subscription(topic, forward_dead_lettered_messages_to=queue)
    await bus.send(topic, ServiceBusMessage("bad"))
    async with bus.receiver(subscription) as receiver:
        message = await receive_one(receiver)
        await receiver.dead_letter_message(message, reason="r", error_description="d")
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert (text(message), message.dead_letter_reason) == ("bad", "r")
        assert message.dead_letter_error_description == "d"
        assert message.dead_letter_source == f"{topic}/Subscriptions/{subscription.name}"
        await receiver.complete_message(message)
    assert administration.counts(subscription).total_message_count == 0


async def test_after_four_hops_a_message_is_dead_lettered(
    bus: Bus, make_queue: Callable[..., str], administration: Administration
) -> None:
    """semantics B §8: in the entity that it has reached."""
    chain = [make_queue() for _ in range(6)]
    for source, destination in itertools.pairwise(chain):
        administration.update(source, forward_to=destination)
    await bus.send(chain[0], ServiceBusMessage("wanderer"))

    async def stranded() -> list[str]:
        return [q for q in chain if administration.counts(q).dead_letter_message_count]

    assert await until("it is dead-lettered", stranded) == [chain[4]]
    [dead] = await bus.receive(chain[4], sub_queue=DEAD_LETTERS)
    assert dead.dead_letter_reason == "MaxTransferHopCountExceeded"
    assert await bus.peek(chain[5]) == []

    await bus.send(chain[1], ServiceBusMessage("settler"))
    assert texts(await bus.receive(chain[5])) == ["settler"]


async def test_what_was_there_before_goes_on_too(
    bus: Bus, queue: str, make_queue: Callable[..., str], administration: Administration
) -> None:
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(5)))
    end = make_queue()
    administration.update(queue, forward_to=end)
    assert await peek_when(bus, end, 5) == [f"{n}" for n in range(5)]
    administration.update(queue, forward_to=None)
    await bus.send(queue, ServiceBusMessage("stays"))
    assert texts(await bus.peek(queue)) == ["stays"]


async def test_nobody_receives_from_what_forwards(
    bus: Bus, queue: str, make_queue: Callable[..., str]
) -> None:
    """semantics B §8: forwarding is its only receiver."""
    source = make_queue(forward_to=queue)
    with pytest.raises(ServiceBusError) as refused:
        await bus.receive(source)
    assert "forward" in str(refused.value).lower()


async def test_a_destination_must_be_there(make_queue: Callable[..., str]) -> None:
    """semantics B §8."""
    with pytest.raises(HttpResponseError) as refused:
        make_queue(forward_to="no-such-queue")
    assert refused.value.status_code == 400


@pytest.mark.parametrize("trouble", ["deleted", "disabled"])
async def test_what_cannot_arrive_is_dead_lettered_at_its_source(
    bus: Bus, make_queue: Callable[..., str], administration: Administration, trouble: str
) -> None:
    """semantics B §8: to be handled there by hand."""
    end = make_queue()
    source = make_queue(forward_to=end)
    if trouble == "deleted":
        administration.client.delete_queue(end)
    else:
        administration.update(end, status=EntityStatus.DISABLED)
    await bus.send(source, ServiceBusMessage("x"))

    async def dead() -> bool:
        return bool(administration.counts(source).dead_letter_message_count)

    await until("it is dead-lettered", dead)
    [message] = await bus.receive(source, sub_queue=DEAD_LETTERS)
    assert text(message) == "x"
    assert message.dead_letter_reason


async def test_a_scheduled_message_goes_on_when_it_is_due(
    bus: Bus, queue: str, make_queue: Callable[..., str]
) -> None:
    source = make_queue(forward_to=queue)
    due = datetime.now(UTC) + timedelta(seconds=3)
    async with bus.sender(source) as sender:
        await sender.schedule_messages(ServiceBusMessage("later"), due)
    assert await bus.peek(queue) == []
    async with bus.receiver(queue) as receiver:
        assert text(await receive_one(receiver)) == "later"
        assert datetime.now(UTC) >= due

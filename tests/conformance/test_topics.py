"""Topics, and subscriptions that each have a copy of what is sent and a life of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode
from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusError,
)

from tests.support.administration import Administration
from tests.support.bus import (
    DEAD_LETTERS,
    Bus,
    Subscription,
    Topic,
    gather_messages,
    manage,
    receive_none,
    receive_one,
    text,
    texts,
)
from tests.support.waiting import until, until_past

SOON = timedelta(seconds=6)
LATER = timedelta(hours=1)


async def test_every_subscription_gets_every_message_in_order(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """Issue 3: fan-out in one commit."""
    three = [administration.make_subscription(topic) for _ in range(3)]
    await bus.send(topic, ServiceBusMessage("first"))
    async with bus.sender(topic) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(50)])
        batch = await sender.create_message_batch()
        assert batch.max_size_in_bytes > 100_000
        batch.add_message(ServiceBusMessage("last"))
        await sender.send_messages(batch)

    for subscription in three:
        messages = await bus.receive(subscription, 52)
        assert texts(messages) == ["first", *(f"{n}" for n in range(50)), "last"]
        numbers = [message.sequence_number for message in messages]
        assert numbers == sorted(set(numbers))


async def test_a_batch_is_published_whole_or_not_at_all(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    """R-SETTLE-01."""
    wide = ServiceBusMessage("bad", application_properties={"wide": "w" * 70_000})
    async with bus.sender(topic) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages([ServiceBusMessage("good"), wide])
        await sender.send_messages(ServiceBusMessage("after"))
    assert texts(await bus.peek(subscription)) == ["after"]


async def test_what_was_sent_arrives_with_all_its_fields(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """wire §4; semantics B §8: the topic's number stays with both copies."""
    both = [administration.make_subscription(topic) for _ in range(2)]
    sent = ServiceBusMessage(
        b"\x00body",
        application_properties={"n": 1, "text": "t", "flag": True},
        message_id="id",
        subject="subject",
        content_type="application/x",
        correlation_id="c",
        to="to",
        reply_to="back",
        time_to_live=timedelta(hours=2),
    )
    await bus.send(topic, sent)

    first, second = [(await bus.receive(each))[0] for each in both]
    for message in (first, second):
        assert b"".join(message.body) == b"\x00body"
        assert message.application_properties == {b"n": 1, b"text": b"t", b"flag": True}
        assert (message.message_id, message.subject, message.content_type) == (
            "id",
            "subject",
            "application/x",
        )
        assert (message.correlation_id, message.to, message.reply_to) == ("c", "to", "back")
        assert message.time_to_live == timedelta(hours=2)
    assert first.enqueued_sequence_number == second.enqueued_sequence_number
    assert first.enqueued_time_utc == second.enqueued_time_utc


async def test_subscriptions_settle_without_each_other(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """Issue 3: their own locks, counts and dead letters."""
    done, dead, left = [
        administration.make_subscription(topic, lock_s=30, max_delivery_count=2) for _ in range(3)
    ]
    await bus.send(topic, ServiceBusMessage("x"))

    async with bus.receiver(done) as receiver:
        await receiver.complete_message(await receive_one(receiver))
        await receive_none(receiver)
    async with bus.receiver(dead) as receiver:
        for count in range(2):
            message = await receive_one(receiver)
            assert message.delivery_count == count
            await receiver.abandon_message(message)
        await receive_none(receiver)
    assert administration.counts(done).total_message_count == 0
    counts = administration.counts(dead)
    assert (counts.active_message_count, counts.dead_letter_message_count) == (0, 1)
    [message] = await bus.receive(left)
    assert (text(message), message.delivery_count) == ("x", 0)


async def test_a_subscription_has_a_dead_letter_queue(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """R-DLQ-01, R-DLQ-06: with the reason that was given, or the one the broker gives."""
    subscription = administration.make_subscription(
        topic, dead_lettering_on_message_expiration=True, max_delivery_count=1
    )
    await bus.send(topic, ServiceBusMessage("bad"), ServiceBusMessage("poison"))
    async with bus.receiver(subscription) as receiver:
        bad = await receive_one(receiver)
        await receiver.dead_letter_message(bad, reason="r", error_description="d")
        await receiver.abandon_message(await receive_one(receiver))
        await bus.send(topic, ServiceBusMessage("old", time_to_live=timedelta(milliseconds=200)))

        async def three_are_dead() -> bool:
            await receive_none(receiver, 0.3)
            return administration.counts(subscription).dead_letter_message_count == 3

        await until("all are dead letters", three_are_dead)

    async with bus.receiver(subscription, sub_queue=DEAD_LETTERS) as receiver:
        messages = await gather_messages(receiver, 3)
        assert [(text(each), each.dead_letter_reason) for each in messages] == [
            ("bad", "r"),
            ("poison", "MaxDeliveryCountExceeded"),
            ("old", "TTLExpiredException"),
        ]
        assert messages[0].dead_letter_error_description == "d"
        for message in messages:
            await receiver.complete_message(message)
    assert administration.counts(subscription).total_message_count == 0


async def test_the_shorter_life_wins(bus: Bus, administration: Administration) -> None:
    """semantics B §3: of message, topic and subscription."""
    topic = administration.make_topic(default_message_time_to_live=timedelta(minutes=30))
    longer = administration.make_subscription(
        topic, default_message_time_to_live=timedelta(minutes=60)
    )
    shorter = administration.make_subscription(
        topic, default_message_time_to_live=timedelta(minutes=10)
    )
    await bus.send(topic, ServiceBusMessage("x", time_to_live=timedelta(hours=5)))
    for subscription, minutes in ((longer, 30), (shorter, 10)):
        [message] = await bus.peek(subscription)
        life = message.expires_at_utc - message.enqueued_time_utc
        assert life == timedelta(minutes=minutes)


async def test_a_subscription_is_received_from_in_every_way(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    """R-SETTLE-05: receive-and-delete, prefetch, deferral, renewal, peek."""
    await bus.send(topic, *(ServiceBusMessage(f"{n}") for n in range(10)))
    assert texts(await bus.peek(subscription, 3)) == ["0", "1", "2"]
    assert texts(await bus.receive(subscription, 2)) == ["0", "1"]

    async with bus.receiver(subscription, prefetch_count=20) as receiver:
        messages = await gather_messages(receiver, 8)
        assert texts(messages) == [f"{n}" for n in range(2, 10)]
        renewed = await receiver.renew_message_lock(messages[0])
        assert renewed >= datetime.now(UTC)
        await receiver.defer_message(messages[0])
        for message in messages[1:]:
            await receiver.complete_message(message)
        [again] = await receiver.receive_deferred_messages(messages[0].sequence_number)
        assert text(again) == "2"
        await receiver.complete_message(again)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(messages[0].sequence_number)
    assert await bus.peek(subscription) == []


async def test_a_deferred_message_is_received_and_deleted(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    await bus.send(topic, ServiceBusMessage("x"))
    async with bus.receiver(subscription) as receiver:
        message = await receive_one(receiver)
        await receiver.defer_message(message)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with bus.receiver(subscription, receive_mode=mode) as receiver:
        [deferred] = await receiver.receive_deferred_messages([message.sequence_number])
        assert text(deferred) == "x"
    assert await bus.peek(subscription) == []


async def test_a_lock_of_a_subscription_runs_out(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    subscription = administration.make_subscription(topic, lock_s=5)
    await bus.send(topic, ServiceBusMessage("x"))
    async with bus.receiver(subscription) as receiver:
        first = await receive_one(receiver)
        await until_past(first.locked_until_utc)
        again = await receive_one(receiver)
        assert again.delivery_count == 1
        await receiver.complete_message(again)


async def test_a_subscription_sees_what_was_sent_after_it_was_made(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """And a topic without subscriptions keeps nothing."""
    await bus.send(topic, ServiceBusMessage("before"))
    subscription = administration.make_subscription(topic)
    await bus.send(topic, ServiceBusMessage("after"))
    assert texts(await bus.peek(subscription)) == ["after"]


async def test_a_subscription_made_again_starts_empty(
    bus: Bus, topic: Topic, subscription: Subscription, administration: Administration
) -> None:
    await bus.send(topic, ServiceBusMessage("of the first"))
    administration.client.delete_subscription(*subscription)
    administration.client.create_subscription(*subscription)
    assert await bus.peek(subscription) == []
    await bus.send(topic, ServiceBusMessage("of the second"))
    assert texts(await bus.receive(subscription)) == ["of the second"]


async def test_a_scheduled_message_waits_in_the_topic(
    bus: Bus, topic: Topic, subscription: Subscription, administration: Administration
) -> None:
    """semantics B §4: subscriptions never show it; peeking the topic does."""
    due = datetime.now(UTC).replace(microsecond=0) + SOON
    async with bus.sender(topic) as sender:
        await sender.schedule_messages(ServiceBusMessage("by request"), due)
        await sender.send_messages(
            ServiceBusMessage("by annotation", scheduled_enqueue_time_utc=due)
        )
        reply = await manage(
            sender,
            "peek-message",
            {"from-sequence-number": amqp_long_value(0), "message-count": 10},
        )
        assert (reply.status, len(reply.value[b"messages"])) == (200, 2)
    counts = administration.client.get_topic_runtime_properties(topic)
    assert counts.scheduled_message_count == 2
    assert await bus.peek(subscription) == []

    async with bus.receiver(subscription) as receiver:
        messages = await gather_messages(receiver, 2)
        assert datetime.now(UTC) >= due
        assert sorted(texts(messages)) == ["by annotation", "by request"]
        for message in messages:
            assert message.state is ServiceBusMessageState.SCHEDULED  # as Azure has it
            assert message.enqueued_time_utc >= due
            await receiver.complete_message(message)
    counts = administration.client.get_topic_runtime_properties(topic)
    assert counts.scheduled_message_count == 0


async def test_a_scheduled_message_is_for_those_who_are_there_when_it_is_due(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    async with bus.sender(topic) as sender:
        await sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + SOON)
    late = administration.make_subscription(topic)
    assert texts(await bus.receive(late)) == ["x"]


async def test_a_message_scheduled_in_a_topic_can_be_cancelled(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    async with bus.sender(topic) as sender:
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("1"), ServiceBusMessage("2")], datetime.now(UTC) + LATER
        )
        await sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(numbers[0])
    counts = administration.client.get_topic_runtime_properties(topic)
    assert counts.scheduled_message_count == 1


async def test_names_are_found_in_any_case(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    """wire §3.1."""
    await bus.send(Topic(topic.upper()), ServiceBusMessage("x"))
    shouted = Subscription(Topic(topic.upper()), subscription.name.upper())
    assert texts(await bus.peek(shouted)) == ["x"]
    assert texts(await bus.peek(f"{topic}/subscriptions/{subscription.name}")) == ["x"]


async def test_nobody_receives_from_a_topic_or_sends_to_a_subscription(
    bus: Bus, topic: Topic, subscription: Subscription
) -> None:
    with pytest.raises(ServiceBusError):
        await bus.receive(topic)
    with pytest.raises(ServiceBusError):
        await bus.send(f"{topic}/Subscriptions/{subscription.name}", ServiceBusMessage("x"))
    assert await bus.peek(subscription) == []


async def test_the_size_of_a_topic_is_that_of_all_its_messages(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """semantics B §8: its own count is 0, its size that of what its subscriptions keep."""
    two = [administration.make_subscription(topic) for _ in range(2)]
    await bus.send(topic, ServiceBusMessage("x" * 10_000))
    client = administration.client
    assert client.get_topic_runtime_properties(topic).size_in_bytes >= 10_000
    assert client.get_topic_runtime_properties(topic).subscription_count == 2
    for subscription in two:
        await bus.receive(subscription)
    assert client.get_topic_runtime_properties(topic).size_in_bytes == 0

"""Topics, their subscriptions and rules, and what is on its way: all there after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, receive_one, text, texts
from tests.support.server import Server


@pytest.fixture
def administration(server: Server) -> Iterator[Administration]:
    administration = Administration(server.connection_string)
    yield administration
    administration.close()


def kill(server: Server) -> None:
    server.kill()
    server.start()


async def test_subscriptions_and_their_rules_are_kept(
    server: Server, administration: Administration
) -> None:
    client = administration.client
    topic = administration.make_topic(default_message_time_to_live=timedelta(hours=7))
    subscription = administration.make_subscription(
        topic,
        ("a = 1 OR sys.Label LIKE 'x%'", "SET b = 'c'"),
        CorrelationRuleFilter(correlation_id="c", properties={"n": 1}),
        max_delivery_count=7,
    )
    removed = administration.make_subscription(topic)
    client.delete_subscription(*removed)
    kill(server)

    assert client.get_topic(topic).default_message_time_to_live == timedelta(hours=7)
    assert [each.name for each in client.list_subscriptions(topic)] == [subscription.name]
    assert client.get_subscription(*subscription).max_delivery_count == 7
    sql, correlation = client.list_rules(*subscription)
    assert isinstance(sql.filter, SqlRuleFilter)
    assert sql.filter.sql_expression == "a = 1 OR sys.Label LIKE 'x%'"
    assert sql.action is not None
    assert isinstance(correlation.filter, CorrelationRuleFilter)
    assert correlation.filter.properties == {"n": 1}
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription(*removed)


async def test_copies_keep_their_place_and_what_actions_made_of_them(
    server: Server, administration: Administration, open_bus: Callable[..., Bus]
) -> None:
    topic = administration.make_topic()
    plain = administration.make_subscription(topic)
    changed = administration.make_subscription(topic, ("1=1", "SET sys.Label = 'new'; SET n = 5"))
    bus = open_bus(server)
    await bus.send(topic, *(ServiceBusMessage(f"{n}", subject="old") for n in range(4)))
    async with bus.receiver(plain) as receiver:
        first = await receive_one(receiver)
        second = await receive_one(receiver)
        await receiver.dead_letter_message(first, reason="r")
        await receiver.defer_message(second)
        await receiver.complete_message(await receive_one(receiver))
    kill(server)

    bus = open_bus(server)
    assert texts(await bus.receive(plain, sub_queue=DEAD_LETTERS)) == ["0"]
    async with bus.receiver(plain) as receiver:
        [deferred] = await receiver.receive_deferred_messages(second.sequence_number)
        assert text(deferred) == "1"
        assert text(await receive_one(receiver)) == "3"
    messages = await bus.receive(changed, 4)
    assert texts(messages) == ["0", "1", "2", "3"]
    for message in messages:
        assert (message.subject, message.application_properties[b"n"]) == ("new", 5)


async def test_what_a_topic_was_to_give_later_is_given(
    server: Server, administration: Administration, open_bus: Callable[..., Bus]
) -> None:
    topic = administration.make_topic()
    subscriptions = [administration.make_subscription(topic) for _ in range(2)]
    bus = open_bus(server)
    due = datetime.now(UTC) + timedelta(seconds=6)
    async with bus.sender(topic) as sender:
        await sender.schedule_messages(ServiceBusMessage("later"), due)
    kill(server)

    bus = open_bus(server)
    for subscription in subscriptions:
        [message] = await bus.receive(subscription, max_wait_time=20)
        assert text(message) == "later"
        assert datetime.now(UTC) >= due


async def test_forwarding_goes_on_where_it_was(
    server: Server, administration: Administration, open_bus: Callable[..., Bus]
) -> None:
    """Out of an outbox, past a mark, once."""
    end = administration.make_queue()
    source = administration.make_queue(forward_to=end)
    bus = open_bus(server)
    async with bus.sender(source) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(500)])
    kill(server)

    bus = open_bus(server)
    await bus.send(source, ServiceBusMessage("500"))
    assert texts(await bus.receive(end, 501)) == [f"{n}" for n in range(501)]
    assert await bus.peek(end) == []
    assert administration.counts(source).total_message_count == 0

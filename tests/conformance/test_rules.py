"""Rules: which messages a subscription gets, and what actions make of them."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic, receive_none, texts

ORDERS = [
    ("paper", "blue", 5, "low"),
    ("pens", "red", 12, "high"),
    ("ink", "blue", 40, "high"),
    ("glue", "green", 12, "low"),
]


def orders() -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(
            name,
            subject=colour,
            correlation_id=priority,
            application_properties={"Color": colour, "Quantity": quantity, "Priority": priority},
        )
        for name, colour, quantity, priority in ORDERS
    ]


@pytest.mark.parametrize(
    ("filtered_by", "expected"),
    [
        ("Color = 'blue'", ["paper", "ink"]),
        ("Quantity > 10", ["pens", "ink", "glue"]),
        ("Quantity > 10 AND NOT Color IN ('red', 'green')", ["ink"]),
        ("sys.Label LIKE 'b%' OR Priority = 'high'", ["paper", "pens", "ink"]),
        ("Missing IS NULL AND EXISTS(Color) AND Quantity * 2 = 24", ["pens", "glue"]),
        ("Missing = 'x'", []),
        (SqlRuleFilter("Quantity = @q", parameters={"@q": 12}), ["pens", "glue"]),
        (CorrelationRuleFilter(correlation_id="high"), ["pens", "ink"]),
        (CorrelationRuleFilter(label="blue", correlation_id="high"), ["ink"]),
        (CorrelationRuleFilter(properties={"color": "red"}), ["pens"]),
        (CorrelationRuleFilter(properties={"Quantity": 12}), ["pens", "glue"]),
        (CorrelationRuleFilter(properties={"Quantity": "12"}), []),
        (TrueRuleFilter(), ["paper", "pens", "ink", "glue"]),
        (FalseRuleFilter(), []),
    ],
)
async def test_a_filter_lets_through_what_it_says(
    bus: Bus, topic: Topic, administration: Administration, filtered_by: Any, expected: list[str]
) -> None:
    """semantics A §1, §3."""
    subscription = administration.make_subscription(topic, filtered_by)
    async with bus.sender(topic) as sender:
        await sender.send_messages(orders())
    assert texts(await bus.peek(subscription)) == expected


async def test_rules_without_actions_make_one_copy_together(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """semantics A §2: 2 with an action and 3 without make 3 messages."""
    subscription = administration.make_subscription(
        topic,
        "Color = 'blue'",
        "Quantity > 10",
        TrueRuleFilter(),
        ("Color = 'blue'", "SET Checked = 'by colour'"),
        (CorrelationRuleFilter(label="blue"), "SET Checked = 'by label'; REMOVE Quantity"),
    )
    await bus.send(topic, orders()[2])
    messages = await bus.receive(subscription, 3)
    assert texts(messages) == ["ink"] * 3
    found = sorted(
        (
            str(properties.get(b"RuleName", b"").decode()),
            properties.get(b"Checked", b"").decode(),
            properties.get(b"Quantity"),
        )
        for properties in (message.application_properties for message in messages)
    )
    assert found == [
        ("", "", 40),
        ("rule-3", "by colour", 40),
        ("rule-4", "by label", None),
    ]
    assert await bus.peek(subscription) == []


async def test_an_action_changes_only_the_copy_of_its_subscription(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """semantics A §2: user properties by default, system ones by scope."""
    changed = administration.make_subscription(
        topic,
        (
            "1=1",
            "SET sys.Label = 'changed'; SET sys.CorrelationId = 'c-' + sys.MessageId; "
            "SET Quantity = Quantity + 1; SET Label = 'mine'; REMOVE Color",
        ),
    )
    same = administration.make_subscription(topic)
    sent = orders()[0]
    sent.message_id = "m"
    await bus.send(topic, sent)

    [message] = await bus.receive(changed)
    assert (message.subject, message.correlation_id, message.message_id) == ("changed", "c-m", "m")
    assert message.application_properties == {
        b"Quantity": 6,
        b"Priority": b"low",
        b"Label": b"mine",
        b"RuleName": b"rule-0",
    }
    [message] = await bus.receive(same)
    assert (message.subject, message.correlation_id) == ("blue", "low")
    assert message.application_properties == {
        b"Color": b"blue",
        b"Quantity": 5,
        b"Priority": b"low",
    }


async def test_a_changed_copy_stays_changed_wherever_it_goes(
    bus: Bus, topic: Topic, administration: Administration
) -> None:
    """Abandoned, dead-lettered and received again."""
    subscription = administration.make_subscription(topic, ("1=1", "SET Tag = 'kept'"))
    await bus.send(topic, ServiceBusMessage("x"))
    async with bus.receiver(subscription) as receiver:
        [message] = await receiver.receive_messages(max_wait_time=10)
        await receiver.abandon_message(message)
        [message] = await receiver.receive_messages(max_wait_time=10)
        assert message.application_properties[b"Tag"] == b"kept"
        await receiver.dead_letter_message(message, reason="r")
    [dead] = await bus.receive(subscription, sub_queue=DEAD_LETTERS)
    assert dead.application_properties[b"Tag"] == b"kept"
    assert dead.dead_letter_reason == "r"


async def test_rules_are_changed_for_what_is_sent_from_then_on(
    bus: Bus, topic: Topic, subscription: Subscription, administration: Administration
) -> None:
    client = administration.client
    sender = await bus.open_sender(topic)
    await sender.send_messages(ServiceBusMessage("1", subject="a"))
    administration.add_rule(subscription, "only-b", "sys.Label = 'b'")
    await sender.send_messages(ServiceBusMessage("2", subject="a"))
    client.delete_rule(*subscription, "$Default")
    await sender.send_messages([ServiceBusMessage("3", subject=label) for label in "ab"])
    rule = client.get_rule(*subscription, "only-b")
    rule.filter = SqlRuleFilter("sys.Label = 'a'")
    client.update_rule(*subscription, rule)
    await sender.send_messages([ServiceBusMessage("4", subject=label) for label in "ab"])
    client.delete_rule(*subscription, "only-b")
    await sender.send_messages(ServiceBusMessage("5", subject="a"))

    messages = await bus.receive(subscription, 4)
    assert [(each.subject, *texts([each])) for each in messages] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "3"),
        ("a", "4"),
    ]
    assert list(client.list_rules(*subscription)) == []
    async with bus.receiver(subscription) as receiver:
        await receive_none(receiver)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_filter_that_fails_dead_letters_or_skips(
    bus: Bus, topic: Topic, administration: Administration, kept: bool
) -> None:
    """semantics A §1.4: as the subscription says; other subscriptions are not concerned."""
    subscription = administration.make_subscription(
        topic, "10 / n = 5", dead_lettering_on_filter_evaluation_exceptions=kept
    )
    other = administration.make_subscription(topic)
    await bus.send(
        topic,
        *(ServiceBusMessage(f"{n}", application_properties={"n": n}) for n in (0, 2)),
    )
    assert texts(await bus.peek(other)) == ["0", "2"]
    assert texts(await bus.peek(subscription)) == ["2"]
    dead = await bus.peek(subscription, sub_queue=DEAD_LETTERS)
    assert texts(dead) == (["0"] if kept else [])
    if kept:
        assert dead[0].dead_letter_reason
        assert dead[0].dead_letter_error_description


async def test_a_rule_that_cannot_be_is_refused(
    subscription: Subscription, administration: Administration
) -> None:
    """semantics A §1.5."""
    for number, wrong in enumerate(("a = ", "sys.NoSuchThing = 1", "a" * 1_025)):
        with pytest.raises(HttpResponseError) as refused:
            administration.add_rule(subscription, f"wrong-{number}", wrong)
        assert refused.value.status_code == 400
    with pytest.raises(HttpResponseError) as refused:
        administration.add_rule(subscription, "wrong", "1=1", "DROP a")
    assert refused.value.status_code == 400
    assert [rule.name for rule in administration.client.list_rules(*subscription)] == ["$Default"]

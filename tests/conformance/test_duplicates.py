"""Duplicate detection, as the official client sees it: sends that can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageNotFoundError

from tests.support.administration import Administration
from tests.support.bus import Bus, receive_none, texts


@pytest.fixture
def once(make_queue: Callable[..., str]) -> str:
    """A queue that drops duplicates."""
    return make_queue(requires_duplicate_detection=True)


def sent(text: str, message_id: str | None = None, **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(text, message_id=text if message_id is None else message_id, **fields)


async def test_a_message_with_a_known_id_is_accepted_and_dropped(bus: Bus, once: str) -> None:
    """R-SETTLE-11; also after the first one was completed (semantics B §6)."""
    for text in ("first", "second", "third"):
        await bus.send(once, sent(text, "same"))
    assert texts(await bus.receive(once)) == ["first"]
    await bus.send(once, sent("fourth", "same"), sent("other"))
    assert texts(await bus.receive(once)) == ["other"]


async def test_duplicates_in_a_batch_are_dropped_one_by_one(bus: Bus, once: str) -> None:
    await bus.send(once, sent("a"))
    async with bus.sender(once) as sender:
        await sender.send_messages([sent(text) for text in ("b", "a", "c", "b", "d")])
    assert texts(await bus.receive(once, count=4)) == ["a", "b", "c", "d"]


async def test_messages_without_an_id_are_all_kept(bus: Bus, once: str) -> None:
    await bus.send(once, ServiceBusMessage("x"), ServiceBusMessage("x"))
    assert texts(await bus.receive(once, count=2)) == ["x", "x"]


async def test_a_second_schedule_has_a_number_of_its_own_and_nothing_behind_it(
    bus: Bus, once: str, administration: Administration
) -> None:
    """semantics B §6."""
    due = datetime.now(UTC) + timedelta(hours=1)
    async with bus.sender(once) as sender:
        [first] = await sender.schedule_messages(sent("later", "id"), due)
        [second] = await sender.schedule_messages(sent("later", "id"), due)
        assert first != second
        assert administration.counts(once).scheduled_message_count == 1
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(second)
        await sender.cancel_scheduled_messages(first)
        await sender.send_messages(sent("now", "id"))
    async with bus.receiver(once) as receiver:
        await receive_none(receiver)


async def test_a_topic_drops_them_for_all_of_its_subscriptions(
    bus: Bus, administration: Administration
) -> None:
    topic = administration.make_topic(requires_duplicate_detection=True)
    subscriptions = [administration.make_subscription(topic) for _ in range(2)]
    await bus.send(topic, sent("a"), sent("b"), sent("a"), sent("c"))
    for each in subscriptions:
        assert texts(await bus.receive(each, count=3)) == ["a", "b", "c"]


async def test_a_forwarded_message_is_dropped_where_it_is_known(
    bus: Bus, once: str, make_queue: Callable[..., str]
) -> None:
    source = make_queue(forward_to=once)
    await bus.send(once, sent("a"))
    await bus.send(source, sent("a"), sent("b"), sent("b"), sent("c"))
    assert texts(await bus.receive(once, count=3)) == ["a", "b", "c"]
    async with bus.receiver(once) as receiver:
        await receive_none(receiver)


def test_it_is_chosen_at_creation_and_its_window_is_not(
    once: str, make_queue: Callable[..., str], administration: Administration
) -> None:
    """R-PART-09; semantics A §5.2."""
    client = administration.client
    found = client.get_queue(once)
    assert found.requires_duplicate_detection is True
    assert found.duplicate_detection_history_time_window == timedelta(minutes=10)
    found.duplicate_detection_history_time_window = timedelta(days=7)
    client.update_queue(found)
    again = client.get_queue(once)
    assert again.requires_duplicate_detection is True
    assert again.duplicate_detection_history_time_window == timedelta(days=7)
    plain = make_queue(duplicate_detection_history_time_window=timedelta(seconds=20))
    assert client.get_queue(plain).requires_duplicate_detection is False

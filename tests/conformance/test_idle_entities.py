"""Entities that delete themselves when nobody uses them. The shortest time that is allowed is five
minutes, so the tests that wait for it are long; `tests/unit/namespace/test_idle.py` is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import Bus, Subscription, Topic, texts
from tests.support.waiting import until

SHORTEST = timedelta(minutes=5)


def test_less_than_five_minutes_are_refused(administration: Administration, topic: Topic) -> None:
    """semantics B §11."""
    client, short = administration.client, timedelta(minutes=4)
    for create in (
        lambda: client.create_queue("short", auto_delete_on_idle=short),
        lambda: client.create_topic("short", auto_delete_on_idle=short),
        lambda: client.create_subscription(topic, "short", auto_delete_on_idle=short),
    ):
        with pytest.raises(HttpResponseError) as refused:
            create()
        assert refused.value.status_code == 400
        assert "AutoDeleteOnIdle" in str(refused.value)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_what_is_idle_goes_and_what_is_used_stays(
    open_bus: Callable[..., Bus], administration: Administration
) -> None:
    """semantics B §11: messages alone do not keep it; a receiver that waits does."""
    client, bus = administration.client, open_bus("async")
    idle = administration.make_queue(auto_delete_on_idle=SHORTEST)
    used = administration.make_queue(auto_delete_on_idle=SHORTEST)
    topic = administration.make_topic(auto_delete_on_idle=SHORTEST)
    kept = administration.make_subscription(topic)
    left = administration.make_subscription(topic, auto_delete_on_idle=SHORTEST)
    await bus.send(idle, ServiceBusMessage("nobody wants it"))

    async def use() -> None:
        while True:
            await bus.send(topic, ServiceBusMessage("tick"))
            await bus.receive(kept)
            await bus.peek(used)
            await asyncio.sleep(20)

    using = asyncio.ensure_future(use())
    try:

        async def gone() -> bool:
            queues = {queue.name for queue in client.list_queues()}
            names = {each.name for each in client.list_subscriptions(topic)}
            return idle not in queues and left.name not in names

        await until("the idle ones are gone", gone, within_s=420.0)
    finally:
        using.cancel()
    assert client.get_queue(used).name == used
    assert client.get_topic(topic).name == topic
    assert client.get_subscription(*kept).name == kept.name
    await bus.send(topic, ServiceBusMessage("still here"))
    assert texts(await bus.receive(Subscription(topic, kept.name), 1))

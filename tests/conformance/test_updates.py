"""What an update of an entity does to its users: a change ends locks, no change ends none."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    SessionLockLostError,
)

from tests.support.administration import Administration
from tests.support.bus import Bus, receive_one

KINDS = ("queue", "subscription")


def _places(kind: str, administration: Administration, **properties: Any) -> tuple[Any, Any]:
    """Where messages are sent, and where they are received."""
    if kind == "queue":
        queue = administration.make_queue(**properties)
        return queue, queue
    topic = administration.make_topic()
    return topic, administration.make_subscription(topic, **properties)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_that_changes_nothing_ends_no_lock(
    bus: Bus, administration: Administration, kind: str
) -> None:
    """R-SETTLE-10: a change of the properties loses locks, and this is none."""
    to, source = _places(kind, administration)
    await bus.send(to, ServiceBusMessage("kept"))
    async with bus.receiver(source) as receiver:
        message = await receive_one(receiver)
        administration.update(source)
        administration.update(to)
        await receiver.renew_message_lock(message)
        await receiver.complete_message(message)
    assert administration.counts(source).total_message_count == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_that_changes_nothing_ends_no_session(
    bus: Bus, administration: Administration, kind: str
) -> None:
    to, source = _places(kind, administration, requires_session=True)
    await bus.send(to, ServiceBusMessage("kept", session_id="s"))
    async with bus.receiver(source, session_id="s") as receiver:
        administration.update(source)
        administration.update(to)
        await bus.session(receiver).renew_lock()
        await receiver.complete_message(await receive_one(receiver))
    assert administration.counts(source).total_message_count == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_an_update_that_changes_something_ends_locks_and_sessions(
    bus: Bus, administration: Administration, kind: str
) -> None:
    """R-SETTLE-10."""
    to, source = _places(kind, administration)
    await bus.send(to, ServiceBusMessage("again"))
    async with bus.receiver(source) as receiver:
        message = await receive_one(receiver)
        administration.update(source, max_delivery_count=7)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(message)
    to, source = _places(kind, administration, requires_session=True)
    async with bus.receiver(source, session_id="s") as receiver:
        administration.update(source, max_delivery_count=7)
        with pytest.raises((SessionLockLostError, ServiceBusConnectionError)):
            await receiver.receive_messages(max_wait_time=5)

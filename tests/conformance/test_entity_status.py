"""Queues that are switched off, in whole or in part, or deleted under their users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from azure.servicebus.management import EntityStatus

from tests.support.administration import Administration
from tests.support.bus import Bus, receive_one, texts, whole_text
from tests.support.waiting import until


async def sends(bus: Bus, queue: str) -> bool:
    try:
        await bus.send(queue, ServiceBusMessage("probe"))
    except MessagingEntityDisabledError:
        return False
    return True


async def receives(bus: Bus, queue: str) -> bool:
    try:
        async with bus.receiver(queue) as receiver:
            await receiver.receive_messages(max_wait_time=1)
    except MessagingEntityDisabledError:
        return False
    return True


@pytest.mark.parametrize(
    ("status", "may_send", "may_receive"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
async def test_a_status_allows_what_it_says(
    bus: Bus,
    make_queue: Callable[..., str],
    administration: Administration,
    status: EntityStatus,
    may_send: bool,
    may_receive: bool,
) -> None:
    """semantics B §11; R-SETTLE-02: the SDK's own exception."""
    queue = make_queue()
    administration.update(queue, status=status)
    assert administration.client.get_queue(queue).status == status

    assert await sends(bus, queue) is may_send
    assert await receives(bus, queue) is may_receive


async def test_messages_are_kept_while_a_queue_is_disabled(
    bus: Bus, queue: str, administration: Administration
) -> None:
    await bus.send(queue, ServiceBusMessage("kept"))
    administration.update(queue, status=EntityStatus.DISABLED)
    assert administration.counts(queue).active_message_count == 1
    administration.update(queue, status=EntityStatus.ACTIVE)
    assert texts(await bus.receive(queue)) == ["kept"]


async def test_open_links_notice_that_the_queue_was_disabled(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """wire §7.3: detach with entity-disabled; the next use says so."""
    sender = await bus.open_sender(queue)
    await sender.send_messages(ServiceBusMessage("before"))
    administration.update(queue, status=EntityStatus.DISABLED)

    async def refused() -> bool:
        try:
            await sender.send_messages(ServiceBusMessage("after"))
        except MessagingEntityDisabledError:
            return True
        except ServiceBusError:
            return False  # the detach itself, noticed by the send that was under way
        return False

    await until("the send is refused", refused)
    administration.update(queue, status=EntityStatus.ACTIVE)
    assert texts(await bus.peek(queue)) == ["before"]


@pytest.mark.parametrize("kind", ["sender", "receiver"])
async def test_open_links_notice_that_the_queue_was_deleted(
    bus: Bus, queue: str, administration: Administration, kind: str
) -> None:
    """wire §7.3: detach with not-found."""
    handler: Any
    if kind == "sender":
        handler = await bus.open_sender(queue)
        await handler.send_messages(ServiceBusMessage("before"))
    else:
        handler = await bus.open_receiver(queue)
        await handler.receive_messages(max_wait_time=0.5)
    administration.client.delete_queue(queue)

    async def refused() -> bool:
        try:
            if kind == "sender":
                await handler.send_messages(ServiceBusMessage("after"))
            else:
                await handler.receive_messages(max_wait_time=1)
        except (MessagingEntityNotFoundError, ServiceBusAuthenticationError) as error:
            return "could not be found" in whole_text(error)  # by detach, or at the next put-token
        except ServiceBusError:
            return False
        return False

    await until("the link says that the queue is gone", refused)


async def test_a_queue_made_again_starts_empty(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """A deleted entity's fragment is never used again."""
    await bus.send(queue, ServiceBusMessage("of the first"))
    async with bus.receiver(queue) as receiver:
        await receive_one(receiver)
    administration.client.delete_queue(queue)
    administration.client.create_queue(queue)

    assert await bus.peek(queue) == []
    await bus.send(queue, ServiceBusMessage("of the second"))
    assert texts(await bus.receive(queue)) == ["of the second"]

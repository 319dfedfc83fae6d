"""A client that closes in good order keeps its locks until they run out, whatever it did before.

After any call that goes through `$management` the Python SDK detaches the links of that node when
it has already ended their session. That is late, and not a broken connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageNotFoundError

from tests.support.bus import Bus, receive_none, receive_one

Call = Callable[[Any, Any], Awaitable[Any]]


async def _nothing(receiver: Any, message: Any) -> None:
    pass


async def _peek(receiver: Any, message: Any) -> None:
    await receiver.peek_messages(max_message_count=5)


async def _renew(receiver: Any, message: Any) -> None:
    await receiver.renew_message_lock(message)


async def _refused(receiver: Any, message: Any) -> None:
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([message.sequence_number + 1000])


@pytest.mark.parametrize("call", [_nothing, _peek, _renew, _refused])
async def test_locks_outlive_an_orderly_close(
    bus: Bus, make_queue: Callable[..., str], call: Call
) -> None:
    """R-SETTLE-10: of a deferred message that was fetched, and of one that was received."""
    queue = make_queue(lock_s=120)
    await bus.send(queue, ServiceBusMessage("deferred"), ServiceBusMessage("received"))
    async with bus.receiver(queue) as receiver:
        await receiver.defer_message(await receive_one(receiver))
        held = await receive_one(receiver)
        deferred_number = held.sequence_number - 1
        [fetched] = await receiver.receive_deferred_messages(deferred_number)
        await call(receiver, held)

    assert [each.delivery_count for each in await bus.peek(queue)] == [1, 0]
    async with bus.receiver(queue) as another:
        await receive_none(another)
        with pytest.raises(MessageNotFoundError):
            await another.receive_deferred_messages(deferred_number)
        await another.renew_message_lock(fetched)
        await another.complete_message(fetched)
        await another.renew_message_lock(held)
    assert [each.delivery_count for each in await bus.peek(queue)] == [0]


async def test_clean_closes_do_not_count_as_failed_deliveries(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-SETTLE-08, R-SETTLE-10: three of them once made a dead letter."""
    queue = make_queue(lock_s=120)
    await bus.send(queue, ServiceBusMessage("x"))
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.defer_message(message)
    for count in range(1, 4):
        async with bus.receiver(queue) as receiver:
            [fetched] = await receiver.receive_deferred_messages(message.sequence_number)
            assert fetched.delivery_count == count
        async with bus.receiver(queue) as receiver:
            # Given back by whoever has its token: that counts, and the close before it did not.
            await receiver.abandon_message(fetched)
    assert [each.delivery_count for each in await bus.peek(queue)] == [4]

"""The four verdicts on a message, the lock they need, and what happens when it is lost."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusMessage
from azure.servicebus._pyamqp.constants import LinkState
from azure.servicebus._pyamqp.utils import amqp_array_value
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from tests.support.administration import Administration
from tests.support.bus import (
    DEAD_LETTERS,
    Bus,
    Reply,
    gather_messages,
    manage,
    receive_none,
    receive_one,
    text,
    texts,
)
from tests.support.waiting import until_blocking, until_past

pytestmark = pytest.mark.both_kinds


def believe_locked(message: Any) -> None:
    """The SDK asks its own clock before it asks the server; here the server must answer."""
    message._expiry = datetime.now(UTC) + timedelta(hours=1)


async def settle_by_token(receiver: Any, status: str, token: uuid.UUID, **more: Any) -> Reply:
    body = {"disposition-status": status, "lock-tokens": amqp_array_value([token]), **more}
    return await manage(receiver, "update-disposition", body)


async def test_complete_removes_the_message(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-SETTLE-09."""
    await bus.send(queue, ServiceBusMessage("done"))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.complete_message(message)
        with pytest.raises(MessageAlreadySettled):
            await receiver.complete_message(message)
    assert administration.counts(queue).total_message_count == 0


async def test_abandon_puts_it_back_at_the_head_with_its_count_raised(bus: Bus, queue: str) -> None:
    """R-SETTLE-07, R-SETTLE-09."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}", partition_key="k") for n in range(3)))

    async with bus.receiver(queue) as receiver:
        first = await receive_one(receiver)
        await receiver.abandon_message(first)
        messages = await gather_messages(receiver, 3)
        assert texts(messages) == ["0", "1", "2"]
        assert [message.delivery_count for message in messages] == [1, 0, 0]
        assert messages[0].sequence_number == first.sequence_number
        assert messages[0].lock_token != first.lock_token


async def test_dead_letter_moves_it_with_reason_and_description(bus: Bus, queue: str) -> None:
    """R-SETTLE-09, R-DLQ-04."""
    await bus.send(queue, ServiceBusMessage("bad", application_properties={"kept": 1}))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.dead_letter_message(message, reason="why", error_description="in full")
        await receive_none(receiver)

    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert text(dead) == "bad"
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "in full")
    assert dead.application_properties[b"DeadLetterReason"] == b"why"
    assert dead.application_properties[b"DeadLetterErrorDescription"] == b"in full"
    assert dead.application_properties[b"kept"] == 1
    assert dead.delivery_count == 0, "an explicit dead-letter is not a failed delivery"


async def test_dead_letter_without_a_reason_sets_none(bus: Bus, queue: str) -> None:
    """R-DLQ-04: an application may give its own; it need not."""
    await bus.send(queue, ServiceBusMessage("bad"))

    async with bus.receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver))
    [dead] = await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert dead.dead_letter_reason is None
    assert dead.dead_letter_error_description is None


async def test_renewing_extends_the_lock(bus: Bus, make_queue: Callable[..., str]) -> None:
    """R-SETTLE-06: the lock can be renewed by its owner, and then it is still his."""
    queue = make_queue(lock_s=5)
    await bus.send(queue, ServiceBusMessage("slow"))
    other = await bus.open_receiver(queue)

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        ends = message.locked_until_utc
        await until_past(ends, margin_s=-2.0)
        renewed = await receiver.renew_message_lock(message)
        assert renewed >= ends + timedelta(seconds=2)
        assert message.locked_until_utc == renewed
        await until_past(ends)
        await receive_none(other, wait_s=0.5)
        await receiver.complete_message(message)
    await receive_none(other)


async def test_the_sdk_renews_a_lock_by_itself(bus: Bus, make_queue: Callable[..., str]) -> None:
    """R-SETTLE-06: auto-renewal."""
    queue = make_queue(lock_s=5)
    await bus.send(queue, ServiceBusMessage("slow"))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        received = datetime.now(UTC)
        if bus.flavour == "sync":
            renewer: Any = AutoLockRenewer()
            renewer.register(receiver._inner, message, max_lock_renewal_duration=30)
        else:
            renewer = AsyncAutoLockRenewer()
            renewer.register(receiver, message, max_lock_renewal_duration=30)
        await until_past(received + timedelta(seconds=7))
        await receiver.complete_message(message)
        if bus.flavour == "sync":
            renewer.close()
        else:
            await renewer.close()
        assert message.auto_renew_error is None
    assert await bus.peek(queue) == []


async def test_an_expired_lock_puts_the_message_back_with_its_count_raised(
    bus: Bus, make_queue: Callable[..., str]
) -> None:
    """R-SETTLE-07, R-SETTLE-10: settling and renewing afterwards get lock-lost."""
    queue = make_queue(lock_s=5)
    await bus.send(queue, ServiceBusMessage("one"), ServiceBusMessage("two"))

    async with bus.receiver(queue) as receiver:
        late = await receive_one(receiver)
        await until_past(late.locked_until_utc)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(late)

        async with bus.receiver(queue) as other:
            again = await receive_one(other)
            assert (text(again), again.delivery_count) == ("one", 1)
            # the late verdict is refused, and does not touch the lock of the next holder
            believe_locked(late)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(late)
            await other.complete_message(again)
        assert text(await receive_one(receiver)) == "two"


@pytest.mark.parametrize("verdict", ["complete", "abandon", "defer", "dead_letter"])
async def test_no_verdict_counts_after_the_lock_is_lost(
    bus: Bus, make_queue: Callable[..., str], verdict: str
) -> None:
    """R-SETTLE-10: never a silent success."""
    queue = make_queue(lock_s=5)
    await bus.send(queue, ServiceBusMessage("x"))

    async with bus.receiver(queue) as receiver:
        late = await receive_one(receiver)
        await until_past(late.locked_until_utc)
        believe_locked(late)
        with pytest.raises(MessageLockLostError):
            await getattr(receiver, f"{verdict}_message")(late)
        again = await receive_one(receiver)
        assert (text(again), again.delivery_count) == ("x", 1)


@pytest.mark.parametrize(
    ("status", "left"),
    [("completed", []), ("abandoned", [1]), ("defered", [1]), ("suspended", [])],
)
async def test_a_lock_outlives_its_link_and_is_settled_through_management(
    bus: Bus, queue: str, status: str, left: list[int]
) -> None:
    """R-SETTLE-10: a link detach does not lose the lock."""
    await bus.send(queue, ServiceBusMessage("x"))
    gone = await bus.open_receiver(queue)
    message = await receive_one(gone)
    token = message.lock_token
    await gone.close()

    async with bus.receiver(queue) as receiver:
        await receive_none(receiver, wait_s=0.5)
        reply = await settle_by_token(receiver, status, token)
        assert (reply.status, reply.condition) == (200, None)
        # and only once
        again = await settle_by_token(receiver, status, token)
        assert (again.status, again.condition) == (410, "com.microsoft:message-lock-lost")
        assert "TrackingId:" in str(again.description)
        peeked = await receiver.peek_messages(max_message_count=5, sequence_number=1)
        assert [message.delivery_count for message in peeked] == left
    dead = await bus.peek(queue, sub_queue=DEAD_LETTERS)
    assert len(dead) == (1 if status == "suspended" else 0)


async def test_another_receiver_may_complete_what_the_first_received(bus: Bus, queue: str) -> None:
    """R-SETTLE-10: the lock token belongs to the entity, not to the link (wire §6.4)."""
    await bus.send(queue, ServiceBusMessage("x"))
    first = await bus.open_receiver(queue)
    message = await receive_one(first)

    second = await bus.open_receiver(queue)
    await second.complete_message(message)
    assert await bus.peek(queue) == []


async def test_a_lock_is_renewed_after_its_link_is_gone(bus: Bus, queue: str) -> None:
    """R-SETTLE-10: "the lock can still be settled and renewed through $management"."""
    await bus.send(queue, ServiceBusMessage("x"))
    gone = await bus.open_receiver(queue)
    token = (await receive_one(gone)).lock_token
    await gone.close()

    async with bus.receiver(queue) as receiver:
        reply = await manage(receiver, "renew-lock", {"lock-tokens": amqp_array_value([token])})
        assert reply.status == 200
        [ends_ms] = reply.value[b"expirations"]
        assert ends_ms / 1000 > datetime.now(UTC).timestamp() + 25


async def test_an_unknown_lock_token_is_lock_lost(bus: Bus, queue: str) -> None:
    """R-SETTLE-10."""
    async with bus.receiver(queue) as receiver:
        reply = await settle_by_token(receiver, "completed", uuid.uuid4())
        assert (reply.status, reply.condition) == (410, "com.microsoft:message-lock-lost")


async def test_a_connection_that_breaks_gives_its_messages_back_at_once(
    open_bus: Callable[..., Bus], queue: str
) -> None:
    """R-SETTLE-10: locks of a broken network connection are lost, and the count rises."""
    bus = open_bus("sync")
    await bus.send(queue, ServiceBusMessage("x"))
    broken = bus.receiver(queue)
    message = await receive_one(broken)
    broken._inner._handler._connection._transport.sock.shutdown(socket.SHUT_RDWR)

    async with bus.receiver(queue) as receiver:
        again = await receive_one(receiver, wait_s=5)
        assert (text(again), again.delivery_count) == ("x", 1)
        reply = await settle_by_token(receiver, "completed", message.lock_token)
        assert reply.status == 410
        await receiver.complete_message(again)
    await broken.close()


async def test_a_lock_outlives_its_link_though_the_connection_breaks_after_the_detach(
    open_bus: Callable[..., Bus], queue: str
) -> None:
    """R-SETTLE-10. The sync SDK closes its socket with answers unread: a detach, then a reset."""
    bus = open_bus("sync")
    await bus.send(queue, ServiceBusMessage("x"))
    gone = bus.receiver(queue)
    token = (await receive_one(gone)).lock_token
    handler = gone._inner._handler
    handler._link.detach(close=True)
    until_blocking(
        "the link is detached",
        lambda: handler._connection.listen(wait=0.05) or handler._link.state is LinkState.DETACHED,
    )
    handler._connection._transport.sock.shutdown(socket.SHUT_RDWR)

    async with bus.receiver(queue) as receiver:
        await receive_none(receiver)
        reply = await settle_by_token(receiver, "completed", token)
        assert (reply.status, reply.condition) == (200, None)
    await gone.close()


async def test_a_change_of_the_queue_loses_the_locks(
    bus: Bus, queue: str, administration: Administration
) -> None:
    """R-SETTLE-10: "a change of the entity's properties … loses them"."""
    await bus.send(queue, ServiceBusMessage("x"))
    holder = await bus.open_receiver(queue)
    token = (await receive_one(holder)).lock_token
    administration.update(queue, max_delivery_count=5)

    async with bus.receiver(queue) as receiver:
        reply = await settle_by_token(receiver, "completed", token)
        assert (reply.status, reply.condition) == (410, "com.microsoft:message-lock-lost")
        again = await receive_one(receiver)
        assert text(again) == "x"
        await receiver.complete_message(again)


async def test_properties_changed_on_the_way_back_are_seen_next_time(bus: Bus, queue: str) -> None:
    """R-SETTLE-09: abandon may change application properties; here through $management."""
    await bus.send(queue, ServiceBusMessage("x", application_properties={"a": 1, "b": "old"}))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        changes = {"properties-to-modify": {"b": "new", "c": True}}
        reply = await settle_by_token(receiver, "abandoned", message.lock_token, **changes)
        assert reply.status == 200
        again = await receive_one(receiver)
        assert again.application_properties == {b"a": 1, b"b": b"new", b"c": True}
        assert text(again) == "x"


async def test_an_unknown_verdict_is_refused_by_name(bus: Bus, queue: str) -> None:
    """R-SETTLE-02: the narrowest refusal; the lock is as it was."""
    await bus.send(queue, ServiceBusMessage("x"))
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        reply = await settle_by_token(receiver, "eaten", message.lock_token)
        assert reply.status == 400
        assert "eaten" in str(reply.description)
        await receiver.complete_message(message)

"""What a stop, a kill and a start again keep, and what they do not."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, gather_messages, receive_one, text, texts
from tests.support.server import COMMAND, Server
from tests.support.waiting import until_blocking

ENDINGS = pytest.mark.parametrize("ending", ["stop", "kill"])


def end(server: Server, ending: str) -> None:
    if ending == "stop":
        assert server.stop() == 0
    else:
        server.kill()


@ENDINGS
async def test_one_message_survives(
    server: Server, open_bus: Callable[..., Bus], ending: str
) -> None:
    """R-SETTLE-01: accepted means on disk."""
    queue = Administration(server.connection_string).make_queue()
    await open_bus(server).send(queue, ServiceBusMessage("kept"))
    end(server, ending)
    server.start()

    bus = open_bus(server)
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "kept"
        await receiver.complete_message(message)
    end(server, ending)
    server.start()
    assert await open_bus(server).peek(queue) == []


@ENDINGS
async def test_every_state_of_a_message_survives(
    server: Server, open_bus: Callable[..., Bus], ending: str
) -> None:
    """R-SETTLE-01, R-SETTLE-09: active, deferred, scheduled, dead-lettered; counts and numbers."""
    administration = Administration(server.connection_string)
    queue = administration.make_queue(lock_s=60, max_delivery_count=5, user_metadata="mine")
    bus = open_bus(server)
    names = ("abandoned", "deferred", "dead", "completed", "locked", "active")
    await bus.send(queue, *(ServiceBusMessage(name) for name in names))
    async with bus.sender(queue) as sender:
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        [scheduled] = await sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        [cancelled] = await sender.schedule_messages(ServiceBusMessage("cancelled"), due)
        await sender.cancel_scheduled_messages(cancelled)
    async with bus.receiver(queue) as receiver:
        abandoned, deferred, dead, completed, _ = await gather_messages(receiver, 5)
        await receiver.abandon_message(abandoned)
        await receiver.defer_message(deferred)
        await receiver.dead_letter_message(dead, reason="r", error_description="d")
        await receiver.complete_message(completed)
    before = administration.counts(queue)
    end(server, ending)
    server.start()

    administration = Administration(server.connection_string)
    found = administration.client.get_queue(queue)
    assert (found.max_delivery_count, found.user_metadata) == (5, "mine")
    assert found.lock_duration == timedelta(seconds=60)
    after = administration.counts(queue)
    for count in ("active", "scheduled", "dead_letter", "total"):
        name = f"{count}_message_count"
        assert getattr(after, name) == getattr(before, name), name

    bus = open_bus(server)
    states = {
        text(m): (m.state, m.delivery_count, m.sequence_number) for m in await bus.peek(queue)
    }
    active = ServiceBusMessageState.ACTIVE
    assert states["abandoned"] == (active, 1, abandoned.sequence_number)
    assert states["deferred"] == (ServiceBusMessageState.DEFERRED, 1, deferred.sequence_number)
    assert states["scheduled"] == (ServiceBusMessageState.SCHEDULED, 0, scheduled)
    assert states["active"][0] == active
    assert states["locked"][0] == active
    assert len(states) == 5
    [letter] = await bus.peek(queue, sub_queue=DEAD_LETTERS)
    assert (text(letter), letter.dead_letter_reason) == ("dead", "r")
    assert letter.dead_letter_error_description == "d"

    # and all of it can be used
    async with bus.receiver(queue) as receiver:
        assert texts(await gather_messages(receiver, 3)) == ["abandoned", "locked", "active"]
        [fetched] = await receiver.receive_deferred_messages(deferred.sequence_number)
        await receiver.complete_message(fetched)
    async with bus.sender(queue) as sender:
        await sender.cancel_scheduled_messages(scheduled)
        await sender.send_messages(ServiceBusMessage("new"))
    newest = (await bus.peek(queue))[-1]
    assert text(newest) == "new"
    assert newest.sequence_number > cancelled, "numbers are never used twice"


async def test_a_message_that_came_due_while_the_server_was_down_is_delivered(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """semantics B §4."""
    queue = Administration(server.connection_string).make_queue()
    due = datetime.now(UTC) + timedelta(seconds=1)
    async with open_bus(server).sender(queue) as sender:
        await sender.schedule_messages(ServiceBusMessage("due"), due)
    server.kill()
    until_blocking("the message is due", lambda: datetime.now(UTC) > due)
    server.start()
    assert texts(await open_bus(server).receive(queue)) == ["due"]


@ENDINGS
async def test_a_restart_loses_locks_and_the_client_is_told(
    server: Server, open_bus: Callable[..., Bus], ending: str
) -> None:
    """R-SETTLE-10: locks are volatile; the message is delivered again."""
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server, retry_total=3)
    await bus.send(queue, ServiceBusMessage("x"))
    receiver = await bus.open_receiver(queue)
    message = await receive_one(receiver)
    end(server, ending)
    server.start()

    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)
    async with open_bus(server).receiver(queue) as again:
        assert text(await receive_one(again)) == "x"


async def test_a_client_with_retries_outlives_a_restart(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """R-SETTLE-02: what a stopping server says makes the SDK try again."""
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server, retry_total=5)
    sender = await bus.open_sender(queue)
    await sender.send_messages(ServiceBusMessage("before"))
    assert server.stop() == 0
    server.start()
    await sender.send_messages(ServiceBusMessage("after"))
    assert texts(await bus.peek(queue)) == ["before", "after"]


async def test_a_stop_under_load_answers_or_keeps_every_send(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """Drain, settle, flush, exit 0."""
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    acknowledged: list[str] = []

    async def send(name: str) -> None:
        with contextlib.suppress(ServiceBusError):
            async with bus.sender(queue) as sender:
                for n in range(10_000):
                    await sender.send_messages(ServiceBusMessage(f"{name}{n}"))
                    acknowledged.append(f"{name}{n}")

    load = [asyncio.ensure_future(send(name)) for name in "abcd"]
    while len(acknowledged) < 100:
        await asyncio.sleep(0.01)
    status = await asyncio.to_thread(server.stop)
    await asyncio.wait(load, timeout=30)
    assert status == 0

    server.start()
    kept: list[str] = []
    async with open_bus(server).receiver(queue) as receiver:
        while page := await receiver.peek_messages(max_message_count=250):
            kept += texts(page)
    assert len(kept) == len(set(kept))
    assert set(acknowledged) <= set(kept)


@ENDINGS
async def test_what_was_scheduled_comes_on_time_although_nobody_asks_for_the_queue(
    server: Server, open_bus: Callable[..., Bus], ending: str
) -> None:
    queue = Administration(server.connection_string).make_queue()
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
    async with open_bus(server).sender(queue) as sender:
        await sender.schedule_messages(ServiceBusMessage("later"), due)
    end(server, ending)
    server.start()

    # Counts are told without loading anything; the engine comes by itself when it is time.
    counts = Administration(server.connection_string).counts(queue)
    assert (counts.scheduled_message_count, counts.active_message_count) == (1, 0)
    await asyncio.sleep((due - datetime.now(UTC)).total_seconds() + 2)
    [message] = await open_bus(server).peek(queue)
    assert message.state is ServiceBusMessageState.ACTIVE
    assert timedelta(0) <= message.enqueued_time_utc - due < timedelta(seconds=1.5)


def test_a_second_signal_forces_the_stop(server: Server) -> None:
    """Whatever the first one still waits for."""
    server.signal(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):
        server.signal(signal.SIGTERM)
    server.wait(within_s=10)


def test_a_data_folder_has_one_server(server: Server) -> None:
    """The second process says which folder and leaves it alone."""
    second = subprocess.run(
        [COMMAND, "serve", "--port", "0", "--admin-port", "0", "--data", server.data],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode != 0
    assert str(server.data) in second.stderr + second.stdout
    assert server.running
    Administration(server.connection_string).make_queue()


def test_a_folder_whose_server_was_killed_can_be_opened(server: Server) -> None:
    """The lock dies with the process."""
    server.kill()
    server.start()
    assert server.running


async def test_an_ephemeral_server_forgets(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus]
) -> None:
    """`--ephemeral` keeps nothing and writes no folder."""
    server = make_server("--ephemeral").start()
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    await bus.send(queue, ServiceBusMessage("x"))
    assert texts(await bus.receive(queue)) == ["x"]
    assert server.stop() == 0
    server.start()
    assert queue not in [
        q.name for q in Administration(server.connection_string).client.list_queues()
    ]
    assert not server.data.exists()

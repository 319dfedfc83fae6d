"""What a stop and a kill keep of message sessions: their messages, their order, their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from tests.support.administration import Administration
from tests.support.bus import Bus, gather_messages, receive_one, text, texts
from tests.support.server import Server


def end(server: Server, ending: str) -> None:
    if ending == "stop":
        assert server.stop() == 0
    else:
        server.kill()


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_sessions_survive(server: Server, open_bus: Callable[..., Bus], ending: str) -> None:
    queue = Administration(server.connection_string).make_queue(requires_session=True, lock_s=60)
    bus = open_bus(server)
    await bus.send(queue, *(ServiceBusMessage(f"{n}", session_id=f"s{n % 4}") for n in range(40)))
    receiver = await bus.open_receiver(queue, session_id="s1")
    await bus.session(receiver).set_state(b"first")
    await bus.session(receiver).set_state(b"second")
    done, deferred = await receive_one(receiver), await receive_one(receiver)
    await receiver.complete_message(done)
    await receiver.defer_message(deferred)
    await receive_one(receiver)  # and does not settle it
    end(server, ending)
    server.start()

    bus = open_bus(server)
    assert await bus.sessions(queue) == [f"s{n}" for n in range(4)]
    # the lock of the session is not kept: it is free at once
    async with bus.receiver(queue, session_id="s1") as receiver:
        assert await bus.session(receiver).get_state() == b"second"
        [fetched] = await receiver.receive_deferred_messages(deferred.sequence_number)
        assert text(fetched) == text(deferred)
        await receiver.complete_message(fetched)
        left = await gather_messages(receiver, 8)
        assert texts(left) == [f"{n}" for n in range(9, 40, 4)]
        assert left[0].delivery_count == 0
        await bus.session(receiver).set_state(None)
    end(server, ending)
    server.start()
    async with open_bus(server).receiver(queue, session_id="s1") as receiver:
        assert await receiver.session.get_state() is None


async def test_a_kill_while_sessions_are_worked_on_loses_and_mixes_nothing(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    """Each session is taken in order; what comes twice is what was completed and not heard of."""
    queue = Administration(server.connection_string).make_queue(
        requires_session=True, max_delivery_count=1000
    )
    count, sessions = 200, 5
    sent = [ServiceBusMessage(f"{n}", session_id=f"s{n % sessions}") for n in range(count)]
    await open_bus(server).send(queue, *sent)
    seen: dict[str, list[int]] = {f"s{n}": [] for n in range(sessions)}
    completed: set[int] = set()

    async def work(bus: Bus, over: asyncio.Event) -> None:
        while len(completed) < count and not over.is_set():
            try:
                async with bus.receiver(
                    queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2
                ) as receiver:
                    session = receiver.session.session_id
                    for each in await gather_messages(receiver, 7, wait_s=1):
                        seen[session].append(int(text(each)))
                        await receiver.complete_message(each)
                        completed.add(int(text(each)))
            except OperationTimeoutError:
                # what was completed, and the answer lost with the server, comes no more
                completed.update(set(range(count)) if not await bus.sessions(queue) else ())
            except ServiceBusError:
                await asyncio.sleep(0.1)

    for kills_left in (2, 1, 0):
        bus, over = open_bus(server), asyncio.Event()
        workers = [asyncio.create_task(work(bus, over)) for _ in range(3)]
        before = len(completed)
        while kills_left and len(completed) < before + 30:
            await asyncio.sleep(0.02)
        if kills_left:
            server.kill()
            over.set()
            server.start()
        await asyncio.wait_for(asyncio.gather(*workers), 60)
    for number in range(sessions):
        expected = list(range(number, count, sessions))
        got = seen[f"s{number}"]
        assert sorted(set(got)) == expected
        # only ever back to what nobody had confirmed, and on from there
        assert list(dict.fromkeys(got)) == expected
    assert await open_bus(server).sessions(queue) == []

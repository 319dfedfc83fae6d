"""A receive over HTTP: after its commit, within its time, and back when nobody is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import (
    ConnectionForced,
    EntityNotFound,
    InternalError,
    ServerBusy,
    StoreUnavailable,
)
from postbus.http import long_poll
from postbus.http.long_poll import LongPoll
from postbus.messages.envelope import read_message
from postbus.model.plain_message import ReceivedMessage
from tests.support.bed import Bed, settled

LONG_MS = 30_000


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


class Client:
    """One request over HTTP."""

    def __init__(self, bed: Bed, deletes: bool = False, subqueue: int = MAIN) -> None:
        self.poll = LongPoll(bed.fragment, subqueue, bed.runtime, deletes)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, wait_ms: int = LONG_MS) -> asyncio.Task[ReceivedMessage | None]:
        return asyncio.ensure_future(self.poll.receive(wait_ms, self.gone))

    async def body(self, wait_ms: int = LONG_MS) -> bytes | None:
        received = await asyncio.wait_for(self.ask(wait_ms), 10)
        return None if received is None else received.message.body


def send(bed: Bed, *bodies: bytes) -> asyncio.Future[Any]:
    messages = [
        read_message(encode_properties(Properties(message_id="m")) + encode_data(body), 1_000)
        for body in bodies
    ]
    return bed.ask(lambda queue, now, pages: queue.send(messages, now))


async def counts(bed: Bed) -> tuple[int, int, int]:
    """Messages, locks and places in the line."""
    found = await bed.ask(lambda queue, now, pages: (queue.ledger.count(MAIN), len(queue.locks)))
    return (*found, len(bed.fragment.receiver_queues[MAIN].members))


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_waiting_message_is_had_at_once(bed: Bed, deletes: bool) -> None:
    await send(bed, b"1", b"2")
    client = Client(bed, deletes)
    received = await client.ask()
    assert received is not None
    assert (received.message.body, received.failures) == (b"1", 0)
    assert (received.token is None) is deletes
    assert client.poll.size == len(
        encode_properties(Properties(message_id="m")) + encode_data(b"1")
    )
    assert await counts(bed) == ((1, 0, 0) if deletes else (2, 1, 0))


async def test_a_wait_ends_when_a_message_comes(bed: Bed) -> None:
    waiting = Client(bed).ask()
    await settled()
    assert not waiting.done()
    assert bed.fragment.engine is not None and bed.fragment.engine.own.receivers[MAIN] == 1
    await send(bed, b"late")
    received = await asyncio.wait_for(waiting, 10)
    assert received is not None and received.message.body == b"late"
    assert bed.fragment.engine.own.receivers[MAIN] == 0


async def test_nothing_is_told_before_its_commit(bed: Bed) -> None:
    """R-SETTLE-05: removed durably, then answered."""
    await send(bed, b"1")
    bed.store.open.clear()
    waiting = Client(bed, deletes=True).ask()
    await settled()
    assert not waiting.done()
    bed.store.open.set()
    received = await asyncio.wait_for(waiting, 10)
    assert received is not None and received.message.body == b"1"


async def test_a_wait_that_is_over_before_the_commit_still_gets_its_message(bed: Bed) -> None:
    await send(bed, b"1")
    bed.store.open.clear()
    waiting = Client(bed, deletes=True).ask(wait_ms=1)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert not bed.fragment.receiver_queues[MAIN].members
    bed.store.open.set()
    received = await asyncio.wait_for(waiting, 10)
    assert received is not None and received.message.body == b"1"


async def test_a_wait_for_nothing_ends(bed: Bed) -> None:
    assert await Client(bed).body(wait_ms=5) is None
    assert await counts(bed) == (0, 0, 0)
    assert bed.fragment.on_lost == {}


async def test_who_does_not_wait_is_told_at_once_that_there_is_nothing(bed: Bed) -> None:
    assert await Client(bed).body(wait_ms=0) is None
    await send(bed, b"1")
    assert await Client(bed, subqueue=DEAD_LETTER).body(wait_ms=0) is None
    assert await Client(bed).body(wait_ms=0) == b"1"
    assert await Client(bed).body(wait_ms=0) is None


@pytest.mark.interpreted_only
async def test_who_does_not_wait_hears_when_the_store_does_not_tell(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "NOTHING_WITHIN_S", 0.02)
    monkeypatch.setattr(bed.runtime, "wake", lambda fragment: None)
    with pytest.raises(ServerBusy):
        await Client(bed).body(wait_ms=0)


async def test_polls_are_served_in_the_order_they_came(bed: Bed) -> None:
    tasks = [Client(bed).ask() for _ in range(3)]
    await settled()
    await send(bed, b"0", b"1", b"2", b"3")
    found = await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert [each.message.body for each in found if each is not None] == [b"0", b"1", b"2"]


async def test_who_has_gone_leaves_the_line(bed: Bed) -> None:
    client = Client(bed)
    waiting = client.ask()
    await settled()
    client.gone.set_result(None)
    assert await asyncio.wait_for(waiting, 10) is None
    assert await counts(bed) == (0, 0, 0)
    await send(bed, b"1")
    assert await Client(bed).body() == b"1"


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_message_taken_for_one_who_has_gone_is_given_back(bed: Bed, deletes: bool) -> None:
    await send(bed, b"1")
    bed.store.open.clear()
    barrier = send(bed, b"2")
    client = Client(bed, deletes)
    waiting = client.ask()
    await settled()
    client.gone.set_result(None)
    assert await asyncio.wait_for(waiting, 10) is None
    bed.store.open.set()
    await barrier
    await settled()
    assert await counts(bed) == (2, 0, 0)
    received = await Client(bed).ask()
    assert received is not None
    assert (received.message.body, received.failures, received.number) == (b"1", 0, 1)


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_message_that_comes_in_the_very_moment_of_going_is_given_back(
    bed: Bed, deletes: bool
) -> None:
    client = Client(bed, deletes)
    waiting = client.ask()
    await settled()
    deliver = client.poll.deliver

    def deliver_and_go(outgoing: Any) -> None:
        deliver(outgoing)
        client.gone.set_result(None)

    client.poll.deliver = deliver_and_go  # type: ignore[method-assign]
    await send(bed, b"1")
    assert await asyncio.wait_for(waiting, 10) is None
    await settled()
    assert await counts(bed) == (1, 0, 0)


async def test_a_request_that_is_cancelled_gives_its_message_back(bed: Bed) -> None:
    await send(bed, b"1")
    bed.store.open.clear()
    barrier = send(bed, b"2")
    waiting = Client(bed).ask()
    await settled()
    waiting.cancel()
    await settled()
    bed.store.open.set()
    await barrier
    await settled()
    assert await counts(bed) == (2, 0, 0)


async def test_a_failed_commit_ends_the_wait(bed: Bed) -> None:
    await send(bed, b"1")
    waiting = Client(bed, deletes=True).ask()
    bed.store.failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable, match="disk full"):
        await asyncio.wait_for(waiting, 10)
    assert await Client(bed).body() == b"1"
    assert bed.fragment.on_lost == {}


async def test_a_deleted_entity_ends_the_wait(bed: Bed) -> None:
    waiting = Client(bed).ask()
    await settled()
    bed.fragment.gone = EntityNotFound("orders")
    bed.runtime.discard(bed.fragment, bed.fragment.gone)
    with pytest.raises(EntityNotFound):
        await asyncio.wait_for(waiting, 10)


async def test_a_stop_ends_the_wait_but_lets_through_what_is_on_its_way(bed: Bed) -> None:
    idle, busy = Client(bed), Client(bed, deletes=True)
    await send(bed, b"1")
    bed.store.open.clear()
    taking = busy.ask()
    await settled()
    waiting = idle.ask()
    await settled()
    idle.poll.stop()
    busy.poll.stop()
    with pytest.raises(ConnectionForced):
        await asyncio.wait_for(waiting, 10)
    bed.store.open.set()
    received = await asyncio.wait_for(taking, 10)
    assert received is not None and received.message.body == b"1"


async def test_a_message_that_cannot_be_read_is_not_lost(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(bed, b"1")

    def broken(message: Message, raw: bytes) -> ReceivedMessage:
        raise ValueError

    with monkeypatch.context() as patched:
        patched.setattr(long_poll, "to_received", broken)
        with pytest.raises(InternalError):
            await Client(bed, deletes=True).body()
    assert await Client(bed).body() == b"1"

"""A stop does not wait for work that the next start can go on with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postbus.broker import topic as topics
from postbus.broker.destination import Destination
from postbus.broker.message import OUTBOX, PUBLISHING, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call
from tests.support.bed import Bed
from tests.support.operations import Do
from tests.support.topics import Sorter


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


async def until(ask: Callable[[], bool]) -> None:
    """Sooner than tests.support.waiting, which is for other processes."""
    async with asyncio.timeout(10):
        while not ask():
            await asyncio.sleep(0)


def publish(bed: Bed, fragment: LoadedFragment, count: int) -> list[Any]:
    answers: list[Any] = []
    messages = [Message(b"body", f"m{number}") for number in range(count)]
    bed.runtime.submit(
        Call(
            fragment,
            Do(lambda engine, now, _: engine.send(messages, now)),
            answers.append,
            answers.append,
        )
    )
    return answers


@pytest.mark.interpreted_only
async def test_a_stop_leaves_a_long_fan_out_to_the_next_start(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "COPIES_AT_ONCE", 1)
    fragment = LoadedFragment(1, 0, 0, "topic", Policy())
    fragment.matcher = matcher = Sorter()
    matcher.rules = {1: None, 2: None}
    fragment.subscriptions = {owner: (f"s{owner}", Policy()) for owner in (1, 2)}
    answers = publish(bed, fragment, 2_000)
    await until(lambda: bool(answers))
    engine = fragment.engine
    assert engine is not None
    await bed.runtime.stop([fragment])
    assert engine.ledger.count(MAIN, PUBLISHING) > 1_000
    lease = bed.store.acquire(1, "next", 0)
    assert lease.checkpoint == lease.head


async def test_a_courier_that_was_stopped_sends_nothing_more(bed: Bed) -> None:
    source = LoadedFragment(1, 0, 0, "source", Policy(forward_to=Destination((2,))))
    end = LoadedFragment(2, 0, 0, "end", Policy())
    forwarder = Forwarder({1: source, 2: end}.get, lambda _: bed.runtime)
    forwarder.serve(source)
    publish(bed, source, 3)
    await until(lambda: end.engine is not None and end.engine.ledger.count(MAIN) == 3)
    assert source.engine is not None
    forwarder.stop()
    answers = publish(bed, source, 1)
    await until(lambda: bool(answers))
    await bed.runtime.quiet()
    assert source.engine.ledger.count(MAIN, OUTBOX) == 1
    await bed.runtime.stop([source, end])
    assert source.engine is None and end.engine is None

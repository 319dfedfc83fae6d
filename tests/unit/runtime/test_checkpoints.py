"""A checkpoint is part of a commit like any other: others go on, and it fails with its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from postbus.broker import browse
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import StoreUnavailable
from postbus.runtime.runtime import AHEAD_REQUESTS_MIN
from tests.unit.runtime.test_runtime import Bed, Taker, many, settled


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


async def test_a_checkpoint_stops_nobody(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    first = many(bed, count=1)
    await settled()
    bed.fragment.checkpoint_wanted = True
    ahead = many(bed)
    await settled()
    assert bed.fragment.engine is not None
    ledger = bed.fragment.engine.ledger
    assert ledger.delta.frozen, "beside a commit that is under way"
    behind = many(bed)
    await settled()
    assert ledger.count(MAIN) == 2 + 2 * AHEAD_REQUESTS_MIN, "decided beside the checkpoint"
    assert ledger.checkpoint == 0
    bed.store.open.set()
    await asyncio.gather(*first, *ahead, *behind)
    await settled()
    assert not ledger.delta.frozen
    assert ledger.checkpoint == 2 + AHEAD_REQUESTS_MIN
    assert ledger.delta.size == AHEAD_REQUESTS_MIN, "changes since the freeze"
    bed.runtime.discard(bed.fragment, StoreUnavailable("restart"))
    found = await bed.ask(lambda queue, _, pages: browse.peek(queue, MAIN, 0, 250, 1 << 20, pages))
    assert len(found) == 2 + 2 * AHEAD_REQUESTS_MIN


async def test_a_checkpoint_fails_with_the_commit_before_it(bed: Bed) -> None:
    await bed.send(b"kept")
    bed.store.open.clear()
    bed.store.failure = StoreUnavailable("disk full")
    first = many(bed, count=1)
    await settled()
    bed.fragment.checkpoint_wanted = True
    ahead = many(bed)
    await settled()
    bed.store.open.set()
    for answer in (*first, *ahead):
        with pytest.raises(StoreUnavailable):
            await answer
    assert bed.fragment.engine is None
    assert await bed.send(b"later") == [2], "the refused messages left no trace"
    taker = Taker(bed.fragment, credit=50)
    bed.join(taker)
    await settled()
    assert taker.taken == [b"kept", b"later"]


async def test_a_checkpoint_that_fails_alone_costs_nobody_anything(bed: Bed) -> None:
    """Its part has no records, so the store takes the commit behind it."""
    await bed.send(b"0")
    bed.store.open.clear()
    bed.store.failure = StoreUnavailable("disk full")
    bed.fragment.checkpoint_wanted = True
    bed.runtime.wake(bed.fragment)
    await settled()
    behind = many(bed)
    await settled()
    bed.store.open.set()
    await asyncio.gather(*behind)
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.delta.size == 1 + AHEAD_REQUESTS_MIN
    bed.fragment.checkpoint_wanted = True
    bed.runtime.wake(bed.fragment)
    await settled()
    assert bed.fragment.engine.ledger.checkpoint == 1 + AHEAD_REQUESTS_MIN
    assert bed.fragment.engine.ledger.delta.size == 0
    bed.runtime.discard(bed.fragment, StoreUnavailable("restart"))
    found = await bed.ask(lambda queue, _, pages: browse.peek(queue, MAIN, 0, 250, 1 << 20, pages))
    assert len(found) == 1 + AHEAD_REQUESTS_MIN

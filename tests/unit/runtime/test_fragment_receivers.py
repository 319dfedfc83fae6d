"""One receiver of several fragments: one credit, an exact drain, and no fragment left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.observe.meters import EntityMeter
from postbus.runtime import fragment_receivers
from postbus.runtime.fragment_receivers import FragmentReceivers
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.operations import Store, ask
from postbus.runtime.receivers import OutgoingMessage
from tests.unit.runtime.test_runtime import Bed, Taker, settled

FRAGMENTS = 4


class Merged(Taker):
    """A receiver with credit for messages of all fragments."""

    def __init__(self, bed: PartitionedBed, credit: int, deletes: bool = False) -> None:
        super().__init__(bed.fragments[0], credit, deletes)
        self.events: list[str] = []
        self.lost: list[int] = []
        runtimes = [bed.runtime] * len(bed.fragments)
        self.places = FragmentReceivers(self, bed.fragments, runtimes, MAIN, 0)
        self.places.open()

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        super().deliver(messages)
        self.events += [outgoing.raw.decode() for outgoing in messages]

    def drained(self) -> None:
        super().drained()
        self.events.append("drained")

    def satisfied(self) -> bool:
        return self.credit == 0

    def returned(self, count: int, size: int) -> None:
        self.credit += count

    def engine_lost(self, fragment: LoadedFragment, error: ServiceBusError) -> None:
        self.lost.append(fragment.index)

    def drain(self) -> None:
        self.draining = True
        self.places.wake()


class PartitionedBed(Bed):
    """A runtime on a gated store, and a queue of several fragments."""

    def __init__(self) -> None:
        super().__init__()
        self.fragments = [
            LoadedFragment(1 + index, index, 0, "orders", Policy()) for index in range(FRAGMENTS)
        ]
        for fragment in self.fragments:
            fragment.meter = EntityMeter()

    def send_to(self, index: int, *bodies: bytes) -> asyncio.Future[Any]:
        store = Store([Message(body) for body in bodies])
        return asyncio.ensure_future(ask(self.runtime, self.fragments[index], store))

    async def fill(self, count: int) -> None:
        """So many messages in each fragment, named by it."""
        for index in range(FRAGMENTS):
            await self.send_to(index, *[b"%d" % index] * count)


@pytest.fixture
async def bed() -> AsyncIterator[PartitionedBed]:
    bed = PartitionedBed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


@pytest.mark.parametrize("deletes", [False, True])
async def test_r_part_06_a_receiver_never_gets_more_than_its_credit(
    bed: PartitionedBed, deletes: bool
) -> None:
    """R-PART-06."""
    await bed.fill(5)
    taker = Merged(bed, credit=7, deletes=deletes)
    taker.places.wake()
    await settled()
    assert len(taker.taken) == 7 and taker.credit == 0
    taker.credit = 100
    taker.places.wake()
    await settled()
    assert len(taker.taken) == 5 * FRAGMENTS
    assert Counter(taker.taken) == {b"%d" % index: 5 for index in range(FRAGMENTS)}


async def test_no_fragment_is_left_behind(bed: PartitionedBed) -> None:
    await bed.fill(5)
    taker = Merged(bed, credit=0)
    for _ in range(2 * FRAGMENTS):
        taker.credit += 1
        taker.places.wake()
        await settled()
    assert Counter(taker.taken) == {b"%d" % index: 2 for index in range(FRAGMENTS)}


async def test_the_next_message_of_any_fragment_finds_a_receiver_that_waits(
    bed: PartitionedBed,
) -> None:
    taker = Merged(bed, credit=FRAGMENTS)
    taker.places.wake()
    await settled()
    for index in reversed(range(FRAGMENTS)):
        await bed.send_to(index, b"%d" % index)
        await settled()
    assert taker.taken == [b"%d" % index for index in reversed(range(FRAGMENTS))]


@pytest.mark.parametrize("index", range(FRAGMENTS))
async def test_a_drain_is_answered_when_every_fragment_is_empty(
    bed: PartitionedBed, index: int
) -> None:
    await bed.send_to(index, b"last")
    taker = Merged(bed, credit=5)
    taker.drain()
    await settled()
    assert taker.events == ["last", "drained"]
    taker.credit = 5
    taker.drain()
    await settled()
    assert taker.events == ["last", "drained", "drained"]


async def test_a_drain_waits_for_what_is_on_its_way(bed: PartitionedBed) -> None:
    await bed.fill(1)
    bed.store.open.clear()
    taker = Merged(bed, credit=9, deletes=True)
    taker.drain()
    await settled()
    assert taker.events == []
    bed.store.open.set()
    await settled()
    assert taker.events == ["0", "1", "2", "3", "drained"]


async def test_a_drain_that_used_all_credit_is_answered(bed: PartitionedBed) -> None:
    await bed.fill(2)
    taker = Merged(bed, credit=3)
    taker.drain()
    await settled()
    assert len(taker.taken) == 3
    assert taker.events[-1] == "drained" and taker.was_drained == 1


async def test_a_message_that_comes_while_others_are_asked_comes_before_the_answer(
    bed: PartitionedBed,
) -> None:
    taker = Merged(bed, credit=5)
    places = taker.places.places
    taker.drain()
    await settled()
    assert taker.events == ["drained"]
    # As if the last fragment had not answered when the message came to the first one.
    taker.draining = True
    for place in places:
        place.draining, place.said_empty = True, place is not places[-1]
    places[0].waiting = False
    await bed.send_to(0, b"late")
    places[-1].drained()
    await settled()
    assert taker.events == ["drained", "late", "drained"]


@pytest.mark.interpreted_only
async def test_a_lost_engine_takes_its_own_messages_only(
    bed: PartitionedBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-PART-03: the others go on, and so does it when it is loaded again."""
    monkeypatch.setattr(fragment_receivers, "AGAIN_S", 0.01)
    await bed.send_to(0, b"0")
    taker = Merged(bed, credit=2, deletes=True)
    bed.store.failure = StoreUnavailable("disk full")
    taker.places.wake()
    await settled()
    assert taker.lost == [0]
    await bed.send_to(1, b"1")
    for _ in range(100):
        if len(taker.taken) == 2:
            break
        await settled()
    assert sorted(taker.taken) == [b"0", b"1"]
    assert taker.credit == 0


async def test_a_receiver_without_credit_is_in_nobodys_way(bed: PartitionedBed) -> None:
    """Each message would find it in front of receivers that can take it."""
    taker = Merged(bed, credit=1)
    taker.places.wake()
    await settled()
    assert all(fragment.receivers_of(MAIN).waiting for fragment in bed.fragments)
    await bed.send_to(2, b"2")
    await settled()
    assert taker.taken == [b"2"]
    assert not any(fragment.receivers_of(MAIN).waiting for fragment in bed.fragments)


async def test_a_closed_receiver_gets_nothing(bed: PartitionedBed) -> None:
    taker = Merged(bed, credit=5)
    taker.places.wake()
    await settled()
    taker.places.close()
    await bed.fill(1)
    await settled()
    assert taker.taken == []
    assert not any(fragment.on_lost for fragment in bed.fragments)
    assert not any(fragment.receivers_of(MAIN).members for fragment in bed.fragments)

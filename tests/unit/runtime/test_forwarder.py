"""The courier between entities: a bounded number of shipments, in turn, and none given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postbus.broker import forwarding
from postbus.broker.destination import Destination
from postbus.broker.forwarding import outbox_id
from postbus.broker.message import OUTBOX, Message
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, subqueue_of
from postbus.errors import StoreUnavailable
from postbus.runtime import forwarder as forwarders
from postbus.runtime.forwarder import Forwarder
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call
from tests.support.bed import Bed
from tests.support.operations import Do
from tests.support.topics import Sorter

TOPIC, END = 1, 2


class Town:
    """A topic whose subscriptions forward to one queue."""

    def __init__(self, subscriptions: int) -> None:
        self.bed = Bed()
        self.topic = LoadedFragment(TOPIC, 0, 0, "topic", Policy())
        self.end = LoadedFragment(END, 0, 0, "end", Policy())
        self.owners = range(1, subscriptions + 1)
        matcher = Sorter()
        matcher.rules = dict.fromkeys(self.owners)
        self.topic.matcher = matcher
        self.topic.subscriptions = {
            owner: (f"s{owner}", Policy(forward_to=Destination((END,)))) for owner in self.owners
        }
        self.fragments = {TOPIC: self.topic, END: self.end}
        self.forwarder = Forwarder(self.fragments.get, lambda _: self.bed.runtime)
        self.forwarder.serve(self.topic)

    async def publish(self, count: int) -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        messages = [Message(b"body", f"m{number}") for number in range(count)]
        self.bed.runtime.submit(
            Call(
                self.topic,
                Do(lambda engine, now, _: engine.send(messages, now)),
                done.set_result,
                done.set_exception,
            )
        )
        await done

    def count(self, kind: int, lane: int = 0) -> int:
        """Of all subscriptions."""
        engine = self.topic.engine
        assert engine is not None
        return sum(engine.ledger.count(subqueue_of(n, kind), lane) for n in self.owners)

    @property
    def arrived(self) -> int:
        return 0 if self.end.engine is None else self.end.engine.ledger.count(MAIN)


async def until(ask: Callable[[], bool]) -> None:
    """Sooner than tests.support.waiting, which is for other processes."""
    async with asyncio.timeout(10):
        while not ask():
            await asyncio.sleep(0)


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    town = Town(12)
    yield town
    town.bed.store.open.set()
    await town.bed.thread.stop()


async def test_no_more_shipments_are_under_way_than_the_bound(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "BATCHES_MAX", 3)
    most = 0
    collect = Forwarder._collect

    def counting(forwarder: Forwarder, fragment: LoadedFragment, subqueue: int) -> None:
        nonlocal most
        most = max(most, len(forwarder._under_way))
        collect(forwarder, fragment, subqueue)

    monkeypatch.setattr(Forwarder, "_collect", counting)
    await town.publish(5)
    await until(lambda: town.arrived == 60)
    assert most == 3
    await town.bed.runtime.quiet()
    assert town.count(MAIN, OUTBOX) == 0


async def test_what_is_forwarded_to_an_entity_that_is_gone_is_a_dead_letter(town: Town) -> None:
    del town.fragments[END]
    await town.publish(2)
    await until(lambda: town.count(DEAD_LETTER) == 24)
    assert town.count(MAIN, OUTBOX) == 0


async def test_a_message_stays_at_its_source_too_if_its_destination_goes_before_that_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The destination's mark goes with it. A dead letter too many is better than one too few."""
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    town, accepted = Town(1), Forwarder._accepted

    def first_fails(forwarder: Forwarder, *given: Any) -> None:
        monkeypatch.setattr(Forwarder, "_accepted", accepted)
        town.bed.store.failure = StoreUnavailable("The disk is full.")
        accepted(forwarder, *given)
        del town.fragments[END]

    monkeypatch.setattr(Forwarder, "_accepted", first_fails)
    await town.publish(1)
    await until(lambda: town.topic.engine is not None and town.count(DEAD_LETTER) == 1)
    assert town.arrived == 1
    assert town.count(MAIN, OUTBOX) == 0
    await town.bed.thread.stop()


async def test_a_store_that_does_not_answer_is_asked_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "TRY_AGAIN_S", 0.01)
    await town.publish(1)
    town.bed.store.failure = StoreUnavailable("The disk is full.")
    await until(lambda: town.bed.store.failure is None)
    await until(lambda: town.topic.engine is not None and town.arrived == 12)
    await town.bed.runtime.quiet()
    assert town.count(DEAD_LETTER) == 0


async def test_a_destination_that_could_not_be_read_is_asked_again(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarders, "SEE_AGAIN_S", 0.01)
    accept, failures = forwarding.accept, 1

    def broken(*given: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise RuntimeError("not as it was left")
        return accept(*given)

    monkeypatch.setattr(forwarding, "accept", broken)
    await town.publish(1)
    await until(lambda: town.arrived == 12)
    await town.bed.runtime.quiet()
    assert town.count(DEAD_LETTER) == 0


def marks(town: Town) -> set[int]:
    engine = town.end.engine
    assert engine is not None
    return set(engine.ledger.marks)


async def look(town: Town) -> None:
    """What upkeep does, and the checkpoint that comes of it."""
    town.forwarder.forget_marks(town.end)
    await town.bed.runtime.quiet()


async def test_the_mark_of_a_subscription_goes_with_it_and_stays_away(town: Town) -> None:
    await town.publish(1)
    await until(lambda: town.arrived == 12)
    await town.bed.runtime.quiet()
    everyone = {outbox_id(TOPIC, subqueue_of(owner)) for owner in town.owners}
    await look(town)
    assert marks(town) == everyone, "they may all send again"
    town.topic.subscriptions.pop(3)
    await look(town)
    assert marks(town) == everyone, "the engine has not heard of it"
    assert town.topic.engine is not None
    town.topic.engine.remove_subscription(3)
    await town.publish(1)
    await until(lambda: town.arrived == 23)
    await town.bed.runtime.quiet()
    await look(town)
    left = everyone - {outbox_id(TOPIC, subqueue_of(3))}
    assert marks(town) == left
    # and the next engine knows no more than this one
    town.bed.runtime.discard(town.end, StoreUnavailable("for the test"))
    town.bed.runtime.wake(town.end)
    await until(lambda: town.end.engine is not None)
    assert marks(town) == left


async def test_the_marks_of_an_entity_that_is_gone_stay_while_a_shipment_is_under_way(
    town: Town,
) -> None:
    await town.publish(1)
    await until(lambda: town.arrived == 12)
    await town.bed.runtime.quiet()
    first = outbox_id(TOPIC, subqueue_of(1))
    del town.fragments[TOPIC]
    town.forwarder._under_way.add((town.topic, subqueue_of(1)))
    assert town.end.engine is not None
    town.forwarder.forget_marks(town.end)
    assert town.end.engine.ledger.outdated == marks(town) - {first}
    # One that comes late all the same keeps its mark.
    late = outbox_id(TOPIC, subqueue_of(2))
    assert forwarding.accept(town.end.engine, late, [], 0) == (0, None)
    town.forwarder._under_way.clear()
    town.end.engine.ledger.make_checkpoint()
    assert marks(town) == {first, late}

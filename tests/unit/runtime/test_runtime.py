"""Durable before answered: one place, and what it does when the store says no."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import EntityNotFound, InternalError, ServiceBusError, StoreUnavailable
from postbus.model.times import Instant
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call, Lose
from postbus.runtime.runtime import AHEAD_REQUESTS_MIN, QUEUED_REQUESTS_MAX
from tests.support.bed import Bed, Taker, bed, settled
from tests.support.operations import Do

__all__ = ["bed"]


async def test_nothing_leaves_before_its_commit(bed: Bed) -> None:
    """R-SETTLE-01; a delivery, an answer and a refusal wait for the same commit."""
    await bed.send(b"1")
    taker = Taker(bed.fragment, credit=5)
    bed.store.open.clear()
    sent = bed.send(b"2")
    refused = bed.ask(lambda queue, now, pages: queue.complete(b"no lock", now))
    bed.join(taker)
    await settled()
    assert not sent.done()
    assert not refused.done()
    assert taker.taken == []

    bed.store.open.set()
    assert await sent == [2]
    with pytest.raises(ServiceBusError):
        await refused
    await settled()
    assert taker.taken == [b"1", b"2"]


async def test_what_arrives_during_a_commit_is_the_next_batch(bed: Bed) -> None:
    await bed.send(b"0")
    before = bed.store.commits
    bed.store.open.clear()
    first = bed.send(b"1")
    await settled()
    rest = [bed.send(b"%d" % n) for n in range(2, 50)]
    await settled()
    bed.store.open.set()
    await asyncio.gather(first, *rest)
    assert bed.store.commits - before == 2


async def test_a_failed_commit_acknowledges_nothing_and_the_engine_is_loaded_again(
    bed: Bed,
) -> None:
    await bed.send(b"kept")
    lost: list[ServiceBusError] = []
    bed.fragment.on_lost[lost.append] = None
    bed.store.failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable):
        await bed.send(b"refused")
    assert bed.fragment.engine is None
    assert len(lost) == 1, "links are told, for every lock is lost"
    assert bed.meter.failures == 1

    assert await bed.send(b"later") == [2], "the refused message left no trace"
    taker = Taker(bed.fragment, credit=5)
    bed.join(taker)
    await settled()
    assert taker.taken == [b"kept", b"later"]


async def test_a_delivery_that_was_to_be_committed_with_a_failure_does_not_go_out(
    bed: Bed,
) -> None:
    """R-SETTLE-05: receive-and-delete commits the removal first."""
    await bed.send(b"1")
    taker = Taker(bed.fragment, credit=1, deletes=True)
    bed.store.failure = StoreUnavailable("disk full")
    bed.join(taker)
    await settled()
    assert taker.taken == []
    again = Taker(bed.fragment, credit=1, deletes=True)
    bed.fragment.receivers_of(MAIN).leave(taker)
    await bed.ask(lambda queue, now, pages: None)
    bed.join(again)
    await settled()
    assert again.taken == [b"1"]


async def test_a_fault_of_ours_stops_the_fragment_and_answers_nobody_wrongly(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    blocker = bed.send(b"1")
    await settled()
    decided = bed.send(b"2")

    def burst(queue: Queue, now: Instant, pages: Pages) -> None:
        raise ZeroDivisionError

    faulty = bed.ask(burst)
    bed.store.open.set()
    assert await blocker == [2]
    with pytest.raises(InternalError):
        await faulty
    with pytest.raises(InternalError):
        await decided  # its record went with the engine
    assert await bed.send(b"3") == [3]


async def test_an_answer_that_fails_does_not_cost_the_others_theirs(bed: Bed) -> None:
    def explode(result: object) -> None:
        raise RuntimeError("this client's connection is broken")

    await bed.send(b"0")
    bed.runtime.submit(
        Call(bed.fragment, Do(lambda q, now, pages: None), explode, lambda error: None)
    )
    assert await bed.send(b"1") == [2]


async def test_a_deleted_entity_refuses_whatever_was_waiting(bed: Bed) -> None:
    await bed.send(b"0")
    bed.fragment.gone = EntityNotFound("orders")
    with pytest.raises(EntityNotFound):
        await bed.send(b"1")


async def test_drain_is_answered_when_there_is_nothing_more(bed: Bed) -> None:
    await bed.send(b"1")
    taker = Taker(bed.fragment, credit=3)
    taker.draining = True
    bed.join(taker)
    await settled()
    assert taker.taken == [b"1"]
    assert taker.was_drained == 1


async def test_a_receiver_alone_has_the_engine_loaded(bed: Bed) -> None:
    """After a restart nobody else may ask for it."""
    await bed.send(b"1")
    bed.runtime.discard(bed.fragment, StoreUnavailable("restart"))
    taker = Taker(bed.fragment, credit=2)
    taker.draining = True
    bed.join(taker)
    await settled()
    assert taker.taken == [b"1"]
    assert taker.was_drained == 1


async def test_a_receiver_is_served_from_a_backlog_beyond_the_window(bed: Bed) -> None:
    for n in range(0, 200, 10):
        await bed.send(*(b"%03d" % m for m in range(n, n + 10)))
    taker = Taker(bed.fragment, credit=1_000, deletes=True)
    bed.join(taker)
    for _ in range(100):
        await settled()
        if len(taker.taken) == 200:
            break
    assert taker.taken == [b"%03d" % n for n in range(200)]


async def test_the_meter_counts_what_was_committed(bed: Bed) -> None:
    """R-COST-01"""
    await bed.send(b"1", b"2")
    bed.store.failure = StoreUnavailable("disk full")
    with pytest.raises(StoreUnavailable):
        await bed.send(b"3")
    assert bed.fragment.meter is not None
    assert bed.fragment.meter.sends == 2


async def test_a_message_that_is_put_back_is_not_counted_as_sent_again(bed: Bed) -> None:
    await bed.send(b"1")
    message, raw = await bed.ask(lambda queue, now, _: queue.take_and_delete(MAIN, now))
    await bed.ask(lambda queue, *_: queue.put_back(message, raw))
    assert await bed.ask(lambda queue, *_: queue.ledger.count(MAIN)) == 1
    assert bed.fragment.meter is not None
    assert bed.fragment.meter.sends == 1


async def test_a_clean_stop_leaves_nothing_to_replay(bed: Bed) -> None:
    await bed.send(b"1")
    await bed.runtime.stop([bed.fragment])
    lease = bed.store.acquire(1, "next", 0)
    assert lease.checkpoint == lease.head == 1


# Deciding ahead of a commit that is under way


def many(
    bed: Bed, fragment: LoadedFragment | None = None, count: int = AHEAD_REQUESTS_MIN
) -> list[Any]:
    """Sends that are worth a turn of their own, each a request that needs no answer in words."""
    answers = []
    for number in range(count):
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        messages = [Message(b"many %d" % number)]

        def call(engine: Engine, now: Instant, _: Pages, messages: Any = messages) -> Any:
            return engine.send(messages, now)

        request = Call(
            fragment or bed.fragment,
            Do(call),
            answer.set_result,
            answer.set_exception,
            exclusive=False,
        )
        bed.runtime.submit(request)
        answers.append(answer)
    return answers


async def test_requests_are_decided_ahead_and_answered_in_order(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    first = many(bed, count=1)
    await settled()
    ahead = many(bed)
    await settled()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN) == 2 + AHEAD_REQUESTS_MIN, "decided"
    assert not any(answer.done() for answer in first + ahead), "and not answered"

    bed.store.open.set()
    numbers = [number for answer in first + ahead for number in await answer]
    assert numbers == list(range(2, 3 + AHEAD_REQUESTS_MIN))


async def test_what_was_decided_on_top_of_a_failed_commit_is_refused_too(bed: Bed) -> None:
    await bed.send(b"kept")
    bed.store.open.clear()
    first = many(bed, count=1)
    await settled()
    ahead = many(bed)
    await settled()
    bed.store.failure = StoreUnavailable("disk full")
    bed.store.open.set()
    for answer in first + ahead:
        with pytest.raises(StoreUnavailable):
            await answer
    assert bed.fragment.engine is None

    assert await bed.send(b"later") == [2], "none of it left a trace"
    taker = Taker(bed.fragment, credit=100)
    bed.join(taker)
    await settled()
    assert taker.taken == [b"kept", b"later"]


async def test_another_entity_gets_nothing_that_was_not_durable(bed: Bed) -> None:
    """Its part of the second turn writes nothing, so nothing of it fails by itself."""
    other = LoadedFragment(2, 1, 0, "letters", Policy())
    await bed.send(b"load")
    await asyncio.gather(*many(bed, other, count=1))
    bed.store.open.clear()
    lost = many(bed, other, count=1)
    await settled()
    taker = Taker(other, credit=10)
    other.receivers_of(MAIN).join(taker)
    other.receivers_of(MAIN).wants(taker)
    bed.runtime.wake(other)
    ahead = many(bed)
    await settled()
    assert taker.credit == 8, "two messages are on their way"
    bed.store.failure = StoreUnavailable("disk full")
    bed.store.open.set()
    for answer in lost:
        with pytest.raises(StoreUnavailable):
            await answer
    await asyncio.gather(*ahead)
    assert taker.taken == []


async def test_a_turn_that_writes_nothing_waits_for_the_commit_before_it(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    sent = many(bed, count=1)
    await settled()
    taker = Taker(bed.fragment, credit=5)
    line = bed.fragment.receivers_of(MAIN)
    line.join(taker)
    line.wants(taker)
    bed.runtime.wake(bed.fragment)
    for _ in range(AHEAD_REQUESTS_MIN):
        bed.runtime.submit(Lose(bed.fragment, [(MAIN, b"no lock")]))
    await settled()
    assert taker.credit == 3, "taken"
    assert taker.taken == [], "and not given out"
    bed.store.open.set()
    await asyncio.gather(*sent)
    await settled()
    assert taker.taken == [b"0", b"many 0"]


async def test_nothing_is_decided_ahead_of_an_answer_in_words(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    bed.send(b"1")
    await settled()
    many(bed)
    await settled()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN) == 2
    bed.store.open.set()


async def test_one_who_is_refused_within_a_turn_starts_no_turn_beside_its_commit(bed: Bed) -> None:
    """A settlement that is refused lets its link ask for more, at once."""
    broken = LoadedFragment(2, 1, 0, "broken", Policy())
    await bed.send(b"0")
    await asyncio.gather(*many(bed, broken, count=1))
    bed.store.open.clear()

    def fault(*_: Any) -> None:
        raise ZeroDivisionError

    def refused(_: ServiceBusError) -> None:
        bed.runtime.wake(broken)

    bed.runtime.submit(Call(broken, Do(fault), lambda _: None, refused))
    first = bed.send(b"1")
    await asyncio.sleep(0)
    rest = many(bed, count=70)
    await settled()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN) == 2, "nothing was decided beside it"

    bed.store.open.set()
    await asyncio.gather(first, *rest)
    bed.runtime.discard(bed.fragment, StoreUnavailable("restart"))
    found = await bed.ask(lambda queue, _, pages: browse.peek(queue, MAIN, 0, 250, 1 << 20, pages))
    assert len(found) == 72


async def test_what_waits_for_an_engine_counts_as_waiting(bed: Bed) -> None:
    await bed.send(b"0")
    bed.runtime.discard(bed.fragment, StoreUnavailable("restart"))
    bed.store.open.clear()
    busy = LoadedFragment(2, 1, 0, "busy", Policy())
    many(bed, busy, count=1)  # its commit keeps the store from loading anything
    await settled()
    relieved: list[bool] = []
    answers = many(bed, count=QUEUED_REQUESTS_MAX + 2)
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert bed.runtime.congested

    def resume() -> None:
        relieved.append(True)

    for _ in range(3):  # a connection asks with each answer that it writes meanwhile
        bed.runtime.when_relieved(resume)
    bed.store.open.set()
    await asyncio.gather(*answers)
    await settled()
    assert relieved == [True] and not bed.runtime.congested

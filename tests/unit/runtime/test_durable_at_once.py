"""A message that is durable is handed out while a commit is under way; any other message waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.errors import StoreUnavailable
from postbus.model.times import Instant
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call, Lose
from tests.support.operations import Do
from tests.unit.runtime.test_runtime import Bed, Taker, many, settled


class Holder(Taker):
    """A receiver that keeps the lock tokens of its messages, and how often each was delivered."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.tokens: list[bytes] = []
        self.counts: list[int] = []

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.counts.append(message.delivery_count)
        return super().reserve(message, raw)

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        super().deliver(messages)
        self.tokens += [each.token for each in messages if each.token is not None]


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    bed = Bed()
    yield bed
    bed.store.open.set()
    await bed.thread.stop()


def ask(bed: Bed, call: Callable[[Queue, Instant], Any]) -> asyncio.Future[Any]:
    """Ask without words: other requests may be decided ahead of the answer."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_queue(engine: Engine, now: Instant, _: Pages) -> Any:
        return call(engine.own, now)

    bed.runtime.submit(
        Call(
            bed.fragment,
            Do(on_queue),
            future.set_result,
            future.set_exception,
            exclusive=False,
        )
    )
    return future


def receive(bed: Bed, taker: Taker, subqueue: int = MAIN) -> None:
    receivers = bed.fragment.receivers_of(subqueue)
    receivers.join(taker)
    receivers.wants(taker)
    bed.runtime.wake(bed.fragment)


async def held(bed: Bed, *bodies: bytes) -> Holder:
    """A receiver that has these messages, all durable and under its locks."""
    await bed.send(*bodies)
    holder = Holder(bed.fragment, credit=len(bodies))
    receive(bed, holder)
    await settled()
    assert holder.taken == list(bodies)
    bed.fragment.receivers_of(MAIN).leave(holder)
    return holder


async def test_a_durable_message_does_not_wait_for_the_commit_under_way(bed: Bed) -> None:
    await bed.send(b"durable")
    bed.store.open.clear()
    sent = many(bed, count=1)
    await settled()
    taker = Taker(bed.fragment, credit=1)
    receive(bed, taker)
    await settled()
    assert taker.taken == [b"durable"]
    assert not sent[0].done(), "the commit is still under way"


async def test_nor_for_the_commit_of_its_own_turn(bed: Bed) -> None:
    await bed.send(b"durable")
    bed.store.open.clear()
    taker = Taker(bed.fragment, credit=1)
    receive(bed, taker)
    sent = many(bed, count=1)
    await settled()
    assert taker.taken == [b"durable"]
    assert not sent[0].done()


async def test_a_message_under_way_waits(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    sent = many(bed, count=1)
    await settled()
    first, second = Taker(bed.fragment, credit=1), Taker(bed.fragment, credit=1)
    receive(bed, first)
    receive(bed, second)
    many(bed, count=1)
    await settled()
    assert (first.taken, second.taken, second.credit) == ([b"0"], [], 0)
    bed.store.open.set()
    await asyncio.gather(*sent)
    await settled()
    assert second.taken == [b"many 0"]


async def settle_and_look(
    bed: Bed, settle: Callable[[Queue, Instant], Any], subqueue: int = MAIN
) -> tuple[Holder, asyncio.Future[Any]]:
    """Have a settlement under way, and a receiver that asks for the message meanwhile."""
    bed.store.open.clear()
    answer = ask(bed, settle)
    await settled()
    taker = Holder(bed.fragment, credit=1)
    receive(bed, taker, subqueue)
    many(bed, count=1)  # a turn ahead of that commit
    await settled()
    return taker, answer


async def test_an_abandoned_message_waits_for_the_record_of_that(bed: Bed) -> None:
    """Its body is durable for long, but not the count that the receiver is shown."""
    holder = await held(bed, b"0")
    taker, answer = await settle_and_look(
        bed, lambda queue, now: queue.abandon(holder.tokens[0], now)
    )
    assert taker.counts == [1], "taken"
    assert taker.taken == [], "and not given out"
    bed.store.open.set()
    await answer
    await settled()
    assert taker.taken == [b"0"]


async def test_so_does_a_message_whose_lock_ran_out(bed: Bed) -> None:
    holder = await held(bed, b"0")
    taker, answer = await settle_and_look(bed, lambda queue, now: queue.lose(holder.tokens[0], now))
    assert (taker.counts, taker.taken) == ([1], [])
    bed.store.open.set()
    await answer
    await settled()
    assert taker.taken == [b"0"]


async def test_a_released_message_is_as_it_was(bed: Bed) -> None:
    holder = await held(bed, b"0")
    taker, answer = await settle_and_look(
        bed, lambda queue, now: queue.release(holder.tokens[0], now)
    )
    assert (taker.counts, taker.taken) == ([0], [b"0"])
    bed.store.open.set()
    await answer


async def test_a_dead_letter_waits_until_it_is_one(bed: Bed) -> None:
    holder = await held(bed, b"0")
    taker, answer = await settle_and_look(
        bed, lambda queue, now: queue.dead_letter(holder.tokens[0], now, "why"), DEAD_LETTER
    )
    assert taker.taken == []
    bed.store.open.set()
    await answer
    await settled()
    assert taker.taken == [b"0"]


async def test_a_message_that_is_put_back_waits(bed: Bed) -> None:
    """It was received and deleted for a link that was gone: nobody has seen it."""
    await bed.send(b"0")

    def take(queue: Queue, now: Instant) -> Any:
        return queue.take_and_delete(MAIN, now)

    taken, raw = await ask(bed, take)
    taker, answer = await settle_and_look(bed, lambda queue, now: queue.put_back(taken, raw))
    assert (taker.credit, taker.taken) == (0, [])
    bed.store.open.set()
    await answer
    await settled()
    assert taker.taken == [b"0"]


async def test_a_message_that_is_deleted_by_its_receipt_waits_for_that(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    taker = Taker(bed.fragment, credit=1, deletes=True)
    receive(bed, taker)
    await settled()
    assert (taker.credit, taker.taken) == (0, [])
    bed.store.open.set()
    await settled()
    assert taker.taken == [b"0"]


async def test_no_durable_message_overtakes_another_on_its_way_to_the_same_receiver(
    bed: Bed,
) -> None:
    holder = await held(bed, b"first", b"second")
    bed.store.open.clear()
    answer = ask(bed, lambda queue, now: queue.abandon(holder.tokens[0], now))
    await settled()
    taker = Taker(bed.fragment, credit=1)
    receive(bed, taker)
    many(bed, count=1)
    await settled()
    assert (taker.credit, taker.taken) == (0, []), "the first is on its way"
    ask(bed, lambda queue, now: queue.release(holder.tokens[1], now))
    taker.credit = 1
    receive(bed, taker)
    await settled()
    assert (taker.credit, taker.taken) == (0, []), "and the second behind it"
    bed.store.open.set()
    await answer
    await settled()
    assert taker.taken == [b"first", b"second"]


async def test_a_drained_receiver_hears_of_it_after_its_messages(bed: Bed) -> None:
    await bed.send(b"durable")
    bed.store.open.clear()
    taker = Taker(bed.fragment, credit=5)
    taker.draining = True
    receive(bed, taker)
    sent = ask(bed, lambda queue, now: queue.send([Message(b"on its way")], now))
    await settled()
    assert (taker.taken, taker.was_drained) == ([], 0), "one chunk, and a part of it waits"
    bed.store.open.set()
    await sent
    await settled()
    assert (taker.taken, taker.was_drained) == ([b"durable", b"on its way"], 1)


async def test_what_was_handed_out_of_durable_state_survives_a_failed_commit(bed: Bed) -> None:
    """The lock is gone with the engine. The message is where it was, and not counted as failed."""
    await bed.send(b"durable")
    bed.store.open.clear()
    sent = many(bed, count=1)
    await settled()
    taker = Holder(bed.fragment, credit=1)
    receive(bed, taker)
    await settled()
    assert taker.taken == [b"durable"]
    bed.store.failure = StoreUnavailable("disk full")
    bed.store.open.set()
    with pytest.raises(StoreUnavailable):
        await sent[0]
    assert bed.fragment.engine is None
    again = Holder(bed.fragment, credit=5)
    receive(bed, again)
    await settled()
    assert (again.taken, again.counts) == ([b"durable"], [0])


async def test_credit_alone_starts_a_turn_only_for_what_is_durable(bed: Bed) -> None:
    await bed.send(b"0")
    bed.store.open.clear()
    many(bed, count=1)
    await settled()
    taker = Taker(bed.fragment, credit=2)
    receive(bed, taker)
    await settled()
    assert (taker.credit, taker.taken) == (0, []), "one chunk: the second message is under way"
    later = Taker(bed.fragment, credit=1)
    receive(bed, later)
    await settled()
    assert bed.runtime._turns == bed.runtime._finished + 2, "no turn for a receiver without hope"


async def test_no_message_overtakes_the_word_that_there_is_none(bed: Bed) -> None:
    holder = await held(bed, b"0")
    bed.store.open.clear()
    many(bed, count=1)
    await settled()
    first, taker = Taker(bed.fragment, credit=1), Taker(bed.fragment, credit=1)
    taker.draining = True
    receive(bed, first)
    receive(bed, taker)
    bed.runtime.submit(Lose(bed.fragment, []))
    await settled()
    assert taker.was_drained == 0, "it is on its way"
    taker.draining = False
    ask(bed, lambda queue, now: queue.release(holder.tokens[0], now))
    receive(bed, taker)
    await settled()
    assert (taker.credit, taker.taken) == (0, []), "taken, and behind that word"
    bed.store.open.set()
    await settled()
    assert (taker.was_drained, taker.taken) == (1, [b"0"])


@pytest.mark.interpreted_only
async def test_a_fragment_that_stops_within_the_turn_hands_nothing_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bed.send(b"0")

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bed.runtime, "_written", fails)
    taker = Taker(bed.fragment, credit=1)
    receive(bed, taker)
    await settled()
    assert bed.fragment.engine is None
    assert taker.taken == []

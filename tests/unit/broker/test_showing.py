"""What a browser is shown: active messages in order, a page at a time; nothing is changed by it."""

from __future__ import annotations

import pytest

from postbus.broker import browse
from postbus.broker.message import NewProperties
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN
from postbus.broker.window_budget import WindowBudget
from tests.support.engine import Engine

SMALL = WindowBudget(0, messages_min=16, body_bytes_min=64)


def small_engine(checkpoint_every: int = 25) -> Engine:
    return Engine(Policy(), SMALL, checkpoint_every=checkpoint_every)


def shown(
    engine: Engine, count: int, bytes_max: int = 1 << 20, subqueue: int = MAIN
) -> tuple[list[int], list[int]]:
    """The numbers of all that a browser is shown, and how many came with each look."""
    numbers: list[int] = []
    looks: list[int] = []
    start: int | None = 0
    while start is not None:
        found, start = engine.paged(
            lambda pages, start=start: browse.show(
                engine.queue, subqueue, start, count, bytes_max, engine.now, pages
            )
        )
        assert len(found) <= count
        numbers += [message.number for message, _ in found]
        looks.append(len(found))
        assert all(raw.startswith(b"body") for _, raw in found)
    return numbers, looks


@pytest.mark.parametrize("count", [1, 3, 250])
@pytest.mark.parametrize("checkpoint_every", [0, 25])
def test_a_backlog_is_shown_whole_and_in_order(count: int, checkpoint_every: int) -> None:
    engine = small_engine(checkpoint_every)
    for n in range(600):
        engine.send(b"body %d" % n)
    for _ in range(7):
        assert engine.receive_and_delete() is not None
    before = dict(engine.queue.ledger.counts), len(engine.queue.locks), engine.queue.ledger.head
    assert shown(engine, count)[0] == list(range(8, 601))
    after = dict(engine.queue.ledger.counts), len(engine.queue.locks), engine.queue.ledger.head
    assert after == before


def test_a_look_ends_where_the_next_message_would_be_too_many_bytes() -> None:
    engine = small_engine()
    for _ in range(5):
        engine.send(b"body" * 25)
    numbers, looks = shown(engine, 250, bytes_max=250)
    assert numbers == [1, 2, 3, 4, 5]
    assert looks == [2, 2, 1]
    assert shown(engine, 250, bytes_max=1)[1] == [1] * 5, "one alone may be larger"


def test_properties_in_place_of_its_own_are_bytes_of_a_message_too() -> None:
    engine = small_engine()
    for _ in range(5):
        engine.send(b"body")
    messages = [engine.receive() for _ in range(5)]
    for message in messages:
        assert message is not None
        engine.abandon(message, NewProperties(bytes(100), 100))
    assert shown(engine, 250, bytes_max=250)[1] == [2, 2, 1]


def test_locked_messages_are_shown_and_those_that_cannot_be_received_are_not() -> None:
    engine = small_engine()
    for n in range(6):
        engine.send(b"body %d" % n)
    engine.send(b"body", scheduled_at=engine.now + 1_000_000)
    engine.send(b"body", ttl=1_000)
    deferred, dead = engine.receive(), engine.receive()
    assert deferred is not None and dead is not None
    engine.defer(deferred)
    engine.dead_letter(dead)
    assert engine.receive() is not None
    engine.now += 2_000
    assert shown(engine, 2)[0] == [3, 4, 5, 6]
    assert shown(engine, 2, subqueue=DEAD_LETTER)[0] == [2]


def test_a_page_of_expired_messages_is_one_look_and_not_the_end() -> None:
    """No turn goes through all of them."""
    engine = small_engine()
    for _ in range(3 * browse.PEEK_ROWS):
        engine.send(b"body", ttl=1_000)
    engine.send(b"body last")
    engine.commit(checkpoint=True)
    engine.now += 2_000
    numbers, looks = shown(engine, 250)
    assert numbers == [3 * browse.PEEK_ROWS + 1]
    assert looks == [0, 0, 0, 1]

"""What the engine holds does not grow with the backlog, whatever is asked of it.

Counted, not measured: entries of the window, of the delta and of the locks, and the rows and bytes
of the pages that one call has loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from postbus.broker import browse, chores
from postbus.broker.index_pages import Loaded, Page, Pages
from postbus.broker.message import DEFERRED, SCHEDULED, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.errors import MessageSizeExceeded
from postbus.gateway.settlement import bodies_needed
from tests.support.engine import Engine

# It counts by classes derived from the engine's, and compiled ones have none.
pytestmark = pytest.mark.interpreted_only
BACKLOG = 100_000
DEFERRED_COUNT = 2_000
SCHEDULED_COUNT = 2_000
BATCH = 1_000
BODY = b"x" * 256
LIMITS = WindowBudget(0, messages_min=512, body_bytes_min=64 << 10)
CHECKPOINT_RECORDS = 4_096
LOCKS = 50


class CountedPages(Pages):
    """Pages that know how much was put into them."""

    def __init__(self) -> None:
        super().__init__()
        self.row_count = 0
        self.byte_count = 0

    def add(self, page: Page, loaded: Loaded) -> None:
        super().add(page, loaded)
        if isinstance(loaded, list):
            self.row_count += len(loaded)
        elif isinstance(loaded, bytes):
            self.byte_count += len(loaded)


class CountedEngine(Engine):
    """Remembers the largest set of pages that a call has needed."""

    rows_most = 0
    bytes_most = 0

    def paged(self, call: Callable[[Pages], Any], pages: Pages | None = None) -> Any:
        counted = CountedPages()
        result = super().paged(call, counted)
        self.rows_most = max(self.rows_most, counted.row_count)
        self.bytes_most = max(self.bytes_most, counted.byte_count)
        return result


def filled(backlog: int) -> CountedEngine:
    """`backlog` messages in line, and beside them deferred and scheduled ones."""
    engine = CountedEngine(Policy(), LIMITS, checkpoint_every=CHECKPOINT_RECORDS)
    for start in range(0, backlog, BATCH):
        messages = [Message(BODY, f"id-{start + n}") for n in range(BATCH)]
        engine.turn(lambda messages=messages: engine.queue.send(messages, engine.now))
    for _ in range(DEFERRED_COUNT):
        message = engine.receive()
        assert message is not None
        engine.defer(message)
    later = engine.now + 3_600_000
    for _ in range(0, SCHEDULED_COUNT, BATCH):
        engine.send(*[BODY] * BATCH, scheduled_at=later)
    return engine


def held(queue: Queue) -> dict[str, int]:
    """Every structure of the engine that could grow."""
    windows = queue.windows.values()
    delta = queue.ledger.delta
    return {
        "live": sum(len(window.live) for window in windows),
        "in line": sum(len(window._ready) + len(window._returned) for window in windows),
        "body bytes": sum(
            len(m.raw) for window in windows for m in window.live.values() if m.raw is not None
        ),
        "delta": sum(len(lane) for lane in delta._lanes.values()),
        "delta body bytes": sum(len(m.raw) for m in delta._messages() if m.raw is not None),
        "locks": len(queue.locks),
        "deferred locks": len(queue.deferred_locks),
        "counts": len(queue.ledger.counts),
        "pending": len(queue.ledger.pending),
    }


def check(queue: Queue) -> None:
    found = held(queue)
    assert found["live"] <= LIMITS.messages_min + chores.PAGE_ROWS + LOCKS
    assert found["in line"] <= 2 * (LIMITS.messages_min + chores.PAGE_ROWS)
    assert found["body bytes"] <= LIMITS.body_bytes_min
    # A record that moves a message changes two places.
    assert found["delta"] <= 2 * (CHECKPOINT_RECORDS + BATCH)
    assert found["delta body bytes"] <= LIMITS.body_bytes_min
    assert found["locks"] <= LOCKS
    assert found["deferred locks"] <= LOCKS
    assert found["counts"] <= 3 * 4
    assert found["pending"] == 0


@pytest.fixture(scope="module")
def engine() -> CountedEngine:
    return filled(BACKLOG)


def test_a_backlog_is_not_held(engine: CountedEngine) -> None:
    assert engine.queue.ledger.count(MAIN) == BACKLOG - DEFERRED_COUNT
    assert engine.queue.ledger.count(MAIN, DEFERRED) == DEFERRED_COUNT
    assert engine.queue.ledger.count(MAIN, SCHEDULED) == SCHEDULED_COUNT
    check(engine.queue)


def test_peeks_from_random_numbers_leave_nothing_behind(engine: CountedEngine) -> None:
    chance = random.Random(1)
    before = held(engine.queue)
    engine.rows_most = engine.bytes_most = 0
    for _ in range(300):
        start = chance.randint(1, BACKLOG + SCHEDULED_COUNT)
        count = chance.choice([1, 10, browse.PEEK_COUNT_MAX])
        found = engine.peek(start, count)
        assert [m.number for m in found] == sorted(m.number for m in found)
        assert found and found[0].number >= start
    assert held(engine.queue) == before
    assert engine.rows_most <= 3 * browse.PEEK_ROWS
    assert engine.bytes_most <= browse.PEEK_COUNT_MAX * len(BODY)


def test_what_is_asked_for_by_number_reads_no_more_than_that(engine: CountedEngine) -> None:
    chance = random.Random(2)
    engine.rows_most = engine.bytes_most = 0
    deferred = chance.sample(range(1, DEFERRED_COUNT + 1), 200)
    for number in deferred:
        assert len(engine.receive_deferred(number, delete=True)) == 1
    scheduled = chance.sample(range(BACKLOG + 1, BACKLOG + SCHEDULED_COUNT + 1), 200)
    for number in scheduled:
        engine.cancel(number)
    assert engine.rows_most == 1
    assert engine.bytes_most == len(BODY)
    check(engine.queue)


def test_receiving_through_a_backlog_holds_a_window_of_it(engine: CountedEngine) -> None:
    for _ in range(5_000):
        message = engine.receive()
        assert message is not None
        engine.complete(message)
    check(engine.queue)
    assert engine.rows_most <= chores.PAGE_ROWS


def test_a_purge_holds_a_window_of_it(engine: CountedEngine) -> None:
    engine.rows_most = 0
    for _ in range(3):
        assert engine.delete_batch(browse.DELETE_COUNT_MAX) > 0
    check(engine.queue)
    pages = -(-browse.DELETE_COUNT_MAX // chores.PAGE_ROWS) + 1
    assert engine.rows_most <= pages * chores.PAGE_ROWS


def test_a_restart_reads_the_tail_and_not_the_backlog(engine: CountedEngine) -> None:
    engine.crash()
    queue = engine.queue
    assert queue.ledger.head - queue.ledger.checkpoint <= CHECKPOINT_RECORDS + BATCH
    assert held(queue)["live"] == 0
    engine.rows_most = engine.bytes_most = 0
    assert engine.receive() is not None
    assert engine.rows_most <= chores.PAGE_ROWS
    check(queue)


def test_deferred_messages_are_not_had_by_the_gigabyte() -> None:
    engine = Engine()
    body = b"x" * 200_000
    for _ in range(30):
        engine.send(body)
        message = engine.receive()
        assert message is not None
        engine.defer(message)
    engine.commit(checkpoint=True)
    with pytest.raises(MessageSizeExceeded):
        engine.receive_deferred(*range(1, 31))
    assert not engine.queue.locks
    assert len(engine.receive_deferred(*range(1, 21))) == 20


def test_properties_are_not_changed_by_the_gigabyte() -> None:
    engine = Engine(limits=WindowBudget(0, messages_min=64, body_bytes_min=0))
    tokens = []
    for _ in range(30):
        engine.send(b"x" * 200_000)
        message = engine.receive()
        assert message is not None
        assert message.token is not None
        engine.queue.windows[MAIN].release_body(message)
        tokens.append(message.token)
    with pytest.raises(MessageSizeExceeded):
        bodies_needed(engine.queue, tokens, engine.now, None)
    need = bodies_needed(engine.queue, tokens[:20], engine.now, None)
    assert need is not None
    assert len(need.pages) == 20


def test_one_deferred_message_may_be_as_large_as_it_likes() -> None:
    engine = Engine(Policy(message_size_max=browse.RECEIVE_BYTES_MAX * 2))
    engine.send(b"x" * (browse.RECEIVE_BYTES_MAX + 1))
    message = engine.receive()
    assert message is not None
    engine.defer(message)
    assert len(engine.receive_deferred(1)) == 1

"""Engines leave memory when nobody needs them; what they have to do by themselves is still done."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from postbus.broker import browse
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.message import ACTIVE, DEFERRED, SCHEDULED, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.errors import ServiceBusError, StoreUnavailable
from postbus.model.times import NEVER
from postbus.observe.meters import StoreMeter
from postbus.runtime import runtime as runtime_module
from postbus.runtime.engine_cache import EngineCache
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import Call
from postbus.runtime.runtime import Runtime
from postbus.store.memory.store import MemoryStore
from tests.simulation.machine import Machine, Thread
from tests.support.operations import Do

BOUND = 100
IDLE_MS = 60_000
MINUTE = 60_000


class Bed:
    """Many queues in one store, on a clock and a loop that the test moves."""

    def __init__(self, queues: int = 1, store: MemoryStore | None = None) -> None:
        self.machine = Machine()
        self.thread = Thread(random.Random(1), failing=0.0)
        self.store = store or MemoryStore()
        thread: Any = self.thread
        limits = WindowBudget(0, messages_min=64, body_bytes_min=4_096)
        loader = Loader(self.store, thread, "test", limits, lambda: 7)
        with mock.patch("asyncio.get_running_loop", return_value=self.machine):
            self.runtime = Runtime(
                self.store,
                thread,
                lambda: self.machine.now,
                loader,
                StoreMeter(),
                EngineCache(BOUND, IDLE_MS),
            )
        self.fragments = [LoadedFragment(n, 0, 0, f"q{n}", Policy()) for n in range(1, queues + 1)]
        self.fragment = self.fragments[0]

    def run(self, steps_max: int = 1_000_000) -> None:
        """Let the loop and the store do all there is to do; time stands still."""
        machine, thread = self.machine, self.thread
        for _ in range(steps_max):
            if not (machine.ready or thread.calls or thread.answers):
                return
            if machine.ready:
                machine.run_one()
            elif thread.calls:
                thread.run_one()
            else:
                thread.answer_one(in_order=True)

    def wait(self, ms: int) -> None:
        """Let time pass, as upkeep sees it: every ten seconds it looks for idle engines."""
        end = self.machine.now + ms
        while self.machine.now < end:
            self.machine.pass_time(min(10_000, end - self.machine.now))
            self.run()
            self.runtime.forget_idle()
            self.run()

    def ask(
        self, call: Callable[[Queue, int, Pages], Any], fragment: LoadedFragment | None = None
    ) -> Any:
        answers: list[Any] = []

        def on_queue(engine: Engine, now: int, pages: Pages) -> Any:
            return call(engine.own, now, pages)

        self.runtime.submit(
            Call(fragment or self.fragment, Do(on_queue), answers.append, answers.append)
        )
        self.run()
        [answer] = answers
        return answer

    def send(self, fragment: LoadedFragment | None = None, scheduled_at: int = 0) -> list[int]:
        message = Message(b"body", "id", scheduled_at=scheduled_at)
        numbers: list[int] = self.ask(lambda queue, now, _: queue.send([message], now), fragment)
        return numbers

    def lock(self) -> None:
        assert self.ask(lambda queue, now, _: queue.take(MAIN, 1, now)) is not None


def loaded(bed: Bed) -> int:
    return sum(fragment.engine is not None for fragment in bed.fragments)


class Taker:
    """Somebody who receives, and has all he wants for now."""

    deletes = False
    draining = False
    holder = 1

    def capacity(self) -> int:
        return 0

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        raise NotImplementedError

    def deliver(self, messages: list[OutgoingMessage]) -> None: ...

    def drained(self) -> None: ...


# -- how many --------------------------------------------------------------------------------


def test_two_thousand_queues_that_were_used_leave_no_more_loaded_than_the_bound() -> None:
    bed = Bed(queues=2_000)
    for fragment in bed.fragments:
        bed.send(fragment)
        assert bed.runtime.loaded == loaded(bed) <= BOUND + BOUND // 8
    bed.runtime.forget_idle()
    bed.run()
    assert loaded(bed) <= BOUND
    for fragment in bed.fragments:  # and each of them has its message
        assert bed.ask(lambda queue, now, _: queue.ledger.count(MAIN, ACTIVE), fragment) == 1


def test_two_thousand_queues_asked_for_at_once_leave_no_more_loaded_than_the_bound() -> None:
    bed = Bed(queues=2_000)
    counts: list[int] = []
    for fragment in bed.fragments:
        call = Call(
            fragment, Do(lambda queue, now, _: queue.ledger.count(MAIN)), counts.append, _fail
        )
        bed.runtime.submit(call)
    bed.run()
    assert counts == [0] * 2_000
    bed.runtime.forget_idle()
    bed.run()
    assert loaded(bed) <= BOUND


def test_those_that_were_not_used_for_longest_leave_first() -> None:
    bed = Bed(queues=BOUND + 1)
    for fragment in bed.fragments[:BOUND]:
        bed.send(fragment)
    bed.wait(10_000)
    for fragment in bed.fragments[: BOUND // 2]:
        bed.send(fragment)
    bed.send(bed.fragments[BOUND])
    left = [fragment for fragment in bed.fragments if fragment.engine is None]
    assert left
    assert set(left) <= set(bed.fragments[BOUND // 2 : BOUND])


def test_queues_in_use_are_not_searched_again_for_each_one_more() -> None:
    bed = Bed(queues=2 * BOUND)
    for fragment in bed.fragments:
        bed.send(fragment)
        fragment.receivers_of(MAIN).join(Taker())
    assert loaded(bed) == 2 * BOUND
    with mock.patch("postbus.runtime.engine_cache.at_rest", side_effect=AssertionError):
        bed.send(bed.fragments[0])


# -- when ------------------------------------------------------------------------------------


def test_an_engine_that_nobody_uses_is_forgotten_after_a_while() -> None:
    bed = Bed()
    bed.send()
    bed.wait(IDLE_MS)
    assert bed.fragment.engine is not None
    bed.wait(10_000)
    assert bed.fragment.engine is None
    assert bed.runtime.loaded == 0
    standing = bed.store.position(bed.fragment.id)
    assert standing is not None
    assert standing.head == standing.checkpoint == 1
    assert bed.send() == [2]


def test_an_engine_in_use_stays() -> None:
    bed = Bed()
    for _ in range(20):
        bed.send()
        bed.wait(10_000)
        assert bed.fragment.engine is not None


def test_upkeep_is_no_use() -> None:
    bed = Bed()
    bed.send()
    for _ in range(6):
        bed.wait(10_000)
        bed.runtime.attend(Call(bed.fragment, Do(lambda queue, now, _: None), _ignore, _fail))
        bed.run()
    bed.wait(20_000)
    assert bed.fragment.engine is None


def test_a_receiver_keeps_the_engine() -> None:
    bed = Bed()
    bed.send()
    bed.fragment.receivers_of(MAIN).join(Taker())
    bed.wait(10 * MINUTE)
    assert bed.fragment.engine is not None


def test_a_lock_keeps_the_engine_until_it_runs_out() -> None:
    bed = Bed()
    bed.send()
    bed.lock()
    bed.wait(Policy().lock_ms - 10_000)
    bed.runtime._engine_cache.age(NEVER // 2)
    assert bed.fragment.engine is not None
    bed.wait(10 * MINUTE)
    assert bed.fragment.engine is None
    assert bed.ask(lambda queue, now, _: queue.ledger.count(MAIN)) == 1


def test_pages_under_way_keep_the_engine() -> None:
    bed = Bed()
    bed.fragment.loads = 1
    bed.send()
    bed.wait(10 * MINUTE)
    assert bed.fragment.engine is not None


def test_an_engine_stays_for_what_it_has_asked_to_read_where_all_others_are_in_use() -> None:
    bed = Bed(queues=BOUND + 1)
    *busy, idle = bed.fragments
    bed.send(idle)
    for fragment in busy:
        fragment.receivers_of(MAIN).join(Taker())
        bed.send(fragment)
    assert idle.engine is None
    answers: list[Any] = []

    def peek(engine: Engine, now: int, pages: Pages) -> Any:
        return browse.peek(engine.own, MAIN, 0, 1, 1_000, pages)

    bed.runtime.submit(Call(idle, Do(peek), answers.append, answers.append))
    idle.used = False  # upkeep has looked at it since
    bed.run(steps_max=200)
    [[(_, raw)]] = answers
    assert raw == b"body"


# -- what is known of it meanwhile -----------------------------------------------------------


def test_counts_of_a_forgotten_engine_are_known() -> None:
    bed = Bed()
    bed.send()
    bed.send(scheduled_at=bed.machine.now + 24 * 60 * MINUTE)
    bed.wait(5 * MINUTE)
    assert bed.fragment.engine is None
    assert bed.fragment.counts is not None
    assert bed.fragment.counts[0].active == 1
    assert bed.fragment.counts[0].scheduled == 1
    assert bed.fragment.counts[0].size_bytes == 8


def test_a_message_scheduled_in_a_forgotten_engine_comes_on_time() -> None:
    bed = Bed()
    due = bed.machine.now + 3 * 60 * MINUTE
    bed.send(scheduled_at=due)
    bed.send(scheduled_at=due + 60 * MINUTE)
    bed.wait(due - bed.machine.now - 1)
    assert bed.fragment.engine is None
    bed.machine.pass_time(1)
    bed.run()
    queue = bed.fragment.engine
    assert queue is not None
    assert (queue.ledger.count(MAIN, ACTIVE), queue.ledger.count(MAIN, SCHEDULED)) == (1, 1)
    [(message, _)] = bed.ask(lambda q, _, pages: browse.peek(q, MAIN, 3, 10, 1_000, pages))
    assert message.enqueued_at == due
    bed.wait(5 * MINUTE)
    assert bed.fragment.engine is None
    assert bed.fragment.wakes_at == due + 60 * MINUTE


def test_a_slow_commit_does_not_delay_what_comes_due_meanwhile() -> None:
    bed = Bed()
    bed.send()
    message = Message(b"body", "id", scheduled_at=bed.machine.now + 1_000)
    answers: list[Any] = []
    bed.runtime.submit(
        Call(
            bed.fragment,
            Do(lambda queue, now, _: queue.send([message], now)),
            answers.append,
            _fail,
        )
    )
    bed.machine.run_one()
    bed.thread.run_one()
    bed.machine.pass_time(2_000)
    bed.run()
    bed.machine.pass_time(1)
    bed.run()
    assert answers == [[2]]
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN, ACTIVE) == 2


def test_an_engine_with_work_soon_is_not_forgotten() -> None:
    bed = Bed()
    due = bed.machine.now + 5 * MINUTE
    bed.send(scheduled_at=due)
    bed.wait(due - bed.machine.now - 5_000)
    bed.runtime.wake(bed.fragment)  # as a timer that rang early
    bed.run()
    bed.wait(4_000)
    assert bed.fragment.engine is not None


# -- after a start ---------------------------------------------------------------------------


def test_a_start_finds_what_is_due_without_loading_anything() -> None:
    before = Bed(queues=200)
    due = before.machine.now + 60 * MINUTE
    for fragment in before.fragments:
        before.send(fragment)
    before.send(before.fragments[7], scheduled_at=due)
    before.wait(5 * MINUTE)

    bed = Bed(queues=200, store=before.store)
    bed.runtime.survey(bed.fragments)
    bed.run()
    assert loaded(bed) == 0
    assert all(
        fragment.counts is not None and fragment.counts[0].active == 1 for fragment in bed.fragments
    )
    bed.machine.pass_time(60 * MINUTE)
    bed.run()
    assert [fragment for fragment in bed.fragments if fragment.engine is not None] == [
        bed.fragments[7]
    ]
    assert bed.fragments[7].engine is not None
    assert bed.fragments[7].engine.ledger.count(MAIN, ACTIVE) == 2


def test_a_start_loads_what_was_left_without_a_checkpoint() -> None:
    before = Bed()
    due = before.machine.now + 60 * MINUTE
    before.send(scheduled_at=due)

    bed = Bed(store=before.store)
    bed.runtime.survey(bed.fragments)
    bed.run()
    bed.machine.pass_time(1)
    bed.run()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.own.next_due == due


def test_a_new_queue_is_surveyed_as_empty() -> None:
    bed = Bed()
    bed.runtime.survey(bed.fragments)
    bed.run()
    assert bed.fragment.counts is not None
    assert bed.fragment.counts[0].active == bed.fragment.counts[0].size_bytes == 0
    assert bed.fragment.wakes_at == NEVER
    assert bed.store.position(bed.fragment.id) is None


@pytest.mark.parametrize("trouble", ["commit", "survey"])
def test_what_is_due_comes_after_a_store_that_did_not_answer(trouble: str) -> None:
    bed = Bed()
    due = bed.machine.now + 30_000
    bed.send(scheduled_at=due)
    if trouble == "survey":
        bed = Bed(store=bed.store)
    with mock.patch.object(runtime_module, "log"), mock.patch("postbus.runtime.loading.log"):
        bed.thread.failing = 1.0
        if trouble == "survey":
            bed.runtime.survey(bed.fragments)
            bed.run()
        else:
            assert isinstance(bed.ask(lambda q, now, _: q.send([Message(b"")], now)), Exception)
        assert bed.fragment.engine is None
        bed.thread.failing = 0.0
        for _ in range(3):
            bed.machine.pass_time(10_000)
            bed.run()
    assert bed.fragment.engine is not None
    assert bed.fragment.engine.ledger.count(MAIN, ACTIVE) == 1


def test_a_deleted_queue_does_not_come_back() -> None:
    bed = Bed()
    bed.send(scheduled_at=bed.machine.now + 10 * MINUTE)
    bed.wait(5 * MINUTE)
    bed.fragment.gone = StoreUnavailable("gone")
    bed.runtime.discard(bed.fragment, bed.fragment.gone)
    bed.machine.pass_time(60 * MINUTE)
    bed.run()
    assert bed.fragment.engine is None


def test_deferred_messages_of_a_forgotten_engine_are_found() -> None:
    bed = Bed()
    bed.send()

    def defer(queue: Queue, now: int, _: Pages) -> None:
        taken = queue.take(MAIN, 1, now)
        assert taken is not None
        assert taken[0].token is not None
        queue.defer(taken[0].token, now)

    bed.ask(defer)
    bed.wait(5 * MINUTE)
    assert bed.fragment.engine is None
    [(message, raw)] = bed.ask(
        lambda q, now, pages: browse.receive_deferred(q, MAIN, [1], False, 1, now, pages)
    )
    assert (message.lane, raw) == (DEFERRED, b"body")


def _fail(error: ServiceBusError) -> None:
    raise error


def _ignore(result: object) -> None: ...

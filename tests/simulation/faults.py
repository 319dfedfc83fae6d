"""Faults planted on purpose: a checker that never failed proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from postbus.broker import chores, delta, resubmission
from postbus.broker.delta import Delta
from postbus.broker.index_pages import Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.errors import StoreUnavailable
from postbus.model.index_rows import Row
from postbus.model.times import NEVER
from postbus.runtime import commits, engine_cache
from postbus.runtime.loaded_fragment import LoadedFragment, Output
from postbus.runtime.runtime import Runtime
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Trimmed
from tests.simulation.history import STAYS, Violation
from tests.simulation.run import run_seed
from tests.simulation.simulation import TOLD, Simulation, WatchedRuntime

SEEDS_MAX = 200


class _EarlyRuntime(WatchedRuntime):
    def _commit(
        self,
        written: list[Any],
        fragments: dict[LoadedFragment, None],
        requests: list[Any],
        outputs: list[Output],
    ) -> None:
        super()._commit(written, fragments, [], [])
        for _, output in outputs:
            output()


def _leave_at_once(_: Any) -> Any:
    """A turn that writes nothing does not wait for the commit that is under way."""

    def join(
        _: Any, fragments: dict[LoadedFragment, None], requests: list[Any], outputs: list[Output]
    ) -> None:
        for _, output in outputs:
            output()

    return join


def _turns_ahead(_: Any) -> Any:
    """Whoever is woken has a turn, commit or not: then one that writes nothing is not rare."""

    def schedule(runtime: Runtime) -> None:
        if not runtime._scheduled and not runtime._must_wait:
            runtime._scheduled = True
            runtime._loop.call_soon(runtime._turn)

    return schedule


@contextmanager
def _hasty() -> Iterator[None]:
    hasty = patched(Runtime, "_schedule", _turns_ahead)
    with hasty(), patched(commits.Commit, "join", _leave_at_once)():
        yield


class _SureRuntime(WatchedRuntime):
    """Takes every commit that fails for one that never was."""

    def _not_committed(self, commit: commits.Commit, error: BaseException) -> None:
        super()._not_committed(commit, StoreUnavailable(str(error)))


class _Sure(Simulation):
    runtime_class = _SureRuntime


class _Early(Simulation):
    runtime_class = _EarlyRuntime


class _Unsynced(Simulation):
    syncs = False


class _Timeless(Simulation):
    remembers_time = False


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    """A method (or function) replaced by one that is made from it."""
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def _unwritten_completion(remove: Any) -> Any:
    def faulty(ledger: Ledger, kind: RecordKind, message: Message) -> None:
        remove(ledger, kind, message)
        if kind is RecordKind.COMPLETED:
            ledger._at -= len(ledger.pending.pop()) + ledger._layout.prefix_size

    return faulty


def _left_in_index(remove: Any) -> Any:
    def faulty(changes: Delta, subqueue: int, lane: int, number: int, _: bool, *of: str) -> None:
        remove(changes, subqueue, lane, number, False, *of)

    return faulty


def _old_rows_kept(_: Any) -> Any:
    def faulty(pages: Pages) -> None: ...

    return faulty


def _blind_trim(trim: Any) -> Any:
    def faulty(
        store: MemoryStore, fragment_id: int, older_than: int, bytes_max: int, limit: int
    ) -> Trimmed:
        index = store.index.of(fragment_id)
        bodies, index.bodies = index.bodies, {}
        try:
            trimmed: Trimmed = trim(store, fragment_id, older_than, bytes_max, limit)
        finally:
            index.bodies = bodies
        return trimmed

    return faulty


def _still_ready(take: Any) -> Any:
    def faulty(queue: Queue, subqueue: int, holder: int, now: int) -> Any:
        taken = take(queue, subqueue, holder, now)
        if taken is not None:
            queue.windows[subqueue].give_back(taken[0])
        return taken

    return faulty


def _unrenewed(_: Any) -> Any:
    def faulty(queue: Queue, token: bytes, now: int) -> int:
        queue._held(token, now)
        return now + queue.policy.lock_ms

    return faulty


def _uncounted(_: Any) -> Any:
    def faulty(queue: Queue, message: Message) -> None: ...

    return faulty


def _count_not_indexed(to_row: Any) -> Any:
    def faulty(message: Message) -> Row:
        count, message.delivery_count = message.delivery_count, 0
        row: Row = to_row(message)
        message.delivery_count = count
        return row

    return faulty


def _asleep(forget: Any) -> Any:
    def faulty(fragment: LoadedFragment) -> None:
        forget(fragment)
        fragment.wakes_at = NEVER

    return faulty


def _unsurveyed(_: Any) -> Any:
    def faulty(runtime: WatchedRuntime, fragments: list[LoadedFragment]) -> None: ...

    return faulty


def nobody_told(fetch: Any) -> Any:
    def faulty(queue: Queue, subqueue: int, pages: Pages) -> Any:
        need = fetch(queue, subqueue, pages)
        if need is None:
            queue.shared.ready_subqueues.pop(subqueue, None)
        return need

    return faulty


def nothing_done(_: Any) -> Any:
    def faulty(*_: Any) -> None: ...

    return faulty


@dataclass(frozen=True)
class Fault:
    """What is wrong, and which promises are seen to be broken by it."""

    name: str
    promises: frozenset[str]
    plant: Callable[[], AbstractContextManager[Any]] = _nothing
    simulation: type[Simulation] = field(default=Simulation)


_FIRST = "nothing is told before it is durable"
_LOST = "nothing acknowledged is lost"
_REFUSED = "what was refused is not there"
_RETURNS = "nothing completed returns"
_HOLDER = "one holder per lock"
_COUNT = "the delivery count is right"
_TOTALS = "size and counts are right"
_REPLAY = "replay equals live"
_FULL = "index and tail equal a full replay"
_MATCH = "the queue holds what it must"
_BODY = "no body is wrong or missing"
_FAULT = "the broker has no fault"
_ONE_PLACE = "a message is in one place"
_PEEK = "a peek shows what is there"
_ORDER = "ready messages go out by number"
_TIME = "time never goes back"
_BEFORE = "nothing comes before its time"
_DUE = "what is due comes on time"
_SERVED = "whoever waits is served"

FAULTS = [
    Fault("answer before commit", frozenset({_FIRST}), simulation=_Early),
    Fault(
        "completion not written",
        frozenset({_FIRST, _LOST, _RETURNS, _REPLAY, _MATCH, _TOTALS, _PEEK, _ORDER}),
        patched(Ledger, "remove", _unwritten_completion),
    ),
    Fault(
        "completion left in the index",
        frozenset({_RETURNS, _REPLAY, _MATCH, _ONE_PLACE, _PEEK, _LOST, _ORDER, _COUNT, _BEFORE}),
        patched(Delta, "remove", _left_in_index),
    ),
    Fault(
        "old page believed",
        frozenset({_LOST, _RETURNS, _MATCH, _ONE_PLACE, _PEEK, _ORDER, _HOLDER, _COUNT, _BODY})
        | {_BEFORE},
        patched(Pages, "forget_rows", _old_rows_kept),
    ),
    Fault(
        "live body trimmed", frozenset({_BODY, _FAULT}), patched(MemoryStore, "trim", _blind_trim)
    ),
    Fault("lock given twice", frozenset({_HOLDER}), patched(Queue, "take", _still_ready)),
    Fault("lock not renewed", frozenset({_HOLDER}), patched(Queue, "renew", _unrenewed)),
    Fault("count lost", frozenset({_COUNT}), patched(Queue, "_count", _uncounted)),
    Fault(
        "count left out of the index",
        frozenset({_COUNT, _REPLAY, _FULL, _MATCH}),
        patched(delta, "to_row", _count_not_indexed),
    ),
    Fault(
        "given out before the commit under way",
        frozenset({_FIRST}),
        _hasty,
    ),
    Fault("unknown told as refused", frozenset({_REFUSED}), simulation=_Sure),
    Fault("sync not done", frozenset({STAYS}), simulation=_Unsynced),
    Fault("time forgotten by a restart", frozenset({_TIME}), simulation=_Timeless),
    Fault(
        "engine forgotten for good", frozenset({_DUE}), patched(engine_cache, "_forget", _asleep)
    ),
    Fault(
        "work not looked for at the start",
        frozenset({_DUE}),
        patched(WatchedRuntime, "survey", _unsurveyed),
    ),
    Fault(
        "dead letter taken out and not sent again",
        frozenset({_LOST, TOLD}),
        patched(resubmission.Back, "place", nothing_done),
    ),
    Fault(
        "dead letter sent again and left where it was",
        frozenset({_MATCH, _TOTALS, _COUNT, TOLD}),
        patched(resubmission, "_take_out", nothing_done),
    ),
    Fault("wake-up lost", frozenset({_SERVED}), patched(chores, "fetch_bodies", nobody_told)),
]


def find(fault: Fault) -> tuple[int, Violation] | None:
    """How many seeds it takes to notice, and what is said then."""
    with fault.plant():
        for seed in range(SEEDS_MAX):
            try:
                run_seed(seed, fault.simulation)
            except Violation as found:
                return seed + 1, found
    return None

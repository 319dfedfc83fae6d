"""Faults planted in queues, in the runtime and in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from postbus.broker import chores, delta, resubmission
from postbus.broker.delta import Delta
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.window import Window
from postbus.errors import StoreUnavailable
from postbus.model.index_rows import Row
from postbus.model.times import NEVER
from postbus.runtime import commits, engine_cache
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.runtime import Runtime
from postbus.runtime.turn import Turn
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Trimmed
from tests.simulation.faults import Fault, does_nothing, patched
from tests.simulation.promises import (
    BEFORE,
    BODY,
    COUNT,
    DUE,
    FAULT,
    FIRST,
    FULL,
    LOCK,
    LOST,
    MATCH,
    MEMORY,
    ONCE,
    ORDER,
    PEEK,
    REFUSED,
    REPLAY,
    RESUBMITTED,
    RETURNS,
    SERVED,
    STAYS,
    TAKEN_OUT,
    TIME,
    TOTALS,
)
from tests.simulation.world import WatchedRuntime, World


class _EarlyRuntime(WatchedRuntime):
    def _commit(self, written: list[Any], turn: Turn) -> None:
        turn.requests, outputs, turn.outputs = [], turn.outputs, []
        super()._commit(written, turn)
        for _, output in outputs:
            output()


def _leave_at_once(_: Any) -> Any:
    """A turn that writes nothing does not wait for the commit that is under way."""

    def join(_: Any, later: Turn) -> None:
        for _, output in later.outputs:
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
    with hasty(), patched(Turn, "join", _leave_at_once)():
        yield


class _SureRuntime(WatchedRuntime):
    """Takes every commit that fails for one that never was."""

    def _not_committed(self, commit: commits.Commit, error: BaseException) -> None:
        super()._not_committed(commit, StoreUnavailable(str(error)))


class _Sure(World):
    runtime_class = _SureRuntime


class _Early(World):
    runtime_class = _EarlyRuntime


class _Unsynced(World):
    disk_syncs = False


class _Timeless(World):
    remembers_time = False


def _by_its_body(_: Any) -> Any:
    """The store has the body of a message: has it all that happened to the message since?"""

    def faulty(ledger: Ledger, message: Message) -> bool:
        return message.base < ledger.durable

    return faulty


def _only_new(emit: Any) -> Any:
    """Only the first record of a message since it was loaded is noted."""

    def faulty(ledger: Ledger, message: Message, record: bytes) -> None:
        before = message.last_base
        emit(ledger, message, record)
        if before >= 0:
            message.last_base = before

    return faulty


def _overtaking(deliver: Any) -> Any:
    """A durable message leaves at once, though the one before it waits."""

    def faulty(turn: Turn, fragment: LoadedFragment, ledger: Ledger, *rest: Any) -> None:
        receiver, taken, _ = rest
        deliver(turn, fragment, ledger, receiver, taken, {})

    return faulty


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


def _thawed_whole(thaw: Any) -> Any:
    """What changed while the checkpoint was written is taken for written."""

    def faulty(changes: Delta) -> None:
        changes._since = Delta()
        thaw(changes)

    return faulty


def _not_marked(freeze: Any) -> Any:
    """A message that goes while its row is written leaves no trace, and its row stays."""

    def faulty(changes: Delta) -> None:
        marks = [(message, message.indexed) for message in changes._messages()]
        freeze(changes)
        for message, indexed in marks:
            message.indexed = indexed

    return faulty


def _old_row_kept(_: Any) -> Any:
    """A row that was made ahead is written, although its message has changed."""

    def faulty(changes: Delta, subqueue: int, lane: int, number: int) -> None: ...

    return faulty


def _thawed_early(freeze: Any) -> Any:
    """The index is taken for up to date when the checkpoint is on its way."""

    def faulty(changes: Delta) -> None:
        freeze(changes)
        changes._lanes, changes._groups, changes._left = {}, {}, {}

    return faulty


def _not_given_back(forget: Any) -> Any:
    """A message that leaves a window is still counted."""

    def faulty(window: Window, message: Message) -> None:
        used = window._budget.used
        forget(window, message)
        window._budget.used = used

    return faulty


def _gap_forgotten(shrink: Any) -> Any:
    """A window that gave back messages takes itself for complete."""

    def faulty(window: Window, target: int) -> None:
        end, complete = window.end, window.complete
        shrink(window, target)
        window.end, window.complete = end, complete

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


def wake_up_lost(fetch: Any) -> Any:
    def faulty(queue: Queue, subqueue: int, pages: Pages) -> Any:
        need = fetch(queue, subqueue, pages)
        if need is None:
            queue.shared.ready_subqueues.pop(subqueue, None)
        return need

    return faulty


def mark_not_looked_at(accept: Any) -> Any:
    def faulty(engine: Engine, origin: int, *rest: Any) -> Any:
        mark = engine.ledger.marks.pop(origin, None)
        result = accept(engine, origin, *rest)
        if mark is not None:
            engine.ledger.marks.setdefault(origin, mark)
        return result

    return faulty


QUEUE_FAULTS = [
    Fault("answer before commit", {FIRST}, world=_Early),
    Fault(
        "completion not written",
        {FIRST, LOST, RETURNS, REPLAY, MATCH, TOTALS, PEEK, ORDER},
        patched(Ledger, "remove", _unwritten_completion),
    ),
    Fault(
        "completion left in the index",
        {RETURNS, REPLAY, MATCH, ONCE, PEEK, LOST, ORDER, COUNT, BEFORE, FAULT},
        patched(Delta, "remove", _left_in_index),
    ),
    Fault(
        "change beside a checkpoint lost",
        {LOST, RETURNS, REPLAY, MATCH, ONCE, PEEK, ORDER, COUNT, BEFORE, FAULT, FULL},
        patched(Delta, "thaw", _thawed_whole),
    ),
    Fault(
        "removal beside a checkpoint left in the index",
        {LOST, RETURNS, REPLAY, MATCH, ONCE, PEEK, ORDER, COUNT, BEFORE, FAULT, FULL},
        patched(Delta, "freeze", _not_marked),
    ),
    Fault(
        "row made ahead of a change written",
        {LOST, RETURNS, REPLAY, MATCH, ONCE, PEEK, ORDER, COUNT, BEFORE, FAULT, FULL, BODY},
        patched(Delta, "_drop_row", _old_row_kept),
    ),
    Fault(
        "checkpoint believed before it is written",
        {LOST, RETURNS, REPLAY, MATCH, ONCE, PEEK, ORDER, COUNT, BEFORE, FAULT, FULL, SERVED},
        patched(Delta, "freeze", _thawed_early),
    ),
    Fault("memory not given back", {MEMORY}, patched(Window, "forget", _not_given_back)),
    Fault(
        "memory of a lost engine not given back",
        {MEMORY},
        patched(Engine, "close", does_nothing),
    ),
    Fault(
        "messages that a window gave back not read again",
        {LOST, ORDER, SERVED, MATCH, TAKEN_OUT, FAULT, MEMORY},
        patched(Window, "shrink", _gap_forgotten),
    ),
    Fault(
        "old page believed",
        {LOST, RETURNS, MATCH, ONCE, PEEK, ORDER, LOCK, COUNT, BODY, BEFORE},
        patched(Pages, "forget_rows", _old_rows_kept),
    ),
    Fault("live body trimmed", {BODY, FAULT}, patched(MemoryStore, "trim", _blind_trim)),
    Fault("lock given twice", {LOCK}, patched(Queue, "take", _still_ready)),
    Fault("lock not renewed", {LOCK}, patched(Queue, "renew", _unrenewed)),
    Fault("count lost", {COUNT}, patched(Queue, "_count", _uncounted)),
    Fault(
        "count left out of the index",
        {COUNT, REPLAY, FULL, MATCH},
        patched(delta, "to_row", _count_not_indexed),
    ),
    Fault("given out before the commit under way", {FIRST, ORDER}, _hasty),
    Fault("durable by its body alone", {FIRST}, patched(Ledger, "is_durable", _by_its_body)),
    Fault("durable by its first record", {FIRST}, patched(Ledger, "_emit", _only_new)),
    Fault("overtaken by a durable message", {ORDER}, patched(Turn, "deliver", _overtaking)),
    Fault("unknown told as refused", {REFUSED}, world=_Sure),
    Fault("sync not done", {STAYS}, world=_Unsynced),
    Fault("time forgotten by a restart", {TIME}, world=_Timeless),
    Fault("engine forgotten for good", {DUE}, patched(engine_cache, "_forget", _asleep)),
    Fault(
        "work not looked for at the start", {DUE}, patched(WatchedRuntime, "survey", _unsurveyed)
    ),
    Fault(
        "dead letter taken out and not sent again",
        {LOST, RESUBMITTED},
        patched(resubmission.Back, "place", does_nothing),
    ),
    Fault(
        "dead letter sent again and left where it was",
        {MATCH, TOTALS, COUNT, RESUBMITTED, ONCE},
        patched(resubmission, "_take_out", does_nothing),
    ),
    Fault("wake-up lost", {SERVED}, patched(chores, "fetch_bodies", wake_up_lost)),
]

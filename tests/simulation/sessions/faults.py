"""Faults planted on purpose in sessions, duplicate detection and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.broker import duplicates, forwarding, ledger, session_operations, transaction
from postbus.broker.bloom import Layer, digest_of
from postbus.broker.duplicate_history import History
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import FreeSessions, Session, Sessions
from postbus.broker.ledger import Ledger
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import Meaning, RecordKind
from postbus.broker.session_queue import SessionQueue
from postbus.broker.transaction import Transaction
from postbus.runtime import loading
from postbus.runtime.reads import HeldSends
from tests.simulation.faults import SEEDS_MAX, Fault, patched
from tests.simulation.history import Violation
from tests.simulation.ledgers import TOTALS
from tests.simulation.playing import ENDS
from tests.simulation.sessions.play import run_session_seed
from tests.simulation.sessions.promises import (
    ATOMIC,
    COUNT,
    DROPPED,
    HOLDER,
    LISTED,
    LOCK,
    MATCH,
    OFFERED,
    ONCE,
    ORDER,
    SENDER,
    SERVED,
    STATE,
    TWICE,
)

# -- sessions ----------------------------------------------------------------------------------


def _given_twice(accept: Any) -> Any:
    def faulty(queue: Queue, session_id: str, holder: int, now: int) -> Any:
        if queue.sessions is not None:
            queue.sessions.held.pop(session_id, None)
        return accept(queue, session_id, holder, now)

    return faulty


def _second_first(take: Any) -> Any:
    def faulty(queue: Queue, held: Session, now: int) -> Any:
        window = held.window
        first = window.head()
        if not held.holds(now) or first is None or window.ready_count < 2:
            return take(queue, held, now)
        window.pop_head()
        taken = take(queue, held, now)
        window.give_back(first)
        return take(queue, held, now) if taken is None else taken

    return faulty


def _nothing(_: Any) -> Any:
    return lambda *_, **__: None


def _counted_as_failed(end: Any) -> Any:
    def faulty(queue: SessionQueue, one: Session, failed: bool, now: int) -> None:
        end(queue, one, True, now)

    return faulty


def _always_from_the_first(fill: Any) -> Any:
    def faulty(line: FreeSessions, *rest: Any) -> None:
        fill(line, *rest)
        line.cursor = None

    return faulty


def _nobody_told(_: Any) -> Any:
    def faulty(held: Sessions, session_id: str) -> None:
        held.free.add(session_id)

    return faulty


def _state_not_replaced(remove: Any) -> Any:
    def faulty(kept: Ledger, kind: RecordKind, message: Message) -> None:
        if kind is not RecordKind.STATE_CLEARED:
            remove(kept, kind, message)

    return faulty


# -- duplicates --------------------------------------------------------------------------------


def _not_flushed(flush: Any) -> Any:
    def faulty(history: History) -> None:
        flush(history)

    return faulty


def _seen_again(drop: Any) -> Any:
    def faulty(own: Queue, message: Message, now: int, *rest: Any) -> Any:
        history = own.ledger.history
        if history is not None and message.message_id:
            history.note(digest_of(message.message_id), now)
        return drop(own, message, now, *rest)

    return faulty


def _without_ids(meanings: dict[RecordKind, Meaning]) -> dict[RecordKind, Meaning]:
    return {kind: meaning._replace(brings_id=False) for kind, meaning in meanings.items()}


def _never(_: Any) -> Any:
    return lambda *_: False


def _last_kept(_: Any) -> Any:
    """Of several in one batch the last is stored, and the others are dropped."""

    def faulty(history: History, digests: Sequence[bytes], now: int, pages: Any) -> list[bool]:
        since = now - history.window_ms
        found: list[bool] = []
        for place, digest in enumerate(digests):
            at = history.recent.get(digest)
            if at is None and pages is not None:
                at = pages.seen.get(digest)
            again = bool(digest) and digest in digests[place + 1 :]
            found.append(again or (at is not None and at > since))
        return found

    return faulty


# -- transactions ------------------------------------------------------------------------------


def _settled_in_part(carry_out: Any) -> Any:
    def faulty(ruling: Any, now: int) -> None:
        if ruling.settlement.token[-1] % 2:
            carry_out(ruling, now)

    return faulty


def _locks_given_up(roll_back: Any) -> Any:
    def faulty(work: Transaction, engine: Engine) -> None:
        settlements = list(work._settlements)
        roll_back(work, engine)
        for each in settlements:
            queue = engine.at(each.subqueue)
            message = queue.locked(each.token)
            if message is not None and message.token is not None and queue.sessions is None:
                del queue.locks[each.token]
                queue.end_lock(message, False, 0)

    return faulty


def _sent_before(settle: Any) -> Any:
    """What a transaction sends is stored as soon as it is asked for."""

    def faulty(work: Transaction, engine: Engine, messages: Sequence[Message]) -> None:
        settle(work, engine, messages)
        work._sends.clear()
        for each in messages:
            each.number = 0
        (engine.own if engine.topic is None else engine.topic).store(messages, 1)

    return faulty


def _no_marks(accept: Any) -> Any:
    def faulty(engine: Engine, origin: int, *rest: Any) -> Any:
        mark = engine.ledger.marks.pop(origin, None)
        receipt = accept(engine, origin, *rest)
        if mark is not None:
            engine.ledger.marks.setdefault(origin, mark)
        return receipt

    return faulty


def _outbox_overlooked(unfinished: Any) -> Any:
    return lambda *_: False


SESSION_FAULTS = [
    Fault(
        "session given twice",
        frozenset({HOLDER}),
        patched(session_operations, "accept", _given_twice),
    ),
    Fault(
        "session out of order", frozenset({ORDER}), patched(Queue, "take_in_session", _second_first)
    ),
    Fault(
        "session lock without an end",
        frozenset({SERVED, HOLDER, LOCK, ENDS}),
        patched(SessionQueue, "expire_sessions", _nothing),
    ),
    Fault(
        "session not given up",
        frozenset({SERVED, HOLDER, OFFERED}),
        patched(session_operations, "leave", _nothing),
    ),
    Fault(
        "deliveries counted that were given back",
        frozenset({LOCK, COUNT}),
        patched(SessionQueue, "end_session", _counted_as_failed),
    ),
    Fault(
        "session starved",
        frozenset({OFFERED, SERVED}),
        patched(FreeSessions, "fill", _always_from_the_first),
    ),
    Fault("wake-up lost", frozenset({SERVED}), patched(Sessions, "_ready", _nobody_told)),
    Fault(
        "old state kept",
        frozenset({STATE, MATCH, LISTED, TOTALS}),
        patched(Ledger, "remove", _state_not_replaced),
    ),
    Fault(
        "ids not in the checkpoint",
        frozenset({TWICE}),
        patched(History, "flush", _not_flushed),
    ),
    Fault(
        "ids not replayed",
        frozenset({TWICE}),
        patched(ledger, "MEANINGS", _without_ids),
    ),
    Fault("window that slides", frozenset({DROPPED}), patched(duplicates, "drop", _seen_again)),
    Fault("filter that forgets", frozenset({TWICE}), patched(Layer, "may_have", _never)),
    Fault(
        "last of duplicates kept", frozenset({DROPPED}), patched(duplicates, "repeated", _last_kept)
    ),
    Fault("send overtaken", frozenset({SENDER}), patched(HeldSends, "takes", _never)),
    Fault(
        "transaction done in part",
        frozenset({ATOMIC}),
        patched(transaction, "_carry_out", _settled_in_part),
    ),
    Fault("posts forgotten", frozenset({ATOMIC}), patched(transaction, "post", _nothing)),
    Fault(
        "sent before the commit", frozenset({ATOMIC}), patched(Transaction, "send", _sent_before)
    ),
    Fault(
        "locks lost by a rollback",
        frozenset({LOCK, ORDER}),
        patched(Transaction, "roll_back", _locks_given_up),
    ),
    Fault("mark not looked at", frozenset({ONCE}), patched(forwarding, "accept", _no_marks)),
    Fault(
        "outbox not looked for at the start",
        frozenset({ENDS}),
        patched(loading, "_unfinished", _outbox_overlooked),
    ),
]


def find_in_sessions(fault: Fault) -> tuple[int, Violation] | None:
    """How many seeds it takes to notice, and what is said then."""
    with fault.plant():
        for seed in range(SEEDS_MAX):
            try:
                run_session_seed(seed)
            except Violation as found:
                return seed + 1, found
    return None

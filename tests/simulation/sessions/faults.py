"""Faults planted in sessions."""

from __future__ import annotations

from typing import Any

from postbus.broker import session_operations
from postbus.broker.held_sessions import FreeSessions, Session, Sessions
from postbus.broker.ledger import Ledger
from postbus.broker.message import Message
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.session_queue import SessionQueue
from tests.simulation.faults import Fault, does_nothing, patched
from tests.simulation.promises import (
    COUNT,
    ENDS,
    LISTED,
    LOCK,
    LOST,
    MATCH,
    MEMORY,
    OFFERED,
    SERVED,
    SESSION_HOLDER,
    SESSION_ORDER,
    STATE,
    TAKEN_OUT,
    TOTALS,
)


def _closed_for_nothing(close: Any) -> Any:
    """The window of a session that ends is still counted."""

    def faulty(sessions: Sessions, session: Session) -> Any:
        used = sessions._fragment.budget.used
        unsettled = close(sessions, session)
        sessions._fragment.budget.used = used
        return unsettled

    return faulty


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


SESSION_FAULTS = [
    Fault(
        "memory of a session not given back",
        {MEMORY},
        patched(Sessions, "close", _closed_for_nothing),
    ),
    Fault(
        "session given twice", {SESSION_HOLDER}, patched(session_operations, "accept", _given_twice)
    ),
    Fault(
        "session out of order", {SESSION_ORDER}, patched(Queue, "take_in_session", _second_first)
    ),
    Fault(
        "session lock without an end",
        {SERVED, SESSION_HOLDER, LOCK, ENDS},
        patched(SessionQueue, "expire_sessions", does_nothing),
    ),
    Fault(
        "session not given up",
        {SERVED, SESSION_HOLDER, OFFERED, LOCK, COUNT, LOST},
        patched(session_operations, "leave", does_nothing),
    ),
    Fault(
        "deliveries counted that were given back",
        {LOCK, COUNT},
        patched(SessionQueue, "end_session", _counted_as_failed),
    ),
    Fault(
        "session starved", {OFFERED, SERVED}, patched(FreeSessions, "fill", _always_from_the_first)
    ),
    Fault("wake-up lost", {SERVED}, patched(Sessions, "_ready", _nobody_told)),
    Fault(
        "old state kept",
        {STATE, MATCH, LISTED, TOTALS, TAKEN_OUT},
        patched(Ledger, "remove", _state_not_replaced),
    ),
]

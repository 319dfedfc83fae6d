"""What an engine has decided, durable or not: its messages, who has them locked, and who holds
which session. Engines are believed nothing that does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from postbus.broker import records
from postbus.broker.engine import Engine
from postbus.broker.message import Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import MAIN
from tests.simulation.history import Violation
from tests.simulation.sessions.promises import HOLDER, LOCK, ORDER
from tests.simulation.sessions.shelf import Entry, Event, Shelf


@dataclass(slots=True)
class Lock:
    """A message is somebody's; for as long as their session, if it is in one."""

    token: bytes
    until: int
    session_id: str | None
    holder: int


@dataclass(slots=True)
class Holding:
    """A session is somebody's."""

    holder: int
    until: int


class Live:
    """One fragment."""

    def __init__(self, in_sessions: bool) -> None:
        self._in_sessions = in_sessions
        self.shelf = Shelf()
        self.locks: dict[str, Lock] = {}
        self.holders: dict[str, Holding] = {}
        self._seen = 0

    # -- records -----------------------------------------------------------------------------

    def absorb(self, engine: Engine, now: int, but: int = 0) -> None:
        """Believe the records written since the last time, but for the last few."""
        pending = engine.ledger.pending
        end = len(pending) - but
        fresh, self._seen = pending[self._seen : end], end
        for data in fresh:
            event = self.shelf.apply(records.decode(data), data)
            if event.kind not in (RecordKind.COPIED, RecordKind.DUPLICATE):
                self._check_lock_end(event, now)
                self.locks.pop(event.after.name, None)

    def sealed(self) -> None:
        """The batch is closed; the next record is the first of another one."""
        self._seen = 0

    def reset(self, durable: Shelf) -> None:
        """The engine is thrown away: what the store has is what there is."""
        self.shelf = Shelf(durable.entries)
        self.locks.clear()
        self.holders.clear()
        self._seen = 0

    def _check_lock_end(self, event: Event, now: int) -> None:
        if event.kind is RecordKind.LOCK_EXPIRED:
            lock = self.locks.get(event.after.name)
            if lock is None or self.in_force(lock, now):
                raise Violation(LOCK, event.after.name, f"a lock ran out that had not: {lock}")

    # -- locks of messages -------------------------------------------------------------------

    def in_force(self, lock: Lock, now: int) -> bool:
        if lock.session_id is None:
            return lock.until > now
        holding = self.holders.get(lock.session_id)
        return holding is not None and holding.holder == lock.holder and holding.until > now

    def lock(self, message: Message, name: str) -> None:
        assert message.token is not None
        in_session = self._in_sessions and message.subqueue == MAIN
        session_id = message.session_id if in_session else None
        self.locks[name] = Lock(message.token, message.locked_until, session_id, message.holder)

    def unlock(self, token: bytes) -> None:
        for name, lock in list(self.locks.items()):
            if lock.token == token:
                del self.locks[name]

    def renewed(self, token: bytes, until: int) -> None:
        for lock in self.locks.values():
            if lock.token == token:
                lock.until = until

    def check_lost(self, token: bytes, now: int) -> None:
        """Somebody was told that a lock is lost."""
        for name, lock in self.locks.items():
            if lock.token == token and self.in_force(lock, now):
                raise Violation(LOCK, name, f"said to be lost: {lock}")

    def check_take(self, message: Message, session_id: str | None, holder: int, now: int) -> str:
        """The message was taken: it is the first that is to be had; returns its name."""
        place = message.subqueue, message.lane, message.number
        ready = self.ready(message.subqueue, session_id, now)
        taken = self.shelf.entries.get(place)
        name = None if taken is None else taken.name
        if session_id is not None:
            self.check_holder(session_id, holder, now)
        if not ready or ready[0].place != place:
            raise Violation(ORDER, name, f"{place} of {session_id!r} went out before {ready[:1]}")
        assert name is not None
        return name

    def ready(self, subqueue: int, session_id: str | None, now: int) -> list[Entry]:
        """What could go out now, in order; of one session, if that is told."""
        return [
            entry
            for entry in self.shelf.active(subqueue, now)
            if entry.name not in self.locks and session_id in (None, entry.session_id)
        ]

    # -- sessions ----------------------------------------------------------------------------

    def is_free(self, session_id: str, now: int) -> bool:
        holding = self.holders.get(session_id)
        return holding is None or holding.until <= now

    def check_holder(self, session_id: str, holder: int, now: int) -> None:
        holding = self.holders.get(session_id)
        if holding is None or holding.holder != holder or holding.until <= now:
            raise Violation(HOLDER, None, f"{session_id!r} is {holding}, and {holder} is served")

    def hold(self, session_id: str, holder: int, until: int, now: int) -> None:
        if not self.is_free(session_id, now):
            text = f"{session_id!r} was given to {holder}, held by {self.holders[session_id]}"
            raise Violation(HOLDER, None, text)
        self.holders[session_id] = Holding(holder, until)

    def leave(self, session_id: str, holder: int) -> None:
        """Given up: no delivery has failed."""
        holding = self.holders.get(session_id)
        if holding is not None and holding.holder == holder:
            del self.holders[session_id]
            for name, lock in list(self.locks.items()):
                if lock.session_id == session_id:
                    del self.locks[name]

    def update(self) -> None:
        """New properties: all locks are lost."""
        self.locks.clear()
        self.holders.clear()

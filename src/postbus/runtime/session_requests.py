"""What session receivers ask of a fragment: a session, the next one, and to be rid of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from postbus.broker import session_operations
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.pages import Need, Pages
from postbus.broker.subqueue import owner_of
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.runtime.commits import safely
from postbus.runtime.fragment import LoadedFragment
from postbus.runtime.requests import Request

if TYPE_CHECKING:
    from postbus.runtime.session_waiters import SessionReceiver, SessionWaiters


class Accept(Request):
    """A receiver asks for a session by its id: it gets it at once, or not at all."""

    __slots__ = ("_receiver", "_session", "_session_id")

    def __init__(
        self, fragment: LoadedFragment, receiver: SessionReceiver, session_id: str
    ) -> None:
        super().__init__(fragment)
        self._receiver = receiver
        self._session_id = session_id
        self._session: Session | None = None

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        receiver = self._receiver
        if not receiver.gone:
            queue = engine.at(receiver.subqueue)
            self._session = session_operations.accept(queue, self._session_id, receiver.holder, now)
            receiver.waiters.hold(self._session, receiver)
        return None

    def answer(self) -> None:
        if self._session is not None:
            self._receiver.accepted(self._session)

    def refuse(self, error: ServiceBusError) -> None:
        self._receiver.refused(error)


class AcceptNext(Request):
    """Find sessions for those who wait for one; there is at most one of these in a line."""

    __slots__ = ("_found", "_subqueue", "_waiters")

    def __init__(self, fragment: LoadedFragment, subqueue: int, waiters: SessionWaiters) -> None:
        super().__init__(fragment, pages=Pages())
        self._subqueue = subqueue
        self._waiters = waiters
        self._found: list[tuple[SessionReceiver, Session]] = []

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        queue = engine.queues.get(owner_of(self._subqueue))
        waiting = self._waiters.waiting
        assert self.pages is not None
        while queue is not None and queue.policy.receives and waiting:
            receiver = next(iter(waiting))
            session = session_operations.accept_next(queue, receiver.holder, now, self.pages)
            if isinstance(session, Need):
                if not self._found:
                    return session
                # Those who have one do not wait for what the next one needs.
                self.fragment.waiting_subqueues[self._subqueue] = None
                break
            if session is None:
                break
            self._waiters.hold(session, receiver)
            self._found.append((receiver, session))
        self.fragment.chores.discard(self._waiters.search)
        return None

    def answer(self) -> None:
        for receiver, session in self._found:
            # Each by itself: what goes wrong with one must not leave the others without an answer.
            safely(self.fragment, partial(receiver.accepted, session))

    def refuse(self, error: ServiceBusError) -> None:
        self.fragment.chores.discard(self._waiters.search)
        for receiver, _ in self._found:
            receiver.refused(error)
        # Whoever still waits has no other reason to be looked at.
        self.fragment.waiting_subqueues[self._subqueue] = None


class Leave(Request):
    """A receiver is gone: its session is free, and what it had not settled is ready again.

    A refusal changes nothing: it means that the engine is gone, and every session lock with it.
    """

    __slots__ = ("_session", "_subqueue")

    def __init__(self, fragment: LoadedFragment, subqueue: int, session: Session) -> None:
        super().__init__(fragment)
        self._subqueue = subqueue
        self._session = session

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        queue = engine.queues.get(owner_of(self._subqueue))
        if queue is not None:
            session_operations.leave(queue, self._session, now)
        return None

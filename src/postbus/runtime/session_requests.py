"""What session receivers ask of a fragment: a session, the next one, and to be rid of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from postbus.broker import session_operations
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.message import OWNER_BITS
from postbus.broker.pages import Need, Pages
from postbus.errors import ServiceBusError
from postbus.model.instant import Instant
from postbus.runtime.commits import safely
from postbus.runtime.fragment import LoadedFragment

if TYPE_CHECKING:
    from postbus.runtime.session_line import SessionLine, SessionReceiver


class Accept:
    """A receiver asks for a session by its id: it gets it at once, or not at all."""

    __slots__ = ("_outlet", "_session", "_session_id", "exclusive", "fragment", "pages", "size")

    grows: Final = False

    def __init__(self, fragment: LoadedFragment, outlet: SessionReceiver, session_id: str) -> None:
        self.fragment = fragment
        self.size = 0
        self.pages: Pages | None = None
        self.exclusive = False
        self._outlet = outlet
        self._session_id = session_id
        self._session: Session | None = None

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        outlet = self._outlet
        if not outlet.gone:
            queue = engine.at(outlet.subqueue)
            self._session = session_operations.accept(queue, self._session_id, outlet.holder, now)
            outlet.line.hold(self._session, outlet)
        return None

    def answer(self) -> None:
        if self._session is not None:
            self._outlet.accepted(self._session)

    def refuse(self, error: ServiceBusError) -> None:
        self._outlet.refused(error)


class AcceptNext:
    """Find sessions for those who wait for one; there is at most one of these in a line."""

    __slots__ = ("_found", "_line", "_subqueue", "exclusive", "fragment", "pages", "size")

    grows: Final = False

    def __init__(self, fragment: LoadedFragment, subqueue: int, line: SessionLine) -> None:
        self.fragment = fragment
        self.size = 0
        self.pages: Pages | None = Pages()
        self.exclusive = False
        self._subqueue = subqueue
        self._line = line
        self._found: list[tuple[SessionReceiver, Session]] = []

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        queue = engine.queues.get(self._subqueue >> OWNER_BITS)
        waiting = self._line.waiting
        assert self.pages is not None
        while queue is not None and queue.policy.receives and waiting:
            outlet = next(iter(waiting))
            session = session_operations.accept_next(queue, outlet.holder, now, self.pages)
            if isinstance(session, Need):
                if not self._found:
                    return session
                # Those who have one do not wait for what the next one needs.
                self.fragment.called[self._subqueue] = None
                break
            if session is None:
                break
            self._line.hold(session, outlet)
            self._found.append((outlet, session))
        self.fragment.chores.discard(self._line.search)
        return None

    def answer(self) -> None:
        for outlet, session in self._found:
            # Each by itself: what goes wrong with one must not leave the others without an answer.
            safely(self.fragment, partial(outlet.accepted, session))

    def refuse(self, error: ServiceBusError) -> None:
        self.fragment.chores.discard(self._line.search)
        for outlet, _ in self._found:
            outlet.refused(error)
        # Whoever still waits has no other reason to be looked at.
        self.fragment.called[self._subqueue] = None


class Leave:
    """A receiver is gone: its session is free, and what it had not settled is there again."""

    __slots__ = ("_session", "_subqueue", "exclusive", "fragment", "pages", "size")

    grows: Final = False

    def __init__(self, fragment: LoadedFragment, subqueue: int, session: Session) -> None:
        self.fragment = fragment
        self.size = 0
        self.pages: Pages | None = None
        self.exclusive = False
        self._subqueue = subqueue
        self._session = session

    def decide(self, engine: Engine, now: Instant) -> Need | None:
        queue = engine.queues.get(self._subqueue >> OWNER_BITS)
        if queue is not None:
            session_operations.leave(queue, self._session, now)
        return None

    def answer(self) -> None:
        pass

    def refuse(self, error: ServiceBusError) -> None:
        pass  # the engine is gone, and every session lock with it

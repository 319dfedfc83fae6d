"""Receivers of sessions: each waits for a session, by name or the next one, holds it, and goes."""

from __future__ import annotations

from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.index_pages import Need
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, SessionCannotBeLocked
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.session_waiters import SessionWaiters
from postbus.runtime.sessions import Accept, Leave
from tests.simulation.history import Violation
from tests.simulation.promises import SESSION_HOLDER
from tests.simulation.queues.model import QueueModel
from tests.simulation.receivers import Receiver


class WatchedSessionWaiters(SessionWaiters):
    """Tells the model who is given a session."""

    def __init__(self, model: QueueModel, fragment: LoadedFragment) -> None:
        super().__init__(MAIN, fragment.waiting_subqueues)
        self._model = model
        self._fragment = fragment

    def hold(self, session: Session, receiver: Any) -> None:
        model, world = self._model, self._model.world
        model.absorb(self._fragment)
        model.hold(session.id, receiver.holder, session.locked_until, world.now)
        world.note(None, f"receiver {receiver.holder} is given {session.id!r}")
        super().hold(session, receiver)


class WatchedAccept(Accept):
    """Holds a refusal against who has the session."""

    def __init__(
        self, model: QueueModel, fragment: LoadedFragment, receiver: Any, session_id: str
    ) -> None:
        super().__init__(fragment, receiver, session_id)
        self._model = model

    def decide(self, engine: Engine, now: int) -> Need | None:
        self._model.absorb(self.fragment)
        try:
            return super().decide(engine, now)
        except SessionCannotBeLocked:
            if self._model.is_free(self._session_id, now):
                text = f"{self._session_id!r} is free, and said to be locked"
                raise Violation(SESSION_HOLDER, None, text) from None
            raise


class WatchedLeave(Leave):
    """Nothing is written for it, so the model must be told."""

    def __init__(self, model: QueueModel, fragment: LoadedFragment, session: Session) -> None:
        super().__init__(fragment, MAIN, session)
        self._model = model

    def decide(self, engine: Engine, now: int) -> Need | None:
        self._model.absorb(self.fragment)
        if not self._model.is_free(self._session.id, now):
            self._model.leave(self._session.id, self._session.holder)
        return super().decide(engine, now)


class SessionReceiver(Receiver):
    """A link that holds a session, or waits for one."""

    _model: QueueModel

    def __init__(self, model: QueueModel, holder: int, deletes: bool, credit: int) -> None:
        super().__init__(model.world, model.world.fragments[model.id], MAIN, deletes, holder)
        self.credit = credit
        self.waiters: Any = self.fragment.session_waiters[MAIN]
        self.session: Session | None = None
        self.promised: Session | None = None

    @property
    def session_id(self) -> str | None:  # type: ignore[override]
        return None if self.promised is None else self.promised.id

    @property
    def gone(self) -> bool:
        return not self.attached

    def open(self, wanted: str | None) -> None:
        world, fragment = self._world, self.fragment
        fragment.receivers_of(MAIN).join(self)
        self._count()
        if wanted is not None:
            request = WatchedAccept(self._model, fragment, self, wanted)
            world.runtime_of(fragment).submit(request)
            return
        fragment.used = True
        self.waiters.wait(self)
        world.runtime_of(fragment).wake(fragment)

    def close(self) -> None:
        if self.attached:
            self.session = None
            self.waiters.leave(self)
            self.detach()
            if self.promised is not None:
                request = WatchedLeave(self._model, self.fragment, self.promised)
                self._world.runtime_of(self.fragment).submit(request)

    def wake(self) -> None:
        if self.session is not None:
            self.waiters.wants(self)
            self._world.runtime_of(self.fragment).wake(self.fragment)

    def engine_lost(self) -> None:
        self.session = self.promised = None
        self.close()

    # -- what it is told -------------------------------------------------------------------------

    def holds_in(self, waiters: SessionWaiters) -> None:
        assert waiters is self.waiters

    def accepted(self, session: Session) -> None:
        if self.attached:
            self.session = session
            self._world.note(None, f"receiver {self.holder} has {session.id!r}")
            self.wake()

    def refused(self, error: ServiceBusError) -> None:
        self._world.note(None, f"receiver {self.holder} is refused: {type(error).__name__}")
        self.close()

    def lost(self) -> None:
        session, self.session = self.session, None
        if session is not None and self.attached:
            self._world.note(None, f"receiver {self.holder} has lost {session.id!r}")
            self.waiters.leave(self)
            self.promised = None
            self.close()

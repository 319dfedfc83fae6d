"""Receivers of sessions: each waits for one, named or whichever is next, holds it, and goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.index_pages import Need
from postbus.broker.message import Message
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import ServiceBusError, SessionCannotBeLocked
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.session_waiters import SessionWaiters
from postbus.runtime.sessions import Accept, Leave
from tests.simulation.history import Violation
from tests.simulation.sessions.letters import WORK
from tests.simulation.sessions.promises import HOLDER

if TYPE_CHECKING:
    from tests.simulation.sessions.world import World


class WatchedLine(SessionWaiters):
    """Says who is given a session."""

    def __init__(self, world: World, fragment: LoadedFragment) -> None:
        super().__init__(MAIN, fragment.waiting_subqueues)
        self._world = world
        self._fragment = fragment

    def hold(self, session: Session, receiver: Any) -> None:
        world = self._world
        live = world.absorb(self._fragment)
        live.hold(session.id, receiver.holder, session.locked_until, world.now)
        world.note(None, f"guest {receiver.holder} is given {session.id!r}")
        super().hold(session, receiver)


class WatchedAccept(Accept):
    """A refusal is held against who has the session."""

    def __init__(self, world: World, fragment: LoadedFragment, guest: Any, session_id: str) -> None:
        super().__init__(fragment, guest, session_id)
        self._world = world

    def decide(self, engine: Engine, now: int) -> Need | None:
        live = self._world.absorb(self.fragment)
        try:
            return super().decide(engine, now)
        except SessionCannotBeLocked:
            if live.is_free(self._session_id, now):
                text = f"{self._session_id!r} is free, and said to be locked"
                raise Violation(HOLDER, None, text) from None
            raise


class WatchedLeave(Leave):
    """Nothing is written for it, so the model must be told."""

    def __init__(self, world: World, fragment: LoadedFragment, session: Session) -> None:
        super().__init__(fragment, MAIN, session)
        self._world = world

    def decide(self, engine: Engine, now: int) -> Need | None:
        live = self._world.absorb(self.fragment)
        if not live.is_free(self._session.id, now):
            live.leave(self._session.id, self._session.holder)
        return super().decide(engine, now)


class Guest:
    """A link that holds a session, or waits for one."""

    draining = False
    subqueue = MAIN

    def __init__(self, world: World, holder: int, deletes: bool, credit: int) -> None:
        self._world = world
        self.fragment = world.fragments[WORK]
        self.holder = holder
        self.deletes = deletes
        self.credit = credit
        self.waiters = self.fragment.session_waiters[MAIN]
        self.session: Session | None = None
        self.promised: Session | None = None
        self.gone = False
        self.reserved = 0

    @property
    def session_id(self) -> str | None:
        return None if self.promised is None else self.promised.id

    def open(self, wanted: str | None) -> None:
        world, fragment = self._world, self.fragment
        fragment.receivers_of(MAIN).join(self)
        self._count()
        if wanted is not None:
            world.runtime.submit(WatchedAccept(world, fragment, self, wanted))
            return
        fragment.used = True
        self.waiters.wait(self)  # type: ignore[arg-type]
        world.runtime.wake(fragment)

    def _count(self) -> None:
        if self.fragment.engine is not None:
            self.fragment.engine.set_receivers(MAIN, len(self.fragment.receivers_of(MAIN).members))

    # -- what it is told -----------------------------------------------------------------------

    def accepted(self, session: Session) -> None:
        if self.gone:
            return
        self.session = session
        self._world.note(None, f"guest {self.holder} has {session.id!r}")
        self.wake()

    def refused(self, error: ServiceBusError) -> None:
        self._world.note(None, f"guest {self.holder} is refused: {type(error).__name__}")
        self.close()

    def lost(self) -> None:
        session, self.session = self.session, None
        if session is not None and not self.gone:
            self._world.note(None, f"guest {self.holder} has lost {session.id!r}")
            self.waiters.leave(self)  # type: ignore[arg-type]
            self.promised = None
            self.close()

    def close(self) -> None:
        if self.gone:
            return
        self.gone = True
        self.session = None
        self.waiters.leave(self)  # type: ignore[arg-type]
        self.fragment.receivers_of(MAIN).leave(self)
        self._count()
        if self.promised is not None:
            self._world.runtime.submit(WatchedLeave(self._world, self.fragment, self.promised))

    def engine_lost(self) -> None:
        self.session = self.promised = None
        self.close()

    # -- messages ------------------------------------------------------------------------------

    def wake(self) -> None:
        if self.session is not None:
            self.waiters.wants(self)  # type: ignore[arg-type]
            self._world.runtime.wake(self.fragment)

    def capacity(self) -> int:
        self._world.absorb(self.fragment)
        return max(0, self.credit - self.reserved)

    def reserve(self, message: Message, raw: bytes) -> OutgoingMessage:
        self.reserved += 1
        self._world.taken(self, message)
        return OutgoingMessage(message, raw, None)

    def deliver(self, messages: list[OutgoingMessage]) -> None:
        self.reserved -= len(messages)
        for outgoing in messages:
            if self.gone:
                self._world.give_back(self, outgoing)
            else:
                self.credit -= 1
                self._world.delivered(self, outgoing)

    def drained(self) -> None: ...

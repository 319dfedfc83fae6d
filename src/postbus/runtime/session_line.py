"""Who holds which message session of an entity, and who waits for the next one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from postbus.errors import ServiceBusError
from postbus.runtime.receivers import Receiver

if TYPE_CHECKING:
    from postbus.broker.held_sessions import Session


class SessionReceiver(Receiver, Protocol):
    """One who holds a message session, or waits for one."""

    subqueue: int
    line: SessionLine
    gone: bool
    """It has left, and takes nothing more."""
    session: Session | None
    promised: Session | None
    """The session that is its own, also while its client has not been told yet."""

    def accepted(self, session: Session) -> None:
        """The session is its own, durably."""

    def refused(self, error: ServiceBusError) -> None:
        """It gets none."""

    def lost(self) -> None:
        """The session is its own no more."""


class SessionLine:
    """The session receivers of one subqueue.

    Waiting receivers are served in the order in which they came; a session that is held has one
    receiver, which gets all its messages.
    """

    def __init__(self, subqueue: int, called: dict[int, None]) -> None:
        self._subqueue = subqueue
        self.search = f"accept {subqueue}"
        """The chore that looks for sessions for those who wait."""
        self._called = called
        """Where to say that somebody waits: the subqueues that the next turn looks at."""
        self.waiting: OrderedDict[SessionReceiver, None] = OrderedDict()
        """For whatever session is to be had next."""
        self._holders: dict[str, SessionReceiver] = {}
        """By the id of the session."""
        self._by_holder: dict[int, SessionReceiver] = {}
        """The same, and for a moment also one that has lost its session to another of them."""
        self.wanting: OrderedDict[SessionReceiver, None] = OrderedDict()
        """Holders with credit, or to be drained, that are to be looked at."""

        self.reading: dict[SessionReceiver, None] = {}
        """Holders for which there is nothing before something was read."""

    @property
    def held_count(self) -> int:
        return len(self._holders)

    def looking(self, chores: set[str]) -> bool:
        """Is it yet to be found out whether there is a session?"""
        return self._subqueue in self._called or self.search in chores

    def wait(self, outlet: SessionReceiver) -> None:
        self.waiting[outlet] = None
        self._called[self._subqueue] = None

    def hold(self, session: Session, outlet: SessionReceiver) -> None:
        """The session is the receiver's own from now on."""
        self.waiting.pop(outlet, None)
        outlet.promised = session
        self._holders[session.id] = outlet
        self._by_holder[outlet.holder] = outlet

    def of_session(self, session_id: str) -> SessionReceiver | None:
        return self._holders.get(session_id)

    def of_holder(self, holder: int) -> SessionReceiver | None:
        return self._by_holder.get(holder)

    def leave(self, outlet: SessionReceiver) -> None:
        """The receiver waits no more, nor does it hold anything."""
        self.waiting.pop(outlet, None)
        self.wanting.pop(outlet, None)
        self.reading.pop(outlet, None)
        self._by_holder.pop(outlet.holder, None)
        session = outlet.promised
        # Somebody else may hold it by now, where it was lost before.
        if session is not None and self._holders.get(session.id) is outlet:
            del self._holders[session.id]

    def wants(self, outlet: SessionReceiver) -> None:
        """The receiver has credit, asked to be drained, or there is something new for it."""
        self.wanting[outlet] = None
        self._called[self._subqueue] = None

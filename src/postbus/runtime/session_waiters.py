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
    waiters: SessionWaiters
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


class SessionWaiters:
    """The session receivers of one subqueue.

    Waiting receivers are served in the order in which they came; a session that is held has one
    receiver, which gets all its messages.
    """

    def __init__(self, subqueue: int, waiting_subqueues: dict[int, None]) -> None:
        self._subqueue = subqueue
        self.search = f"accept {subqueue}"
        """The chore that looks for sessions for those who wait."""
        self._waiting_subqueues = waiting_subqueues
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
        return self._subqueue in self._waiting_subqueues or self.search in chores

    def wait(self, receiver: SessionReceiver) -> None:
        self.waiting[receiver] = None
        self._waiting_subqueues[self._subqueue] = None

    def hold(self, session: Session, receiver: SessionReceiver) -> None:
        """The session is the receiver's own from now on."""
        self.waiting.pop(receiver, None)
        receiver.promised = session
        self._holders[session.id] = receiver
        self._by_holder[receiver.holder] = receiver

    def of_session(self, session_id: str) -> SessionReceiver | None:
        return self._holders.get(session_id)

    def of_holder(self, holder: int) -> SessionReceiver | None:
        return self._by_holder.get(holder)

    def leave(self, receiver: SessionReceiver) -> None:
        """The receiver waits no more, nor does it hold anything."""
        self.waiting.pop(receiver, None)
        self.wanting.pop(receiver, None)
        self.reading.pop(receiver, None)
        self._by_holder.pop(receiver.holder, None)
        session = receiver.promised
        # Somebody else may hold it by now, where it was lost before.
        if session is not None and self._holders.get(session.id) is receiver:
            del self._holders[session.id]

    def wants(self, receiver: SessionReceiver) -> None:
        """The receiver has credit, asked to be drained, or there is something new for it."""
        self.wanting[receiver] = None
        self._waiting_subqueues[self._subqueue] = None

"""The session receivers of a subqueue: holders of sessions, and receivers that wait for one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from postbus.errors import ServiceBusError
from postbus.runtime.receivers import Receiver

if TYPE_CHECKING:
    from postbus.broker.held_sessions import Session


class SessionReceiver(Receiver, Protocol):
    """A receiver that holds a message session, or waits for one."""

    subqueue: int
    waiters: SessionWaiters
    gone: bool
    """The receiver has left, and takes nothing more."""
    session: Session | None
    promised: Session | None
    """The session that it holds, even if its client has not been told yet."""

    def holds_in(self, waiters: SessionWaiters) -> None:
        """Note in which fragment the receiver is about to get a session."""

    def accepted(self, session: Session) -> None:
        """Take a session: the receiver holds it, durably."""

    def refused(self, error: ServiceBusError) -> None:
        """Take a refusal: the receiver gets no session."""

    def lost(self) -> None:
        """Note that the receiver has lost its session."""


class SessionWaiters:
    """The session receivers of one subqueue.

    Waiting receivers get sessions in the order in which they came. A held session has one
    receiver, which gets all its messages.
    """

    def __init__(self, subqueue: int, waiting_subqueues: dict[int, None]) -> None:
        self._subqueue = subqueue
        self.search = f"accept {subqueue}"
        """The name of the chore that finds sessions for waiting receivers."""
        self._waiting_subqueues = waiting_subqueues
        """The subqueues that the next turn looks at, of the whole fragment."""
        self.waiting: OrderedDict[SessionReceiver, None] = OrderedDict()
        """Receivers that wait for any session."""
        self._holders: dict[str, SessionReceiver] = {}
        """Holders by session id."""
        self._by_holder: dict[int, SessionReceiver] = {}
        """Holders by holder number. For a moment it also has a receiver that has just lost its
        session to another one."""
        self.wanting: OrderedDict[SessionReceiver, None] = OrderedDict()
        """Holders with credit, or that drain, for the next turn to look at."""
        self.reading: dict[SessionReceiver, None] = {}
        """Holders that can get nothing before pages are loaded."""
        self.held: dict[Receiver, int] = {}
        """The last turn that had an output for a receiver which waited for a commit."""

    @property
    def held_count(self) -> int:
        return len(self._holders)

    def looking(self, chores: set[str]) -> bool:
        """Whether a search for a free session is due or under way."""
        return self._subqueue in self._waiting_subqueues or self.search in chores

    def wait(self, receiver: SessionReceiver) -> None:
        self.waiting[receiver] = None
        self._waiting_subqueues[self._subqueue] = None

    def hold(self, session: Session, receiver: SessionReceiver) -> None:
        """Give a session to a receiver. It waits nowhere from then on."""
        receiver.holds_in(self)
        self.waiting.pop(receiver, None)
        receiver.promised = session
        self._holders[session.id] = receiver
        self._by_holder[receiver.holder] = receiver

    def of_session(self, session_id: str) -> SessionReceiver | None:
        return self._holders.get(session_id)

    def of_holder(self, holder: int) -> SessionReceiver | None:
        return self._by_holder.get(holder)

    def leave(self, receiver: SessionReceiver) -> None:
        """Remove a receiver, whether it waits or holds a session."""
        self.waiting.pop(receiver, None)
        self.wanting.pop(receiver, None)
        self.reading.pop(receiver, None)
        self.held.pop(receiver, None)
        self._by_holder.pop(receiver.holder, None)
        session = receiver.promised
        # If the receiver has lost its session, another receiver may hold it by now.
        if session is not None and self._holders.get(session.id) is receiver:
            del self._holders[session.id]

    def wants(self, receiver: SessionReceiver) -> None:
        """Let the next turn look at a holder: it has credit or drains, or messages have come."""
        self.wanting[receiver] = None
        self._waiting_subqueues[self._subqueue] = None

"""Who holds which message session of an entity, and who waits for the next one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postbus.broker.session import Session
    from postbus.server.session_links import SessionOutlet


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
        self.waiting: OrderedDict[SessionOutlet, None] = OrderedDict()
        """For whatever session is to be had next."""
        self._holders: dict[str, SessionOutlet] = {}
        """By the id of the session."""
        self._by_holder: dict[int, SessionOutlet] = {}
        """The same, and for a moment also one that has lost its session to another of them."""
        self.wanting: OrderedDict[SessionOutlet, None] = OrderedDict()
        """Holders with credit, or to be drained, that are to be looked at."""

        self.reading: dict[SessionOutlet, None] = {}
        """Holders for which there is nothing before something was read."""

    @property
    def held_count(self) -> int:
        return len(self._holders)

    def looking(self, chores: set[str]) -> bool:
        """Is it yet to be found out whether there is a session?"""
        return self._subqueue in self._called or self.search in chores

    def wait(self, outlet: SessionOutlet) -> None:
        self.waiting[outlet] = None
        self._called[self._subqueue] = None

    def hold(self, session: Session, outlet: SessionOutlet) -> None:
        """The session is the receiver's own from now on."""
        self.waiting.pop(outlet, None)
        outlet.promised = session
        self._holders[session.id] = outlet
        self._by_holder[outlet.holder] = outlet

    def of_session(self, session_id: str) -> SessionOutlet | None:
        return self._holders.get(session_id)

    def of_holder(self, holder: int) -> SessionOutlet | None:
        return self._by_holder.get(holder)

    def leave(self, outlet: SessionOutlet) -> None:
        """The receiver waits no more, nor does it hold anything."""
        self.waiting.pop(outlet, None)
        self.wanting.pop(outlet, None)
        self.reading.pop(outlet, None)
        self._by_holder.pop(outlet.holder, None)
        session = outlet.promised
        # Somebody else may hold it by now, where it was lost before.
        if session is not None and self._holders.get(session.id) is outlet:
            del self._holders[session.id]

    def wants(self, outlet: SessionOutlet) -> None:
        """The receiver has credit, asked to be drained, or there is something new for it."""
        self.wanting[outlet] = None
        self._called[self._subqueue] = None

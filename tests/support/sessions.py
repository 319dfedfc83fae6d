"""An engine of an entity that requires sessions, and what clients do with those."""

from __future__ import annotations

from typing import Any

from postbus.broker import browse, session_operations
from postbus.broker.chores import fetch_session_bodies, refill_session
from postbus.broker.held_sessions import Session
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.session_list import Listing
from postbus.broker.subqueue_numbers import MAIN
from postbus.broker.window_budget import WindowBudget
from postbus.store.ports.store import Store
from tests.support.engine import Engine

LOCK_MS = 30_000


class SessionEngine(Engine):
    """As Engine; messages are sent with the id of their session, and received from one."""

    def __init__(
        self,
        policy: Policy | None = None,
        limits: WindowBudget | None = None,
        store: Store | None = None,
        checkpoint_every: int = 0,
    ) -> None:
        policy = (policy or Policy(lock_ms=LOCK_MS))._replace(requires_session=True)
        super().__init__(policy, limits, store, checkpoint_every)

    def put(self, session_id: str, *bodies: bytes, **fields: Any) -> list[int]:
        return self.send(*bodies, session_id=session_id, **fields)

    def accept(self, session_id: str, holder: int = 1) -> Session:
        return self.turn(
            lambda: session_operations.accept(self.queue, session_id, holder, self.now)
        )

    def accept_next(self, holder: int = 1) -> Session | None:
        session: Session | None = self.paged(
            lambda pages: session_operations.accept_next(self.queue, holder, self.now, pages)
        )
        return session

    def leave(self, session: Session) -> None:
        self.turn(lambda: session_operations.leave(self.queue, session, self.now))

    def renew(self, session_id: str, holder: int | None = None) -> int:
        return self.turn(lambda: session_operations.renew(self.queue, session_id, holder, self.now))

    def take(self, session: Session) -> Message | None:
        """Lock the next message of a session, reading pages as long as it takes."""
        for _ in range(100):
            taken = self.turn(lambda: self.queue.take_in_session(session, self.now))
            if taken is not None:
                return taken[0]
            if not self._fetch_in(session):
                return None
        raise AssertionError("the head of the session never becomes ready")

    def take_and_delete(self, session: Session) -> bytes | None:
        for _ in range(100):
            taken = self.turn(lambda: self.queue.take_and_delete_in_session(session, self.now))
            if taken is not None:
                return taken[1]
            if not self._fetch_in(session):
                return None
        raise AssertionError("the head of the session never becomes ready")

    def take_all(self, session: Session) -> list[str]:
        """The ids of all messages that can be had now."""
        found = []
        while (message := self.take(session)) is not None:
            found.append(message.message_id.removeprefix("id-"))
        return found

    def drain(self, session: Session) -> list[str]:
        """The same, and complete them."""
        found = []
        while (message := self.take(session)) is not None:
            self.complete(message)
            found.append(message.message_id.removeprefix("id-"))
        return found

    def _fetch_in(self, session: Session) -> bool:
        if session.lost:
            return False
        window, name = session.window, session.id
        head = window.head()
        if head is not None and head.raw is None:
            self.paged(lambda pages: fetch_session_bodies(self.queue, name, pages))
            return True
        if head is None and not window.complete:
            self.paged(lambda pages: refill_session(self.queue, name, pages))
            return True
        return head is not None

    def get_state(self, session_id: str) -> bytes | None:
        state: bytes | None = self.paged(
            lambda pages: session_operations.get_state(self.queue, session_id, self.now, pages)
        )
        return state

    def set_state(self, session_id: str, data: bytes | None) -> None:
        self.paged(
            lambda pages: session_operations.set_state(
                self.queue, session_id, data, self.now, pages
            )
        )

    def listed(self, updated_after: int | None = None, skip: int = 0, top: int = 100) -> list[str]:
        listing = Listing(updated_after, skip, top)
        found: list[str] = self.paged(lambda pages: listing.read(self.queue, pages))
        return found

    def peeked(self, session_id: str | None, start: int = 0, count: int = 100) -> list[str]:
        found = self.paged(
            lambda pages: browse.peek(self.queue, MAIN, start, count, 1 << 20, pages, session_id)
        )
        return [message.message_id.removeprefix("id-") for message, _ in found]

    def deferred(self, session_id: str | None, *numbers: int) -> list[Message]:
        found = self.paged(
            lambda pages: browse.receive_deferred(
                self.queue, MAIN, numbers, False, 1, self.now, pages, session_id
            )
        )
        return [message for message, _ in found]

    def delete_in(self, session_id: str | None, count: int = 100, before: int | None = None) -> int:
        limit = self.now if before is None else before
        deleted: int = self.paged(
            lambda pages: browse.delete_batch(self.queue, MAIN, count, limit, pages, session_id)
        )
        return deleted

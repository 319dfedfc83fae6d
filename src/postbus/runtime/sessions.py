"""Message sessions of a fragment: requests for them, and what a turn hands out in them.

`session_waiters` keeps the receivers. It is a module of its own because a fragment has one.
"""

from __future__ import annotations

from functools import partial

from postbus.broker import chores, session_operations
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.index_pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.subqueue_numbers import owner_of
from postbus.errors import ServiceBusError
from postbus.model.times import Instant
from postbus.runtime.commits import safely
from postbus.runtime.loaded_fragment import GIVEN_PER_TURN, LoadedFragment
from postbus.runtime.receivers import SERVED_AT_ONCE, OutgoingMessage
from postbus.runtime.requests import Request
from postbus.runtime.session_waiters import SessionReceiver, SessionWaiters
from postbus.runtime.turn import Turn


class Accept(Request):
    """A receiver asks for a session by its id. It gets the session at once, or is refused."""

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
    """Find sessions for waiting receivers. A subqueue has at most one such request under way."""

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
                # Receivers that have a session do not wait for the pages of the next search.
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
            # If one answer fails, the other receivers still get theirs.
            safely(self.fragment, partial(receiver.accepted, session))

    def refuse(self, error: ServiceBusError) -> None:
        self.fragment.chores.discard(self._waiters.search)
        for receiver, _ in self._found:
            receiver.refused(error)
        # The other waiting receivers have no other reason to be looked at.
        self.fragment.waiting_subqueues[self._subqueue] = None


class Leave(Request):
    """A receiver is gone: its session is free, and its unsettled messages are ready again.

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


def serve_sessions(
    fragment: LoadedFragment,
    engine: Engine,
    looked_at: list[int],
    turn: Turn,
) -> list[Request]:
    """Hand out ready messages of held sessions; returns the requests that this makes necessary.

    Subqueues with more to hand out are in `waiting_subqueues` afterwards, for the next turn.
    """
    ready_subqueues = engine.shared.ready_sessions
    subqueues = dict.fromkeys(looked_at)
    for subqueue, session_id in ready_subqueues:
        waiters = fragment.session_waiters.get(subqueue)
        receiver = None if waiters is None else waiters.of_session(session_id)
        if waiters is not None and receiver is not None:
            waiters.wanting[receiver] = None
            subqueues[subqueue] = None
    ready_subqueues.clear()
    found: list[Request] = []
    # A limit of their own, or receivers without sessions could use it up in every turn.
    room = GIVEN_PER_TURN
    for_more: list[int] = []
    for subqueue in subqueues:
        waiters = fragment.session_waiters.get(subqueue)
        queue = engine.queues.get(owner_of(subqueue))
        if waiters is None or queue is None or not queue.policy.receives:
            continue
        waiters.wanting.update(waiters.reading)
        waiters.reading.clear()
        if waiters.waiting:
            found += _accept_next(fragment, subqueue, waiters)
        if room > 0:
            room = _dispatch(fragment, waiters, queue, turn, room, found)
            if waiters.wanting:
                for_more.append(subqueue)
        elif waiters.wanting:
            fragment.waiting_subqueues[subqueue] = None  # the first in the next turn
    fragment.waiting_subqueues.update(dict.fromkeys(for_more))
    return found


def _accept_next(
    fragment: LoadedFragment, subqueue: int, waiters: SessionWaiters
) -> list[AcceptNext]:
    if waiters.search in fragment.chores:
        return []
    fragment.chores.add(waiters.search)
    return [AcceptNext(fragment, subqueue, waiters)]


def _dispatch(
    fragment: LoadedFragment,
    waiters: SessionWaiters,
    queue: Queue,
    turn: Turn,
    left: int,
    found: list[Request],
) -> int:
    """Give messages to holders that want some, up to `left` shares; returns the rest of those."""
    wanting = waiters.wanting
    while wanting and left > 0:
        receiver, _ = wanting.popitem(last=False)
        session = receiver.session
        if session is None or session.lost:
            continue
        served = min(receiver.capacity(), SERVED_AT_ONCE, left)
        taken = _take(queue, session, receiver, served, left, turn.now)
        if taken:
            turn.deliver(fragment, queue.ledger, receiver, taken, waiters.held)
            left -= sum([outgoing.share for outgoing in taken])
            _read_ahead(fragment, queue, session, found)
        if len(taken) == served or left <= 0:
            if receiver.capacity() > 0:
                wanting[receiver] = None
            elif receiver.draining:
                turn.drained(fragment, receiver, waiters.held)
            continue
        head = session.window.head()
        if head is not None and head.raw is not None:
            wanting[receiver] = None  # only expired messages were found: look again
            left -= 1
        elif head is None and session.window.complete:
            if receiver.draining:
                turn.drained(fragment, receiver, waiters.held)
        else:
            waiters.reading[receiver] = None
            _read_ahead(fragment, queue, session, found)
    return left


def _read_ahead(
    fragment: LoadedFragment, queue: Queue, session: Session, found: list[Request]
) -> None:
    """Add chores that load the next messages of a session and their bodies, where needed."""
    place = f"{queue.main} {session.id}"
    if session.window.low:
        found += fragment.begin(f"refill {place}", partial(_refill, queue.main, session.id))
    head = session.window.head()
    if head is not None and head.raw is None:
        found += fragment.begin(f"bodies {place}", partial(_fetch_bodies, queue.main, session.id))


def _take(
    queue: Queue,
    session: Session,
    receiver: SessionReceiver,
    wanted: int,
    shares: int,
    now: Instant,
) -> list[OutgoingMessage]:
    taken: list[OutgoingMessage] = []
    while len(taken) < wanted and shares > 0:
        message = (
            queue.take_and_delete_in_session(session, now)
            if receiver.deletes
            else queue.take_in_session(session, now)
        )
        if message is None:
            break
        outgoing = receiver.reserve(*message)
        taken.append(outgoing)
        shares -= outgoing.share
    return taken


def _refill(
    subqueue: int, session_id: str, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return chores.refill_session(engine.at(subqueue), session_id, pages)


def _fetch_bodies(
    subqueue: int, session_id: str, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return chores.fetch_session_bodies(engine.at(subqueue), session_id, pages)

"""What a turn does for the session receivers of a fragment: sessions and their messages."""

from __future__ import annotations

from functools import partial

from postbus.broker import chores
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.broker.subqueue import owner_of
from postbus.model.times import Instant
from postbus.runtime.fragment import GIVEN_PER_TURN, LoadedFragment, Output, Request
from postbus.runtime.receivers import SERVED_AT_ONCE, OutgoingMessage
from postbus.runtime.session_requests import AcceptNext
from postbus.runtime.session_waiters import SessionReceiver, SessionWaiters


def serve_sessions(
    fragment: LoadedFragment,
    engine: Engine,
    looked_at: list[int],
    now: Instant,
    outputs: list[Output],
) -> list[Request]:
    """Hand out what is ready in the sessions that are held; returns the work that has come up.

    Where there is more to hand out at once, the fragment has been called again.
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
    # Of their own, or lines without sessions could leave them nothing, turn after turn.
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
            room = _dispatch(fragment, waiters, queue, now, room, outputs, found)
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
    now: Instant,
    left: int,
    outputs: list[Output],
    found: list[Request],
) -> int:
    """Let each holder that wants messages have some, as far as the turn has any `left` to give;
    returns how many are left then."""
    wanting = waiters.wanting
    while wanting and left > 0:
        receiver, _ = wanting.popitem(last=False)
        session = receiver.session
        if session is None or session.lost:
            continue
        served = min(receiver.capacity(), SERVED_AT_ONCE, left)
        taken = _take(queue, session, receiver, served, left, now)
        if taken:
            outputs.append((fragment, partial(receiver.deliver, taken)))
            left -= sum([outgoing.share for outgoing in taken])
            _read_ahead(fragment, queue, session, found)
        if len(taken) == served or left <= 0:
            if receiver.capacity() > 0:
                wanting[receiver] = None
            elif receiver.draining:
                outputs.append((fragment, receiver.drained))
            continue
        head = session.window.head()
        if head is not None and head.raw is not None:
            wanting[receiver] = None  # a slice of nothing but expired ones was gone through
            left -= 1
        elif head is None and session.window.complete:
            if receiver.draining:
                outputs.append((fragment, receiver.drained))
        else:
            waiters.reading[receiver] = None
            _read_ahead(fragment, queue, session, found)
    return left


def _read_ahead(
    fragment: LoadedFragment, queue: Queue, session: Session, found: list[Request]
) -> None:
    """Have read what comes next, where it is in the store."""
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

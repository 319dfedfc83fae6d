"""What a turn does for the session receivers of a fragment: sessions and their messages."""

from __future__ import annotations

from functools import partial

from postbus.broker import session_chores
from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.message import OWNER_BITS
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.model.instant import Instant
from postbus.runtime.fragment import GIVEN_PER_TURN, LoadedFragment, Output, Request
from postbus.runtime.receivers import SERVED_AT_ONCE, Parcel
from postbus.runtime.session_line import SessionLine, SessionReceiver
from postbus.runtime.session_requests import AcceptNext


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
    stirred = engine.shared.stirred_sessions
    subqueues = dict.fromkeys(looked_at)
    for subqueue, session_id in stirred:
        line = fragment.session_lines.get(subqueue)
        outlet = None if line is None else line.of_session(session_id)
        if line is not None and outlet is not None:
            line.wanting[outlet] = None
            subqueues[subqueue] = None
    stirred.clear()
    found: list[Request] = []
    # Of their own, or lines without sessions could leave them nothing, turn after turn.
    room = GIVEN_PER_TURN
    for_more: list[int] = []
    for subqueue in subqueues:
        line = fragment.session_lines.get(subqueue)
        queue = engine.queues.get(subqueue >> OWNER_BITS)
        if line is None or queue is None or not queue.policy.receives:
            continue
        line.wanting.update(line.reading)
        line.reading.clear()
        if line.waiting:
            found += _accept_next(fragment, subqueue, line)
        if room > 0:
            room = _dispatch(fragment, line, queue, now, room, outputs, found)
            if line.wanting:
                for_more.append(subqueue)
        elif line.wanting:
            fragment.called[subqueue] = None  # the first in the next turn
    fragment.called.update(dict.fromkeys(for_more))
    return found


def _accept_next(fragment: LoadedFragment, subqueue: int, line: SessionLine) -> list[AcceptNext]:
    if line.search in fragment.chores:
        return []
    fragment.chores.add(line.search)
    return [AcceptNext(fragment, subqueue, line)]


def _dispatch(
    fragment: LoadedFragment,
    line: SessionLine,
    queue: Queue,
    now: Instant,
    left: int,
    outputs: list[Output],
    found: list[Request],
) -> int:
    """Let each holder that wants messages have some, as far as the turn has any `left` to give;
    returns how many are left then."""
    wanting = line.wanting
    while wanting and left > 0:
        outlet, _ = wanting.popitem(last=False)
        session = outlet.session
        if session is None or session.lost:
            continue
        served = min(outlet.capacity(), SERVED_AT_ONCE, left)
        taken = _take(queue, session, outlet, served, left, now)
        if taken:
            outputs.append((fragment, partial(outlet.deliver, taken)))
            left -= sum([parcel.share for parcel in taken])
            _read_ahead(fragment, queue, session, found)
        if len(taken) == served or left <= 0:
            if outlet.capacity() > 0:
                wanting[outlet] = None
            elif outlet.draining:
                outputs.append((fragment, outlet.drained))
            continue
        head = session.window.head()
        if head is not None and head.raw is not None:
            wanting[outlet] = None  # a slice of nothing but expired ones was gone through
            left -= 1
        elif head is None and session.window.complete:
            if outlet.draining:
                outputs.append((fragment, outlet.drained))
        else:
            line.reading[outlet] = None
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
    queue: Queue, session: Session, outlet: SessionReceiver, wanted: int, shares: int, now: Instant
) -> list[Parcel]:
    taken: list[Parcel] = []
    while len(taken) < wanted and shares > 0:
        message = (
            queue.take_and_delete_in_session(session, now)
            if outlet.deletes
            else queue.take_in_session(session, now)
        )
        if message is None:
            break
        parcel = outlet.reserve(*message)
        taken.append(parcel)
        shares -= parcel.share
    return taken


def _refill(
    subqueue: int, session_id: str, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return session_chores.refill_session(engine.at(subqueue), session_id, pages)


def _fetch_bodies(
    subqueue: int, session_id: str, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return session_chores.fetch_session_bodies(engine.at(subqueue), session_id, pages)

"""The operations of a client on sessions: accept, give up, renew, and their state.

State is a row in a lane of its own, like a message, so that it is durable, counted and copied
forward. The hold of a session does not survive a restart, as a lock does not.
"""

from typing import Final

from postbus.broker.held_sessions import READY_MAX, Session, Sessions
from postbus.broker.index_pages import BodyPage, GroupPage, GroupsPage, Need, Page, Pages, missing
from postbus.broker.lane_reading import first_of_session
from postbus.broker.message import ACTIVE, STATE, Message, no_body
from postbus.broker.policy import ID_LENGTH_MAX
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.session_queue import SessionQueue, with_sessions
from postbus.errors import (
    InvalidArgument,
    MessageSizeExceeded,
    QuotaExceeded,
    SessionCannotBeLocked,
    SessionLockLost,
)
from postbus.model.times import Instant

__all__ = [
    "accept",
    "accept_next",
    "get_state",
    "held",
    "leave",
    "renew",
    "set_state",
]

FIRST_ROWS: Final = 64
"""Messages of a session that are read with it when it is accepted."""
LOOKED_AT_MAX: Final = 32
"""Sessions that are looked at together, after many have turned out to be empty."""


# -- accept and give up ----------------------------------------------------------------------


def accept(queue: Queue, session_id: str, holder: int, now: Instant) -> Session:
    """Take a session by its name, whether it has messages or not, or was ever seen."""
    own = with_sessions(queue)
    queue.check_receives()
    if len(session_id) > ID_LENGTH_MAX:
        raise InvalidArgument(f"The SessionId is longer than {ID_LENGTH_MAX} characters.")
    session = own.all_sessions.held.get(session_id)
    if session is not None:
        if session.holds(now):
            raise SessionCannotBeLocked(session_id)
        own.lose_session(session, failed=True, now=now)
    return _open(own, session_id, holder, now)


def accept_next(queue: Queue, holder: int, now: Instant, pages: Pages) -> Session | Need | None:
    """Take the free session that has waited for longest and has messages; None if there is none."""
    own = with_sessions(queue)
    queue.check_receives()
    own.expire_sessions(now, 1)
    sessions = own.all_sessions
    line = sessions.free
    if not queue.ledger.count(queue.main):
        line.clear()
    round_begun = False
    while True:
        session_id = next(iter(line.ids), None)
        if session_id is None:
            if line.is_empty_for_good() or (round_begun and line.cursor is None):
                return None
            round_begun = round_begun or line.cursor is None
            need = _fill_line(queue, sessions, pages)
            if need is not None:
                return need
            continue
        found = _available(queue, session_id, now, pages)
        if isinstance(found, Need):
            return _and_others(queue, sessions, found, pages)
        messages, end = found
        if not messages or line.is_for_later(messages[0].number):
            line.pass_over(session_id)
            continue
        line.duds = 0
        session = _open(own, session_id, holder, now)
        session.window.extend(messages, end)
        return session


def leave(queue: Queue, session: Session, now: Instant) -> None:
    """The holder gives the session up, or is gone. All its messages are available at once, and no
    delivery has failed (semantics B §1)."""
    if not isinstance(queue, SessionQueue):
        return
    # The session may be of an engine that was thrown away, and have another holder here by now.
    if queue.all_sessions.held.get(session.id) is session:
        # If the lock has run out unnoticed, the holder leaves too late: the deliveries failed.
        queue.end_session(session, failed=not session.holds(now), now=now)


def renew(queue: Queue, session_id: str, holder: int | None, now: Instant) -> Instant:
    """Let the lock last from now on as long as a new lock. With None for any holder, otherwise only
    if `holder` holds the session."""
    session = held(queue, session_id, now)
    if holder is not None and session.holder != holder:
        raise SessionLockLost()
    session.locked_until = now + queue.policy.lock_ms
    with_sessions(queue).all_sessions.held.move_to_end(session_id)
    return session.locked_until


def held(queue: Queue, session_id: str | None, now: Instant) -> Session:
    """The held session with this id; an operation on a free session is refused."""
    sessions = with_sessions(queue).all_sessions
    queue.check_receives()
    session = None if session_id is None else sessions.held.get(session_id)
    if session is None or not session.holds(now):
        raise SessionLockLost()
    return session


def _open(queue: SessionQueue, session_id: str, holder: int, now: Instant) -> Session:
    queue.shared.locked[queue.owner] = None
    return queue.all_sessions.open(session_id, holder, now + queue.policy.lock_ms)


def _fill_line(queue: Queue, sessions: Sessions, pages: Pages) -> Need | None:
    """Take the next page of ids, whether these sessions are free and have messages left or not."""
    line = sessions.free
    after = None if line.cursor is None else line.cursor.encode()
    page = GroupsPage(queue.main, ACTIVE, after, READY_MAX)
    if need := missing(pages, [page]):
        return need
    if line.cursor is None:
        line.begin_round(queue.ledger.last_number)
    found, end = queue.ledger.delta.over_groups(
        pages.groups(page), queue.main, ACTIVE, line.cursor, READY_MAX
    )
    line.fill(found, end, sessions.held)
    return None


def _available(
    queue: Queue, session_id: str, now: Instant, pages: Pages
) -> tuple[list[Message], int | None] | Need:
    """The first messages of a free session that have not expired, and the number they reach to."""
    start = 0
    while True:
        found = first_of_session(
            queue.ledger.delta, pages, queue.main, ACTIVE, session_id, start, FIRST_ROWS
        )
        if isinstance(found, Need):
            return found
        messages, end = found
        available = [message for message in messages if not message.expired(now)]
        for message in messages:
            if message.expired(now):
                queue.expire(message)
        if available or end is None:
            return available, end
        start = end + 1


def _and_others(queue: Queue, sessions: Sessions, need: Need, pages: Pages) -> Need:
    """The pages for the first free session and, if the sessions before it were empty, for the next
    sessions, too: an index that is behind may name thousands of empty sessions."""
    wanted: dict[Page, None] = dict.fromkeys(need.pages)
    for session_id in sessions.free.ids:
        if len(wanted) > min(sessions.free.duds, LOOKED_AT_MAX):
            break
        page = GroupPage(queue.main, ACTIVE, session_id.encode(), 0, FIRST_ROWS)
        if page not in pages:
            wanted[page] = None
    return Need(tuple(wanted))


# -- state -----------------------------------------------------------------------------------


def get_state(queue: Queue, session_id: str, now: Instant, pages: Pages) -> bytes | Need | None:
    """The state that holders have set for a session; None if there is none."""
    held(queue, session_id, now)
    found = _state(queue, session_id, pages)
    if found is None or isinstance(found, Need):
        return found
    page = BodyPage(found.base, found.position, found.length)
    if need := missing(pages, [page]):
        return need
    state = pages.body(page)
    if state is None:
        raise no_body(found)
    return state or None


def set_state(
    queue: Queue, session_id: str, data: bytes | None, now: Instant, pages: Pages
) -> Need | None:
    """Replace it, or clear it: None, and nothing in it. A Go client has no other way to say null
    than an empty binary, and Azure answers null after either."""
    held(queue, session_id, now)
    before = _state(queue, session_id, pages)
    if isinstance(before, Need):
        return before
    ledger = queue.ledger
    if data:
        _check_state(queue, len(data), 0 if before is None else before.charge)
    if before is not None:
        ledger.remove(RecordKind.STATE_CLEARED, before)
    if data:
        state = Message(data, session_id=session_id)
        state.subqueue, state.lane = queue.main, STATE
        state.number = state.enqueue_number = ledger.next_number()
        state.enqueued_at = now
        ledger.add(RecordKind.STATE_SET, state, data)
        state.raw = None
    return None


def _check_state(queue: Queue, size: int, freed: int) -> None:
    policy, ledger = queue.policy, queue.ledger
    if size > policy.message_size_max:
        raise MessageSizeExceeded(
            f"The state of a session has {size} bytes, {policy.message_size_max} bytes are allowed "
            f"on the entity '{queue.name}'."
        )
    if ledger.size_bytes - freed + size > policy.size_bytes_max:
        raise QuotaExceeded(
            f"The entity '{queue.name}' has no room for {size} bytes of session state."
        )


def _state(queue: Queue, session_id: str, pages: Pages) -> Message | Need | None:
    delta = queue.ledger.delta
    found = first_of_session(delta, pages, queue.main, STATE, session_id, 0, FIRST_ROWS)
    if isinstance(found, Need):
        return found
    messages, _ = found
    return messages[0] if messages else None

"""The sessions of an entity, a page at a time.

A client asks for pages by how many sessions it has seen. The broker remembers where each page
ended, so that the next page starts there instead of counting from the beginning.
"""

from typing import Final

from postbus.broker.held_sessions import Sessions
from postbus.broker.index_pages import GroupsPage, Need, Page, Pages, missing
from postbus.broker.lane_reading import first_messages, first_of_session
from postbus.broker.message import ACTIVE, STATE
from postbus.broker.queue import Queue
from postbus.broker.session_queue import with_sessions
from postbus.errors import InvalidArgument
from postbus.model.times import Instant

LISTED_MAX: Final = 1_000
"""Sessions in a page of a listing."""
SKIPPED_MAX: Final = 100_000
"""Sessions that are counted again when nobody remembers where the page before ended."""
READ_AT_ONCE: Final = 256

Place = str | int
"""Where a listing goes on: behind an id, or at the number of a state."""
Step = tuple[list[tuple[str, Place]], Place | None]
"""Some sessions, each with the place behind it, and where more may follow; None: nowhere."""


class Listing:
    """A page of a listing, as a client asked for it.

    Its beginning may be a long way off. How far it has counted is kept from one read to the next.
    """

    def __init__(self, updated_after: Instant | None, skip: int, top: int) -> None:
        if skip < 0 or top < 1:
            raise InvalidArgument(f"There is no page of {top} sessions behind {skip} others.")
        self._updated_after = updated_after
        self._skip = skip
        self._top = min(top, LISTED_MAX)
        self._left_out = -1
        """Sessions that are yet to be counted; -1 before it is known where to begin."""
        self._place: Place | None = None

    def read(self, queue: Queue, pages: Pages) -> list[str] | Need:
        """Sessions with active messages or a state, in order of their ids. Given a time, the
        sessions whose state was set after it, in the order of setting."""
        sessions = with_sessions(queue).all_sessions
        if self._left_out < 0:
            self._begin(sessions)
        while self._left_out > 0:
            step = self._step(queue, self._place, pages)
            if isinstance(step, Need):
                return step
            found, end = step
            counted = found[: self._left_out]
            if end is None and len(counted) < self._left_out:
                return []  # there are not so many
            self._left_out -= len(counted)
            self._place = end if self._left_out > 0 else counted[-1][1]
            pages.forget_rows()
        return self._told(queue, sessions, pages)

    def _begin(self, sessions: Sessions) -> None:
        self._place = sessions.listings.get((self._updated_after, self._skip))
        self._left_out = self._skip if self._place is None else 0
        if self._left_out > SKIPPED_MAX:
            raise InvalidArgument(
                "A listing of sessions is read page by page; "
                f"it cannot begin behind {self._skip} of them."
            )

    def _told(self, queue: Queue, sessions: Sessions, pages: Pages) -> list[str] | Need:
        """The page itself, as it is at one moment."""
        ids: list[str] = []
        stopped_at: Place = ""
        start = self._place
        while len(ids) < self._top:
            step = self._step(queue, start, pages)
            if isinstance(step, Need):
                return step
            found, start = step
            told = found[: self._top - len(ids)]
            if told:
                ids += [session_id for session_id, _ in told]
                stopped_at = told[-1][1]
            if start is None:
                break
        if ids:
            sessions.remember((self._updated_after, self._skip + len(ids)), stopped_at)
        return ids

    def _step(self, queue: Queue, place: Place | None, pages: Pages) -> Step | Need:
        if self._updated_after is None:
            assert place is None or isinstance(place, str)
            return _next_ids(queue, place, pages)
        assert place is None or isinstance(place, int)
        return _next_changed(queue, self._updated_after, place, pages)


# -- all of them -----------------------------------------------------------------------------


def _next_ids(queue: Queue, after: str | None, pages: Pages) -> Step | Need:
    """Some ids behind an id, up to an id behind which there may be others."""
    delta = queue.ledger.delta
    start = None if after is None else after.encode()
    by_lane = [GroupsPage(queue.main, lane, start, READ_AT_ONCE) for lane in (ACTIVE, STATE)]
    if need := missing(pages, list(by_lane)):
        return need
    lanes_of: dict[str, list[int]] = {}
    horizon: str | None = None
    for page in by_lane:
        part, end = delta.over_groups(
            pages.groups(page), queue.main, page.lane, after, READ_AT_ONCE
        )
        for session_id in part:
            lanes_of.setdefault(session_id, []).append(page.lane)
        if end is not None:
            horizon = end if horizon is None else min(horizon, end)
    ids = sorted(each for each in lanes_of if horizon is None or each <= horizon)
    return _that_exist(queue, ids, lanes_of, horizon, pages)


def _that_exist(
    queue: Queue, ids: list[str], lanes_of: dict[str, list[int]], end: str | None, pages: Pages
) -> Step | Need:
    """Leave out sessions that only the index still has."""
    delta = queue.ledger.delta
    needed: list[Page] = []
    found: list[str] = []
    for session_id in ids:
        lanes = lanes_of[session_id]
        if any(
            not delta.may_have_left(queue.main, lane, session_id)
            or delta.has_group(queue.main, lane, session_id)
            for lane in lanes
        ):
            found.append(session_id)
            continue
        for lane in lanes:
            first = first_of_session(delta, pages, queue.main, lane, session_id, 0, READ_AT_ONCE)
            if isinstance(first, Need):
                needed += first.pages
            elif first[0]:
                found.append(session_id)
                break
    return Need(tuple(needed)) if needed else ([(each, each) for each in found], end)


# -- sessions with a changed state -----------------------------------------------------------


def _next_changed(
    queue: Queue, updated_after: Instant, start: int | None, pages: Pages
) -> Step | Need:
    """Some ids from a number on; None: from the first that counts."""
    if start is None:
        first = _first_after(queue, updated_after, pages)
        if isinstance(first, Need):
            return first
        start = first
    found = first_messages(queue.ledger.delta, pages, queue.main, STATE, start, READ_AT_ONCE)
    if isinstance(found, Need):
        return found
    states, end = found
    ids: list[tuple[str, Place]] = []
    for state in states:
        assert state.session_id is not None
        ids.append((state.session_id, state.number + 1))
    return ids, None if end is None else end + 1


def _first_after(queue: Queue, time: Instant, pages: Pages) -> int | Need:
    """The number of the first state that was set after a time. Numbers grow with time, so it is
    found by halving."""
    ledger = queue.ledger
    low, high = ledger.first_number, ledger.last_number + 1
    while low < high:
        middle = (low + high) // 2
        found = first_messages(ledger.delta, pages, queue.main, STATE, middle, READ_AT_ONCE)
        if isinstance(found, Need):
            return found
        states, _ = found
        if not states or states[0].enqueued_at > time:
            high = middle
        else:
            low = states[0].number + 1
    return low

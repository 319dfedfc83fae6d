"""Which sessions an entity has, a page at a time.

A client asks for pages by how many it has seen. Where each page ended is remembered, so that the
next one starts there instead of counting from the beginning.
"""

from typing import Final

from postbus.broker.chores import missing
from postbus.broker.lanes import first_messages
from postbus.broker.message import ACTIVE, STATE
from postbus.broker.pages import GroupsPage, Need, Page, Pages
from postbus.broker.queue import Queue
from postbus.broker.session import Sessions, sessions_of
from postbus.broker.session_chores import first_of_session
from postbus.errors import InvalidArgument
from postbus.model.instant import Instant

LISTED_MAX: Final = 1_000
"""Sessions in one page of a listing."""
SKIPPED_MAX: Final = 100_000
"""Sessions that are counted again when nobody remembers where the page before ended."""
READ_AT_ONCE: Final = 256


def list_sessions(
    queue: Queue, updated_after: Instant | None, skip: int, top: int, pages: Pages
) -> list[str] | Need:
    """Sessions with active messages or a state, in order of their ids; or, given a time, those
    whose state was set after it, in the order in which it was."""
    sessions = sessions_of(queue)
    if skip < 0 or top < 1:
        raise InvalidArgument(f"There is no page of {top} sessions behind {skip} others.")
    place = sessions.listings.get((updated_after, skip))
    left_out = skip if place is None else 0
    if left_out > SKIPPED_MAX:
        raise InvalidArgument(
            f"A listing of sessions is read page by page; it cannot begin behind {skip} of them."
        )
    wanted = left_out + min(top, LISTED_MAX)
    found: tuple[list[str], str | int] | Need
    if updated_after is None:
        assert place is None or isinstance(place, str)
        found = _existing(queue, place, wanted, pages)
    else:
        assert place is None or isinstance(place, int)
        found = _changed(queue, updated_after, place, wanted, pages)
    if isinstance(found, Need):
        return found
    ids, stopped_at = found
    del ids[:left_out]
    _remember(sessions, updated_after, skip, ids, stopped_at)
    return ids


def _remember(
    sessions: Sessions, updated_after: Instant | None, skip: int, ids: list[str], at: str | int
) -> None:
    if ids:
        sessions.remember((updated_after, skip + len(ids)), at)


# -- all of them -----------------------------------------------------------------------------


def _existing(
    queue: Queue, after: str | None, wanted: int, pages: Pages
) -> tuple[list[str], str] | Need:
    """The next ids, and the last of them."""
    ids: list[str] = []
    while len(ids) < wanted:
        found = _next_ids(queue, after, pages)
        if isinstance(found, Need):
            return found
        part, end = found
        ids += part
        if end is None:
            break
        after = end
    del ids[wanted:]
    return ids, ids[-1] if ids else ""


def _next_ids(queue: Queue, after: str | None, pages: Pages) -> tuple[list[str], str | None] | Need:
    """Some ids behind one of them, and the id up to which there are no others; None for the
    last."""
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
) -> tuple[list[str], str | None] | Need:
    """Leave out those that only the index still knows."""
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
    return Need(tuple(needed)) if needed else (found, end)


# -- those whose state has changed -----------------------------------------------------------


def _changed(
    queue: Queue, updated_after: Instant, start: int | None, wanted: int, pages: Pages
) -> tuple[list[str], int] | Need:
    """The next ids, and the number to go on from."""
    if start is None:
        first = _first_after(queue, updated_after, pages)
        if isinstance(first, Need):
            return first
        start = first
    ids: list[str] = []
    while len(ids) < wanted:
        found = first_messages(queue.ledger.delta, pages, queue.main, STATE, start, READ_AT_ONCE)
        if isinstance(found, Need):
            return found
        states, end = found
        for state in states[: wanted - len(ids)]:
            assert state.session_id is not None
            ids.append(state.session_id)
            start = state.number + 1
        if end is None:
            break
    return ids, start


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

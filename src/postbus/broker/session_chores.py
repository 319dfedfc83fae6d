"""Bring the messages of a session that is held into memory: nobody asked, but somebody waits.

Like every call that needs the store these return `Need` and change nothing, or do their work and
return None.
"""

from typing import Final

from postbus.broker.chores import PAGE_ROWS
from postbus.broker.held_sessions import Session
from postbus.broker.message import ACTIVE, Message, no_body
from postbus.broker.pages import BatchPage, BodyPage, GroupPage, Need, Page, Pages, missing
from postbus.broker.queue import Queue

BODIES_AT_ONCE: Final = 64
WORTH_A_BATCH: Final = 4
"""Bodies in one batch that are read with all of it. The messages of a session lie among those of
the others, so that few mostly come from each."""


def refill_session(queue: Queue, session_id: str, pages: Pages) -> Need | None:
    """Bring the next page of a session into its window."""
    session = _held(queue, session_id)
    if session is None:
        return None
    window = session.window
    if not window.low:
        queue.shared.ready_sessions[(queue.main, session_id)] = None
        return None
    group = session_id.encode()
    limit = min(PAGE_ROWS, window.page)
    page = GroupPage(queue.main, ACTIVE, group, window.end + 1, limit)
    if need := missing(pages, [page]):
        return need
    messages, end = queue.ledger.delta.over_group(
        pages.rows(page), queue.main, ACTIVE, session_id, page.start, limit
    )
    window.extend(messages, end)
    return None


def fetch_session_bodies(queue: Queue, session_id: str, pages: Pages) -> Need | None:
    """Read the bodies at the head of a session."""
    session = _held(queue, session_id)
    if session is None:
        return None
    window = session.window
    head = window.head()
    if head is None or head.raw is not None:
        # It left while its body was read: what comes next must be looked for.
        queue.shared.ready_sessions[(queue.main, session_id)] = None
        return None
    wanted = window.bodiless()[:BODIES_AT_ONCE]
    shared: dict[int, int] = {}
    for message in wanted:
        shared[message.base] = shared.get(message.base, 0) + 1
    found_in: dict[int, Page] = {
        message.number: _page_of(message, shared[message.base]) for message in wanted
    }
    if need := missing(pages, list(dict.fromkeys(found_in.values()))):
        return need
    for message in wanted:
        raw = _body(message, found_in[message.number], pages)
        if raw is not None:
            window.fill_body(message, raw)
    if not head.has_body:
        raise no_body(head)
    return None


def _held(queue: Queue, session_id: str) -> Session | None:
    return None if queue.sessions is None else queue.sessions.held.get(session_id)


def _page_of(message: Message, in_its_batch: int) -> Page:
    if in_its_batch >= WORTH_A_BATCH:
        return BatchPage(message.base)
    return BodyPage(message.base, message.position, message.length)


def _body(message: Message, page: Page, pages: Pages) -> bytes | None:
    if isinstance(page, BodyPage):
        return pages.body(page)
    assert isinstance(page, BatchPage)
    batch = pages.body(page)
    if batch is None:
        return None
    return batch[message.position : message.position + message.length]

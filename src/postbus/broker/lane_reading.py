"""The first messages of a lane, or of a session in it, for work that begins there.

This work removes messages. They are gone from memory at once, and stay in the index until the next
checkpoint. So a page of the index may hold only removed messages, and not be the end of the lane.
"""

from postbus.broker.delta import Delta
from postbus.broker.index_pages import GroupPage, LanePage, Need, Pages
from postbus.broker.message import Message


def first_messages(
    delta: Delta, pages: Pages, subqueue: int, lane: int, start: int, limit: int
) -> tuple[list[Message], int | None] | Need:
    """Up to `limit` messages from `start` on, at least one if the lane has any. Also the number
    that they reach to; None for the last page."""
    while True:
        page = LanePage(subqueue, lane, start, limit)
        if page not in pages:
            return Need((page,))
        messages, end = delta.over_lane(pages.rows(page), subqueue, lane, start, limit)
        if messages or end is None:
            return messages, end
        start = end + 1


def first_of_session(
    delta: Delta, pages: Pages, subqueue: int, lane: int, session_id: str, start: int, limit: int
) -> tuple[list[Message], int | None] | Need:
    """The same for the messages of one session."""
    while True:
        page = GroupPage(subqueue, lane, session_id.encode(), start, limit)
        if page not in pages:
            return Need((page,))
        messages, end = delta.over_group(pages.rows(page), subqueue, lane, session_id, start, limit)
        if messages or end is None:
            return messages, end
        start = end + 1

"""The first messages of a lane, for chores that work one off from its beginning.

What such a chore has done with is gone in memory at once, but stays in the index until the next
checkpoint. A page of the index may hold nothing else, and that is not the end of the lane.
"""

from postbus.broker.delta import Delta
from postbus.broker.message import Message
from postbus.broker.pages import LanePage, Need, Pages


def first_messages(
    delta: Delta, pages: Pages, subqueue: int, lane: int, start: int, limit: int
) -> tuple[list[Message], int | None] | Need:
    """Up to `limit` messages from `start` on, at least one if there is any, and the number that
    they reach to; None for the last."""
    while True:
        page = LanePage(subqueue, lane, start, limit)
        if page not in pages:
            return Need((page,))
        messages, end = delta.over_lane(pages.rows(page), subqueue, lane, start, limit)
        if messages or end is None:
            return messages, end
        start = end + 1

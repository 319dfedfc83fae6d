"""Take the first message out of a window: that of a subqueue, or that of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from postbus.broker.message import Message
from postbus.broker.records import RecordKind
from postbus.broker.window import Window
from postbus.model.times import Instant

if TYPE_CHECKING:
    from postbus.broker.queue import Queue

EXPIRED_PER_TAKE: Final = 64

Taken = tuple[Message, bytes]


def take(queue: Queue, window: Window, holder: int, now: Instant) -> Taken | None:
    """Lock the first ready message for `holder`; None when none can be had now."""
    message = _first(queue, window, now)
    if message is None or message.raw is None:
        return None
    raw = message.raw
    queue.lock(message, holder, now)
    window.release_body(message)
    return message, raw


def take_and_delete(queue: Queue, window: Window, now: Instant) -> Taken | None:
    """Remove the first ready message for good (R-SETTLE-05)."""
    message = _first(queue, window, now)
    if message is None or message.raw is None:
        return None
    raw = message.raw
    message.delivered_at = now
    window.forget(message)
    queue.ledger.remove(RecordKind.RECEIVED, message)
    return message, raw


def _first(queue: Queue, window: Window, now: Instant) -> Message | None:
    for _ in range(EXPIRED_PER_TAKE):
        message = window.head()
        if message is None:
            return None
        if message.expired(now):
            window.pop_head()
            queue.expire(message)
            continue
        if message.raw is None:
            return None
        window.pop_head()
        return message
    return None

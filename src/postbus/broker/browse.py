"""Requests of clients by number or position: peek, deferred, scheduled, batch delete.

These look beyond the window, so they may return `Need` and are then called again with the pages.
"""

from collections.abc import Sequence
from typing import Final

from postbus.broker import session_operations
from postbus.broker.chores import refill
from postbus.broker.index_pages import BodyPage, GroupPage, LanePage, Need, Pages, RowPage, missing
from postbus.broker.lane_reading import first_messages, first_of_session
from postbus.broker.message import ACTIVE, DEFERRED, SCHEDULED, Message, from_row, no_body
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.errors import InvalidArgument, MessageNotFound, MessageSizeExceeded
from postbus.model.index_rows import RowKey
from postbus.model.times import Instant

PEEK_COUNT_MAX: Final = 250
DELETE_COUNT_MAX: Final = 4_000
RECEIVE_BYTES_MAX: Final = 4 << 20
"""Bodies of messages that a call names: all are in memory at once. A single body may be larger."""
PEEK_ROWS: Final = 256
"""Rows read at a time, however few are asked for: many of them may be gone since."""

DELETE_ROWS: Final = 1_024

Found = list[tuple[Message, bytes]]


def peek(
    queue: Queue,
    subqueue: int,
    start: int,
    count: int,
    bytes_max: int,
    pages: Pages,
    session_id: str | None = None,
) -> Found | Need:
    """Peek: messages from a number on, in any state, in order. If a session is named, only the
    messages of that session. Nothing is locked."""
    count = min(count, PEEK_COUNT_MAX)
    while True:
        found = _from(queue, subqueue, start, pages, session_id)
        if isinstance(found, Need):
            return found
        messages, horizon = found
        if messages or horizon is None:
            break
        start = horizon + 1  # the page held only removed messages: go on behind it
    chosen: list[Message] = []
    for message in messages[:count]:
        bytes_max -= message.weight
        if chosen and bytes_max < 0:
            break
        chosen.append(message)
    return _with_bodies(chosen, pages)


def _from(
    queue: Queue, subqueue: int, start: int, pages: Pages, session_id: str | None
) -> tuple[list[Message], int | None] | Need:
    """Messages of all lanes from a number on, and the number they are all known up to."""
    lanes = [
        (lane, _page_from(subqueue, lane, start, session_id))
        for lane in (ACTIVE, DEFERRED, SCHEDULED)
    ]
    if need := missing(pages, [page for _, page in lanes]):
        return need
    delta = queue.ledger.delta
    messages: list[Message] = []
    horizon: int | None = None
    for lane, page in lanes:
        rows = pages.rows(page)
        if session_id is None:
            part, end = delta.over_lane(rows, subqueue, lane, start, PEEK_ROWS)
        else:
            part, end = delta.over_group(rows, subqueue, lane, session_id, start, PEEK_ROWS)
        messages += part
        if end is not None:
            horizon = end if horizon is None else min(horizon, end)
    if horizon is not None:
        messages = [message for message in messages if message.number <= horizon]
    return sorted(messages, key=lambda message: message.number), horizon


def _page_from(
    subqueue: int, lane: int, start: int, session_id: str | None
) -> LanePage | GroupPage:
    if session_id is None:
        return LanePage(subqueue, lane, start, PEEK_ROWS)
    return GroupPage(subqueue, lane, session_id.encode(), start, PEEK_ROWS)


def show(
    queue: Queue,
    subqueue: int,
    start: int,
    count: int,
    bytes_max: int,
    now: Instant,
    pages: Pages,
) -> tuple[Found, int | None] | Need:
    """Active messages from a number on, locked or not, in order, and the number at which to go on:
    None behind the last. A call looks at one page, so it may find none although more follow."""
    page = first_messages(queue.ledger.delta, pages, subqueue, ACTIVE, start, PEEK_ROWS)
    if isinstance(page, Need):
        return page
    messages, horizon = page
    chosen: list[Message] = []
    for message in messages:
        if message.expired(now):
            continue
        bytes_max -= message.weight
        if len(chosen) == count or (chosen and bytes_max < 0):
            horizon = chosen[-1].number
            break
        chosen.append(message)
    found = _with_bodies(chosen, pages)
    if isinstance(found, Need):
        return found
    return found, None if horizon is None else horizon + 1


def receive_deferred(
    queue: Queue,
    subqueue: int,
    numbers: Sequence[int],
    delete: bool,
    holder: int,
    now: Instant,
    pages: Pages,
    session_id: str | None = None,
) -> Found | Need:
    """Lock (or remove) deferred messages by number, in the order asked; all of them or none.
    Messages of a session go only to the receiver that holds the session."""
    queue.check_receives()
    in_session = queue.sessions is not None and subqueue == queue.main
    if in_session:
        session_operations.held(queue, session_id, now)
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument("A sequence number is named twice.")
    messages = by_number(queue, subqueue, DEFERRED, numbers, pages)
    if isinstance(messages, Need):
        return messages
    found = [message for message in messages if message is not None and message.token is None]
    if in_session:
        found = [message for message in found if message.session_id == session_id]
    expired = [message for message in found if message.expired(now)]
    for message in expired:
        # Looked at only now, because deferred messages are never swept (semantics B §3).
        queue.expire(message)
    if expired or len(found) < len(numbers):
        raise MessageNotFound(
            "Failed to lock one or more specified messages. Either the message is already "
            "locked or does not exist."
        )
    size = sum(message.weight for message in found)
    if size > RECEIVE_BYTES_MAX and len(found) > 1:
        raise MessageSizeExceeded(
            f"The messages asked for take {size} bytes, {RECEIVE_BYTES_MAX} bytes are allowed in "
            "one request: ask for fewer at a time."
        )
    result = _with_bodies(found, pages)
    if isinstance(result, Need):
        return result
    for message, _ in result:
        if delete:
            message.delivered_at = now
            queue.ledger.remove(RecordKind.RECEIVED, message)
        else:
            queue.lock(message, holder, now)
            queue.deferred_locks[(subqueue, message.number)] = message
    return result


def cancel_scheduled(queue: Queue, numbers: Sequence[int], pages: Pages) -> Need | None:
    """Remove scheduled messages before they are due; all of them or none."""
    messages = find_scheduled(queue, numbers, pages)
    if isinstance(messages, Need):
        return messages
    for message in messages:
        queue.ledger.remove(RecordKind.CANCELLED, message)
    return None


def find_scheduled(queue: Queue, numbers: Sequence[int], pages: Pages) -> list[Message] | Need:
    """The scheduled messages with these numbers, each once; all of them, or it is refused."""
    messages = by_number(queue, queue.main, SCHEDULED, numbers, pages)
    if isinstance(messages, Need):
        return messages
    absent = [n for n, m in zip(numbers, messages, strict=True) if m is None]
    if absent:
        raise MessageNotFound(
            f"Messages not found. Missing sequence numbers: {', '.join(map(str, absent))}"
        )
    return list({m.number: m for m in messages if m is not None}.values())


def delete_batch(
    queue: Queue,
    subqueue: int,
    count: int,
    before: Instant,
    pages: Pages,
    session_id: str | None = None,
) -> int | Need:
    """Remove up to `count` ready messages enqueued by `before`, oldest first. An entity with
    sessions removes messages of the named session, or of all sessions."""
    queue.check_receives()
    count = min(count, DELETE_COUNT_MAX)
    if queue.sessions is not None and subqueue == queue.main:
        return _delete_in_sessions(queue, count, before, pages, session_id)
    window = queue.windows[subqueue]
    while window.low and window.ready_count < count:
        need = refill(queue, subqueue, pages)
        if need is not None:
            return need
    deleted = 0
    while deleted < count:
        message = window.head()
        if message is None or message.enqueued_at > before:
            break
        window.pop_head()
        window.forget(message)
        queue.ledger.remove(RecordKind.DELETED, message)
        deleted += 1
    return deleted


def _delete_in_sessions(
    queue: Queue, count: int, before: Instant, pages: Pages, session_id: str | None
) -> int | Need:
    """The messages may be in the window of a session, or in none: so look in the index."""
    delta, main = queue.ledger.delta, queue.main
    chosen: list[Message] = []
    start: int | None = 0
    while start is not None and len(chosen) < count:
        if session_id is None:
            found = first_messages(delta, pages, main, ACTIVE, start, DELETE_ROWS)
        else:
            found = first_of_session(delta, pages, main, ACTIVE, session_id, start, DELETE_ROWS)
        if isinstance(found, Need):
            return found
        messages, end = found
        start = None if end is None else end + 1
        for each in messages:
            if each.enqueued_at > before:
                start = None
                break
            message = queue.itself(each)
            if message.token is None:
                chosen.append(message)
    del chosen[count:]
    for message in chosen:
        queue.withdraw(message)
        queue.ledger.remove(RecordKind.DELETED, message)
    return len(chosen)


def by_number(
    queue: Queue, subqueue: int, lane: int, numbers: Sequence[int], pages: Pages
) -> list[Message | None] | Need:
    """The messages with these numbers in one lane, as they are now; None for an absent number."""
    page = RowPage(tuple(RowKey(subqueue, lane, number) for number in numbers))
    if need := missing(pages, [page]):
        return need
    stored = {row.number: row for row in pages.rows(page)}
    changes = queue.ledger.delta.lane(subqueue, lane)
    result: list[Message | None] = []
    for number in numbers:
        if number in changes:
            result.append(changes[number])
        elif number in stored:
            result.append(queue.itself(from_row(stored[number])))
        else:
            result.append(None)
    return result


def _with_bodies(messages: list[Message], pages: Pages) -> Found | Need:
    bodies = {m.number: BodyPage(m.base, m.position, m.length) for m in messages if m.raw is None}
    if need := missing(pages, list(bodies.values())):
        return need
    found: Found = []
    for message in messages:
        raw = message.raw
        if raw is None:
            raw = pages.body(bodies[message.number])
        if raw is None:
            raise no_body(message)
        found.append((message, raw))
    return found

"""Work that nobody asked for: refill windows, activate due messages, sweep expired messages.

Each chore does a bounded slice. Like every call that needs the store it returns `Need` and
changes nothing, or does its work and returns None.
"""

from typing import Final

from postbus.broker.engine import Engine
from postbus.broker.held_sessions import Session
from postbus.broker.index_pages import (
    BatchPage,
    BodyPage,
    DuePage,
    GroupPage,
    LanePage,
    Need,
    NextDue,
    Page,
    Pages,
    PinnedPage,
    missing,
)
from postbus.broker.lane_reading import first_messages
from postbus.broker.message import (
    ACTIVE,
    LANES,
    PUBLISHING,
    SCHEDULED,
    STATE,
    CorruptRow,
    ForwardingInfo,
    Message,
    from_row,
    no_body,
)
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import RecordKind
from postbus.broker.subqueue_numbers import MAIN, owner_of, subqueues_of
from postbus.model.index_rows import Row
from postbus.model.times import NEVER, Instant

SLICE: Final = 256
PAGE_ROWS: Final = 1024
BATCHES_AT_ONCE: Final = 8
COPY_BYTES: Final = 4 << 20
SESSION_BODIES_AT_ONCE: Final = 64
WORTH_A_BATCH: Final = 4
"""A batch is read whole if it has so many bodies of a session. Mostly it has fewer, because
messages of other sessions lie between them."""
_BLOCKED_SWEEP_MS: Final = 1_000


def refill(queue: Queue, subqueue: int, pages: Pages) -> Need | None:
    """Bring the next page of a subqueue into its window."""
    window = queue.windows[subqueue]
    if not window.low:
        queue.stir(subqueue)
        return None
    page = LanePage(subqueue, ACTIVE, window.end + 1, min(PAGE_ROWS, window.page))
    if need := missing(pages, [page]):
        return need
    messages, end = queue.ledger.delta.over_lane(
        pages.rows(page), subqueue, ACTIVE, page.start, page.limit
    )
    window.extend(messages, end)
    return None


def fetch_bodies(queue: Queue, subqueue: int, pages: Pages) -> Need | None:
    """Read the bodies at the head of a subqueue, by whole batches."""
    window = queue.windows[subqueue]
    head = window.head()
    if head is None or head.raw is not None:
        # The message left while its body was read: the next message must be looked for.
        queue.stir(subqueue)
        return None
    wanted = [BatchPage(base) for base in window.missing_bodies()[:BATCHES_AT_ONCE]]
    if need := missing(pages, list(wanted)):
        return need
    for page in wanted:
        batch = pages.body(page)
        if batch is not None:
            window.fill_bodies(page.base, batch)
    if not head.has_body:
        raise CorruptRow(f"the journal has no batch at {head.base} for message {head.number}")
    return None


# -- sessions that are held ------------------------------------------------------------------


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
        # The message left while its body was read: the next message must be looked for.
        queue.shared.ready_sessions[(queue.main, session_id)] = None
        return None
    wanted = window.bodiless()[:SESSION_BODIES_AT_ONCE]
    shared: dict[int, int] = {}
    for message in wanted:
        shared[message.base] = shared.get(message.base, 0) + 1
    found_in: dict[int, Page] = {
        message.number: _page_with(message, shared[message.base]) for message in wanted
    }
    if need := missing(pages, list(dict.fromkeys(found_in.values()))):
        return need
    for message in wanted:
        raw = _body_in(message, found_in[message.number], pages)
        if raw is not None:
            window.fill_body(message, raw)
    if not head.has_body:
        raise no_body(head)
    return None


def _held(queue: Queue, session_id: str) -> Session | None:
    return None if queue.sessions is None else queue.sessions.held.get(session_id)


def _page_with(message: Message, in_its_batch: int) -> Page:
    if in_its_batch >= WORTH_A_BATCH:
        return BatchPage(message.base)
    return BodyPage(message.base, message.position, message.length)


def _body_in(message: Message, page: Page, pages: Pages) -> bytes | None:
    if isinstance(page, BodyPage):
        return pages.body(page)
    assert isinstance(page, BatchPage)
    batch = pages.body(page)
    if batch is None:
        return None
    return batch[message.position : message.position + message.length]


# -- time, and removal -----------------------------------------------------------------------


def activate(engine: Engine, until: Instant, now: Instant, pages: Pages) -> Need | None:
    """Enqueue the scheduled messages whose time has come, at the tail, under new numbers."""
    queue, ledger = engine.own, engine.ledger
    limit = ledger.delta.due_limit(MAIN, SCHEDULED, SLICE)
    due = DuePage(MAIN, SCHEDULED, until, limit)
    later = NextDue(MAIN, SCHEDULED, until)
    if need := missing(pages, [due, later]):
        return need
    messages = ledger.delta.over_due(pages.rows(due), MAIN, SCHEDULED, until, SLICE)
    for message in messages:
        # Time to live counts from when it was due, not from when it was sent (semantics B §3).
        message.enqueued_at = now
        number = message.enqueue_number = ledger.next_number()
        message.trail = message.trail or ForwardingInfo(message.length)
        message.trail.scheduled = True
        if engine.topic is not None:
            # The rule matcher chooses its subscriptions when its body has been read.
            engine.topic.keep(message)
            ledger.move(RecordKind.ACTIVATED, message, MAIN, PUBLISHING, number)
        else:
            queue.activate(message, number)
    full = len(messages) == SLICE
    queue.next_due = until if full else _next_wake(queue, SCHEDULED, later, pages)
    return None


def sweep(queue: Queue, until: Instant, now: Instant, pages: Pages) -> Need | None:
    """Remove or dead-letter messages past their time to live (R-DLQ-06)."""
    limit = queue.ledger.delta.due_limit(queue.main, ACTIVE, SLICE)
    due = DuePage(queue.main, ACTIVE, until, limit)
    later = NextDue(queue.main, ACTIVE, until)
    if need := missing(pages, [due, later]):
        return need
    messages = queue.ledger.delta.over_due(pages.rows(due), queue.main, ACTIVE, until, SLICE)
    swept = 0
    for found in messages:
        message = queue.itself(found)
        if message.token is not None:
            continue  # locked: it expires when the lock ends (semantics B §3)
        queue.withdraw(message)
        queue.expire(message)
        swept += 1
    if len(messages) < SLICE:
        queue.next_expiry = _next_wake(queue, ACTIVE, later, pages)
    else:
        # A slice of nothing but locked messages would come back the same: give it time.
        queue.next_expiry = until if swept else now + _BLOCKED_SWEEP_MS
    return None


def _next_wake(queue: Queue, lane: int, later: NextDue, pages: Pages) -> Instant:
    stored = pages.instant(later)
    fresh = queue.ledger.delta.next_wake(queue.main, lane, later.after)
    return min(stored if stored is not None else NEVER, fresh if fresh is not None else NEVER)


def copy_forward(engine: Engine, below: int, limit: int, pages: Pages) -> Need | None:
    """Move the few live bodies out of old batches, so that the old batches can be trimmed."""
    pinned = PinnedPage(below, limit)
    if need := missing(pages, [pinned]):
        return need
    messages = [
        message
        for row in pages.rows(pinned)
        if (message := current(engine, row)) is not None and message.base < below
    ]
    bytes_left = COPY_BYTES
    bodies: dict[tuple[int, int], BodyPage] = {}
    for place, message in enumerate(messages):
        body = message.base, message.position
        if body not in bodies:
            bytes_left -= message.length
            bodies[body] = BodyPage(message.base, message.position, message.length)
        if bytes_left < 0:
            del messages[place + 1 :]
            break
    if need := missing(pages, list(bodies.values())):
        return need
    copied: dict[tuple[int, int], Message] = {}
    for message in messages:
        place_now = message.base, message.position
        first = copied.get(place_now)
        if first is not None:
            # Another copy of the same message of a topic: the copies go on sharing one body.
            message.base, message.position = first.base, first.position
            engine.ledger.change(RecordKind.REPLACED, message)
            continue
        raw = pages.body(bodies[place_now])
        if raw is None:
            raise no_body(message)
        engine.ledger.copy(message, raw)
        copied[place_now] = message
    return None


def current(engine: Engine, row: Row) -> Message | None:
    """The message of an index row as it is now; None when it has left that lane."""
    changes = engine.ledger.delta.lane(row.subqueue, row.lane)
    if row.number in changes:
        return changes[row.number]
    queue = engine.queues.get(owner_of(row.subqueue))
    read = from_row(row)
    return read if queue is None else queue.itself(read)


def purge(engine: Engine, owner: int, pages: Pages) -> Need | None:
    """Remove the messages of a deleted subscription, a slice at a time."""
    ledger = engine.ledger
    for subqueue in subqueues_of(owner):
        for lane in LANES:
            if not ledger.count(subqueue, lane):
                continue
            found = first_messages(ledger.delta, pages, subqueue, lane, 0, SLICE)
            if isinstance(found, Need):
                return found
            for message in found[0]:
                ledger.remove(
                    RecordKind.STATE_CLEARED if lane == STATE else RecordKind.DELETED, message
                )
            return None
    # A chore of a discarded engine may have ended first.
    engine.removed.pop(owner, None)
    return None

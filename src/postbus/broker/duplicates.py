"""Duplicate detection: a message whose id was seen within the window is accepted and dropped.

The window counts from the first time an id was seen. The fate of that first message does not matter
(semantics B §6). A message without an id is never a duplicate. Each dropped message has its own
number and a record, so that readers of the journal see it. It is not charged.
"""

from collections.abc import Callable, Sequence
from typing import Final

from postbus.broker.bloom import digest_of
from postbus.broker.duplicate_history import History, Segment
from postbus.broker.index_pages import Need, Pages, SeenPage, SeenSlice
from postbus.broker.message import ForwardingInfo, Message
from postbus.broker.policy import admit
from postbus.broker.queue import Queue
from postbus.model.times import Instant

RECALLED_AT_ONCE: Final = 4_096
"""Ids that a turn reads into the filter again: about 5 ms."""

Store = Callable[[Sequence[Message], Instant], list[int]]
"""Stores messages that are admitted; refuses none."""


def digests_of(messages: Sequence[Message]) -> list[bytes]:
    """Empty for a message without an id."""
    return [digest_of(each.message_id) if each.message_id else b"" for each in messages]


def lookup(
    history: History, digests: Sequence[bytes], now: Instant, pages: Pages | None
) -> Need | None:
    """The pages that must be read before the engine knows which of these ids were seen."""
    since = now - history.window_ms
    wanted: dict[Segment, list[bytes]] = {}
    for digest in digests:
        if not digest or digest in history.recent:
            continue
        for segment in history.segments_of(digest, since):
            if pages is None or not pages.was_looked_for(digest, segment.all_parts):
                wanted.setdefault(segment, []).append(digest)
    if not wanted:
        return None
    return Need(
        tuple(SeenPage(tuple(segment.all_parts), tuple(found)) for segment, found in wanted.items())
    )


def repeated(
    history: History, digests: Sequence[bytes], now: Instant, pages: Pages | None
) -> list[bool]:
    """Which of these ids were seen within the window, or come a second time here. The pages that
    `lookup` asks for have been read."""
    since = now - history.window_ms
    here: set[bytes] = set()
    found: list[bool] = []
    for digest in digests:
        at = history.recent.get(digest)
        if at is None and pages is not None:
            at = pages.seen.get(digest)
        found.append(digest in here or (at is not None and at > since))
        if digest:
            here.add(digest)
    return found


def foresee(history: History, messages: Sequence[Message], now: Instant) -> Need | None:
    """The pages that `send_once` would have to read for these messages."""
    return lookup(history, digests_of(messages), now, None)


def send_once(
    history: History,
    kind: str,
    own: Queue,
    store: Store,
    messages: Sequence[Message],
    now: Instant,
    pages: Pages | None,
) -> list[int] | Need:
    """Store the messages that were not seen; all of them are accepted, or none."""
    history.expire(now)
    digests = digests_of(messages)
    if len(digests) == 1:
        # The most frequent case by far: one message, and it is new.
        [digest] = digests
        since = now - history.window_ms
        if digest and digest not in history.recent and not history.segments_of(digest, since):
            admit(kind, own.name, own.policy, own.ledger.size_bytes, messages)
            stored = store(messages, now)
            history.note(digest, now)
            return stored
    if need := lookup(history, digests, now, pages):
        return need
    dropped = repeated(history, digests, now, pages)
    # All messages are checked before the first is stored, and none is refused after that: the
    # copies of the first may take a topic over its quota. Only messages that stay take room.
    policy, size_bytes = own.policy, own.ledger.size_bytes
    admit(kind, own.name, policy, size_bytes, _chosen(messages, dropped, False))
    admit(kind, own.name, policy, 0, _chosen(messages, dropped, True))
    if True not in dropped:
        numbers = store(messages, now)
    else:
        numbers = []
        for message, is_dropped in zip(messages, dropped, strict=True):
            if is_dropped:
                numbers.append(drop(own, message, now))
            else:
                numbers += store([message], now)
    for digest, is_dropped in zip(digests, dropped, strict=True):
        if digest and not is_dropped:
            history.note(digest, now)
    return numbers


def drop(own: Queue, message: Message, now: Instant, trail: ForwardingInfo | None = None) -> int:
    """Leave nothing of a message but its record; returns the number it has there."""
    made = Message(None, message.message_id, message.session_id, scheduled_at=now)
    # A message that a transaction scheduled has its number already. A forwarded message has a
    # number of another entity.
    number = message.number if trail is None else 0
    made.number = made.enqueue_number = number or own.ledger.next_number()
    made.length = message.length
    made.trail = trail
    own.ledger.drop(made)
    return made.number


def _chosen(messages: Sequence[Message], dropped: list[bool], is_dropped: bool) -> list[Message]:
    return [each for each, gone in zip(messages, dropped, strict=True) if gone is is_dropped]


def recall(history: History, pages: Pages) -> Need | None:
    """Read some more ids into the filter."""
    segment = history.next_unread()
    if segment is None:
        return None
    part = segment.number + segment.parts_read
    page = SeenSlice(part, segment.cursor, RECALLED_AT_ONCE)
    if page not in pages:
        return Need((page,))
    digests = pages.digests(page)
    history.read_on(segment, digests, is_last=len(digests) < page.limit)
    return None

"""What a fragment holds, by place: kept from its records, without any code of the broker's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from postbus.broker.message import ACTIVE, Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import MAIN
from tests.simulation.history import Violation
from tests.simulation.sessions.letters import name_of
from tests.simulation.sessions.promises import COUNT, MATCH

BRINGS = frozenset(
    {
        RecordKind.ENQUEUED,
        RecordKind.SCHEDULED,
        RecordKind.ARRIVED,
        RecordKind.POSTED,
        RecordKind.PUT_BACK,
        RecordKind.STATE_SET,
    }
)
ENDS = frozenset(
    {
        RecordKind.COMPLETED,
        RecordKind.RECEIVED,
        RecordKind.EXPIRED,
        RecordKind.CANCELLED,
        RecordKind.DELETED,
        RecordKind.FORWARDED,
    }
    | {RecordKind.STATE_CLEARED}
)
FAILS = frozenset({RecordKind.ABANDONED, RecordKind.LOCK_EXPIRED, RecordKind.DEFERRED})

Place = tuple[int, int, int]
"""Subqueue, lane and number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, or the state of a session."""

    name: str
    message_id: str
    session_id: str | None
    place: Place
    first_number: int
    count: int
    enqueued_at: int
    ttl: int
    reason: str | None

    def expired(self, now: int) -> bool:
        return self.place[0] == MAIN and 0 <= self.ttl <= now - self.enqueued_at


class Event(NamedTuple):
    """One record, with what it was about before and after."""

    kind: RecordKind
    before: Entry | None
    after: Entry


class Shelf:
    """Applies records as claims: each must fit what is there."""

    def __init__(self, entries: dict[Place, Entry] | None = None) -> None:
        self.entries = dict(entries or {})

    def apply(self, record: Record, data: bytes) -> Event:
        kind, message = record.kind, record.message
        source = record.from_subqueue, record.from_lane, record.from_number
        if kind is RecordKind.DUPLICATE:
            return Event(kind, None, _entry("", message))
        body = data[record.body_at :] if record.body_at >= 0 else None
        if kind in BRINGS:
            assert body is not None
            after = _entry(name_of(body), message)
            if after.place in self.entries:
                raise Violation(MATCH, after.name, f"{kind.name} on top of {after.place}")
            self.entries[after.place] = after
            return Event(kind, None, after)
        before = self.entries.pop(source, None)
        if before is None:
            raise Violation(MATCH, None, f"{kind.name} of {source}, which is not there")
        after = _entry(before.name, message)
        if body is not None and name_of(body) != before.name:
            raise Violation(MATCH, before.name, f"{kind.name} made it {name_of(body)}")
        if kind not in ENDS:
            self.entries[after.place] = after
        _check_count(kind, before, after)
        return Event(kind, before, after)

    def active(self, subqueue: int, now: int) -> list[Entry]:
        """Those that could be received, in order."""
        found = [
            entry
            for (place, lane, _), entry in self.entries.items()
            if (place, lane) == (subqueue, ACTIVE) and not entry.expired(now)
        ]
        return sorted(found, key=lambda entry: entry.place[2])


def _entry(name: str, message: Message) -> Entry:
    return Entry(
        name,
        message.message_id,
        message.session_id,
        (message.subqueue, message.lane, message.number),
        message.enqueue_number,
        message.delivery_count,
        message.enqueued_at,
        message.ttl,
        message.reason,
    )


def _check_count(kind: RecordKind, before: Entry, after: Entry) -> None:
    """One more for each failed delivery, the same for anything else; in the main queue only."""
    rise = int(kind in FAILS)
    if kind is RecordKind.DEAD_LETTERED:
        rise = int(after.reason == "MaxDeliveryCountExceeded")
    if before.place[0] != MAIN:
        rise = 0
    if after.count != before.count + rise:
        text = f"{kind.name} after {before.count} deliveries made it {after.count}"
        raise Violation(COUNT, before.name, text)

"""What a queue must be, kept in plain dictionaries beside the real one.

The model reads the engine's records as claims: each is held against what clients asked for, the
clock and the locks before it is believed (`postbus`' own replay has no part in this). `live` is
what the engine has decided; `durable` is what the store has taken, read from its bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from postbus.broker import records
from postbus.broker.message import ACTIVE, Message
from postbus.broker.policy import Policy
from postbus.broker.queue import Queue
from postbus.broker.record_kinds import MEANINGS, Effect, RecordKind
from postbus.broker.subqueue_numbers import MAIN
from postbus.store import batch
from tests.simulation.history import History

REMOVES = frozenset(kind for kind in RecordKind if MEANINGS[kind].effect is Effect.REMOVES)


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, as everybody must see it."""

    name: str
    subqueue: int
    lane: int
    number: int
    count: int
    length: int
    enqueued_at: int
    ttl: int
    reason: str | None
    properties: bytes | None
    description: str | None

    def expired(self, now: int) -> bool:
        return self.subqueue == MAIN and 0 <= self.ttl <= now - self.enqueued_at


def entry_of(message: Message) -> Entry:
    return Entry(
        message.message_id,
        message.subqueue,
        message.lane,
        message.number,
        message.delivery_count,
        message.length,
        message.enqueued_at,
        message.ttl,
        message.reason,
        message.properties,
        message.description,
    )


class Sent(NamedTuple):
    """What a client handed in."""

    body: bytes
    scheduled_at: int
    edited: tuple[bytes, ...] = ()
    """Bodies that it may have instead, since somebody has asked for it."""


@dataclass(slots=True)
class Lock:
    token: bytes
    until: int
    holder: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks right now; records that follow are its doing."""

    verb: str
    token: bytes = b""
    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)
    """Messages that it would bring."""


class Event(NamedTuple):
    """One record, with the message before it and the lock on it."""

    kind: RecordKind
    before: Entry | None
    after: Entry
    lock: Lock | None
    asked: Asked | None
    body: bytes | None


class Model:
    """Live and durable state, locks, and what became of each message."""

    def __init__(self, policy: Policy, history: History) -> None:
        self.policy = policy
        self.history = history
        self.sent: dict[str, Sent] = {}
        self.live: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.gone: dict[str, RecordKind] = {}
        """Durably removed, and by what."""
        self.locks: dict[str, Lock] = {}
        self.asked: Asked | None = None
        self._seen = 0

    # -- what the engine decides ------------------------------------------------------------

    def absorb(self, queue: Queue, but: int = 0) -> list[Event]:
        """Believe the records written since the last time, but for the last few."""
        self.policy = queue.policy
        pending = queue.ledger.pending
        end = len(pending) - but
        fresh, self._seen = pending[self._seen : end], end
        return [self._apply(records.decode(record), record) for record in fresh]

    def _apply(self, record: records.Record, data: bytes) -> Event:
        after = entry_of(record.message)
        before = self.live.get(after.name)
        lock = self.locks.get(after.name)
        body = data[record.body_at :] if record.body_at >= 0 else None
        if record.kind in REMOVES:
            self.live.pop(after.name, None)
        else:
            self.live[after.name] = after
        if record.kind is not RecordKind.COPIED:
            self.locks.pop(after.name, None)
        return Event(record.kind, before, after, lock, self.asked, body)

    def lock(self, message: Message) -> None:
        assert message.token is not None
        self.locks[message.message_id] = Lock(message.token, message.locked_until, message.holder)

    def unlock(self, token: bytes) -> str | None:
        for name, lock in self.locks.items():
            if lock.token == token:
                del self.locks[name]
                return name
        return None

    def held_by(self, token: bytes, now: int) -> str | None:
        """The message under a lock that is in force."""
        for name, lock in self.locks.items():
            if lock.token == token and lock.until > now:
                return name
        return None

    def first_ready(self, subqueue: int, now: int) -> Entry | None:
        ready = [
            entry
            for entry in self.live.values()
            if entry.subqueue == subqueue
            and entry.lane == ACTIVE
            and entry.name not in self.locks
            and not entry.expired(now)
        ]
        return min(ready, key=lambda entry: entry.number, default=None)

    # -- what the store takes ---------------------------------------------------------------

    def committed(self, data: bytes) -> None:
        for _, raw in batch.records(data):
            record = records.decode(raw)
            entry = entry_of(record.message)
            if record.kind in REMOVES:
                self.durable.pop(entry.name, None)
                self.gone[entry.name] = record.kind
            else:
                self.durable[entry.name] = entry
                self.gone.pop(entry.name, None)

    def sealed(self) -> None:
        """The batch is closed; the next record is the first of another one."""
        self._seen = 0

    def roll_back(self) -> None:
        """The engine is thrown away: what the store has is what there is."""
        self.live = dict(self.durable)
        self.locks.clear()
        self._seen = 0

    # -- totals -----------------------------------------------------------------------------

    def counts(self) -> dict[tuple[int, int], int]:
        return dict(Counter((entry.subqueue, entry.lane) for entry in self.live.values()))

    def size_bytes(self) -> int:
        return sum(
            entry.length
            + len(entry.properties or b"")
            + len(entry.reason or "")
            + len(entry.description or "")
            for entry in self.live.values()
        )

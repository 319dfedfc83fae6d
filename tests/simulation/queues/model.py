"""What a queue must hold, kept in plain dictionaries beside the real engine.

The model reads the engine's records as claims. Each must fit what is there, and the checkers hold
it against the requests of clients, the clock and the locks. `live` is what the engine has decided;
`durable` is what the store has taken, read from its bytes. The broker's own replay is not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from postbus.broker import records
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need
from postbus.broker.message import ACTIVE, Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import MEANINGS, Effect, RecordKind
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import MAIN
from postbus.errors import MessageLockLost, SessionLockLost
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.receivers import OutgoingMessage
from postbus.runtime.requests import GiveBack
from postbus.store.ports.journal import Part as StorePart
from tests.simulation.history import Violation
from tests.simulation.journal import Written
from tests.simulation.promises import LOCK, MATCH, ONCE, SESSION_HOLDER
from tests.simulation.queues.messages import name_of
from tests.simulation.receivers import Receiver
from tests.simulation.world import Model

if TYPE_CHECKING:
    from tests.simulation.duplicates.window import Window
    from tests.simulation.queues.queues import Queues
    from tests.simulation.transactions.model import TransactionModel

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
REMOVES = frozenset(kind for kind in RecordKind if MEANINGS[kind].effect is Effect.REMOVES)
LOCKS_LOST = MessageLockLost, SessionLockLost

Place = tuple[int, int, int]
"""Subqueue, lane and number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, or the state of a session, as everybody must see it."""

    name: str
    message_id: str
    session_id: str | None
    place: Place
    first_number: int
    count: int
    length: int
    enqueued_at: int
    ttl: int
    reason: str | None
    properties: bytes | None
    description: str | None

    @property
    def subqueue(self) -> int:
        return self.place[0]

    @property
    def lane(self) -> int:
        return self.place[1]

    @property
    def number(self) -> int:
        return self.place[2]

    @property
    def size(self) -> int:
        texts = self.reason, self.description, self.properties
        return self.length + sum(len(text) for text in texts if text is not None)

    def expired(self, now: int) -> bool:
        return self.subqueue == MAIN and 0 <= self.ttl <= now - self.enqueued_at


def entry_of(name: str, message: Message) -> Entry:
    return Entry(
        name,
        message.message_id,
        message.session_id,
        (message.subqueue, message.lane, message.number),
        message.enqueue_number,
        message.delivery_count,
        message.length,
        message.enqueued_at,
        message.ttl,
        message.reason,
        message.properties,
        message.description,
    )


@dataclass(slots=True)
class Lock:
    """A message is somebody's; for as long as their session, if it is in a session."""

    token: bytes
    until: int
    session_id: str | None
    holder: int


@dataclass(slots=True)
class SessionHolder:
    """A session is somebody's."""

    holder: int
    until: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks right now: the records that follow are its doing."""

    verb: str
    settles: dict[bytes, str] = field(default_factory=dict)
    """Lock tokens, and what is to become of their messages."""
    numbers: tuple[int, ...] = ()


class Event(NamedTuple):
    """One record, with the message before and after it, and the lock that was on it."""

    kind: RecordKind
    before: Entry | None
    after: Entry
    body: bytes | None
    lock: Lock | None = None
    lock_in_force: bool = False
    asked: Asked | None = None

    def settled_as(self, verb: str) -> bool:
        """Did the holder of the lock ask for this?"""
        lock, asked = self.lock, self.asked
        return (
            lock is not None
            and self.lock_in_force
            and asked is not None
            and asked.settles.get(lock.token) == verb
        )


class Contents:
    """What a fragment holds. A record that does not fit is a violation."""

    def __init__(self, entries: dict[Place, Entry] | None = None) -> None:
        self.entries = dict(entries or {})
        self._places = {entry.name: place for place, entry in self.entries.items()}

    def apply(self, record: Record, data: bytes) -> Event:
        kind, message = record.kind, record.message
        body = data[record.body_at :] if record.body_at >= 0 else None
        if kind is RecordKind.DUPLICATE:
            return Event(kind, None, entry_of("", message), None)
        if kind in BRINGS:
            assert body is not None
            after = entry_of(name_of(body), message)
            if after.place in self.entries:
                raise Violation(MATCH, after.name, f"{kind.name} on top of {after.place}")
            if after.name in self._places:
                place = self._places[after.name]
                raise Violation(ONCE, after.name, f"{kind.name} while it is at {place}")
            self._put(after)
            return Event(kind, None, after, body)
        source = record.from_subqueue, record.from_lane, record.from_number
        before = self.entries.pop(source, None)
        if before is None:
            raise Violation(MATCH, None, f"{kind.name} of {source}, which is not there")
        del self._places[before.name]
        after = entry_of(before.name, message)
        if kind not in REMOVES:
            self._put(after)
        return Event(kind, before, after, body)

    def _put(self, entry: Entry) -> None:
        self.entries[entry.place] = entry
        self._places[entry.name] = entry.place

    def named(self, name: str) -> Entry | None:
        place = self._places.get(name)
        return None if place is None else self.entries[place]


class WatchedGiveBack(GiveBack):
    """Nothing is written for a lock that is released, so the model must be told."""

    def __init__(
        self, model: QueueModel, fragment: LoadedFragment, outgoing: OutgoingMessage
    ) -> None:
        super().__init__(fragment, outgoing)
        self._model = model

    def decide(self, engine: Engine, now: int) -> Need | None:
        model, token = self._model, self._outgoing.token
        model.absorb(self.fragment)
        try:
            need = super().decide(engine, now)
        except LOCKS_LOST:
            assert token is not None
            model.check_lost(token, now)
            raise
        if token is not None:
            model.unlock(token)
        model.world.note(None, f"decided {'put_back' if token is None else 'release'}")
        model.absorb(self.fragment)
        return need


class QueueModel(Model):
    """One queue: its messages, who has them locked, and who holds which session."""

    def __init__(self, queues: Queues, fragment_id: int, policy: Policy) -> None:
        super().__init__(queues.world)
        self._queues = queues
        self.id = fragment_id
        self.policy = policy
        """As the engine last had it."""
        self.live = Contents()
        self.durable = Contents()
        self.locks: dict[str, Lock] = {}
        self.holders: dict[str, SessionHolder] = {}
        self.asked: Asked | None = None
        self.window: Window | None = None
        """Which ids the queue must have seen, if it detects duplicates."""
        self.transactions: list[TransactionModel] = []
        """Those that were committed in the batch that is not closed yet."""
        self._sealed: dict[int, list[TransactionModel]] = {}
        """Those in each batch that is closed, by its offset."""
        self._read = 0

    # -- records ---------------------------------------------------------------------------------

    def absorb(self, fragment: LoadedFragment, but: int = 0) -> None:
        if fragment.engine is None:
            return
        self.policy = fragment.engine.own.policy
        pending = fragment.engine.ledger.pending
        end = len(pending) - but
        fresh, self._read = pending[self._read : end], end
        for data in fresh:
            self._queues.decided(self, self._decided(records.decode(data), data))

    def _decided(self, record: Record, data: bytes) -> Event:
        event = self.live.apply(record, data)
        lock = self.locks.get(event.after.name)
        if event.kind not in (RecordKind.COPIED, RecordKind.DUPLICATE):
            self.locks.pop(event.after.name, None)
        in_force = lock is not None and self.in_force(lock, self.world.now)
        return event._replace(lock=lock, lock_in_force=in_force, asked=self.asked)

    def sealing(self, fragment: LoadedFragment) -> None:
        self.absorb(fragment)
        if fragment.engine is not None and self.transactions:
            self._sealed.setdefault(fragment.engine.ledger.head, []).extend(self.transactions)
            self.transactions = []

    def sealed(self) -> None:
        self._read = 0

    def committed(self, part: StorePart, written: Written) -> None:
        events = [self.durable.apply(record, data) for record, data in written]
        for event in events:
            self._queues.written(self, event, part.at)
        for transaction in self._sealed.pop(part.base, []):
            transaction.check_written(events)
        self._queues.batch_written(self, events)

    def engine_lost(self) -> None:
        self.live = Contents(self.durable.entries)
        self.forget_locks()
        self.transactions = []
        self._sealed.clear()
        self._read = 0
        self._queues.engine_lost(self)

    # -- receivers -------------------------------------------------------------------------------

    def taken(self, receiver: Receiver, message: Message) -> None:
        self.absorb(receiver.fragment, but=int(receiver.deletes))
        entry = self.live.entries.get((message.subqueue, message.lane, message.number))
        if entry is None:
            raise Violation(MATCH, None, f"number {message.number} goes out, and is not there")
        self._queues.taken(self, receiver, entry)
        if receiver.deletes:
            self.absorb(receiver.fragment)
        else:
            self.lock(message, entry.name)

    def delivered(self, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        self._queues.delivered(self, receiver, outgoing)

    def give_back(self, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        request = WatchedGiveBack(self, receiver.fragment, outgoing)
        self.world.runtime_of(receiver.fragment).submit(request)

    def ready(self, subqueue: int, session_id: str | None, now: int) -> list[Entry]:
        """What could go out now, in order; of one session, if it is given."""
        found = [
            entry
            for place, entry in self.live.entries.items()
            if place[:2] == (subqueue, ACTIVE)
            and entry.name not in self.locks
            and session_id in (None, entry.session_id)
            and not entry.expired(now)
        ]
        return sorted(found, key=lambda entry: entry.number)

    # -- locks of messages -----------------------------------------------------------------------

    def in_force(self, lock: Lock, now: int) -> bool:
        if lock.session_id is None:
            return lock.until > now
        holding = self.holders.get(lock.session_id)
        return holding is not None and holding.holder == lock.holder and holding.until > now

    def lock(self, message: Message, name: str) -> None:
        self._queues.locked(self, message, name)
        assert message.token is not None
        in_session = self.policy.requires_session and message.subqueue == MAIN
        session_id = message.session_id if in_session else None
        self.locks[name] = Lock(message.token, message.locked_until, session_id, message.holder)

    def unlock(self, token: bytes) -> None:
        for name in [name for name, lock in self.locks.items() if lock.token == token]:
            del self.locks[name]

    def renewed(self, token: bytes, until: int) -> None:
        for lock in self.locks.values():
            if lock.token == token:
                lock.until = until

    def check_lost(self, token: bytes, now: int) -> None:
        """A client was told that its lock is lost."""
        for name, lock in self.locks.items():
            if lock.token == token and self.in_force(lock, now):
                raise Violation(LOCK, name, f"said to be lost: {lock}")

    def forget_locks(self) -> None:
        """The policy was changed, or the engine is gone: all locks are lost."""
        self.locks.clear()
        self.holders.clear()

    # -- sessions --------------------------------------------------------------------------------

    def is_free(self, session_id: str, now: int) -> bool:
        holding = self.holders.get(session_id)
        return holding is None or holding.until <= now

    def check_holder(self, session_id: str, holder: int, now: int) -> None:
        holding = self.holders.get(session_id)
        if holding is None or holding.holder != holder or holding.until <= now:
            text = f"{session_id!r} is {holding}, and {holder} is served"
            raise Violation(SESSION_HOLDER, None, text)

    def hold(self, session_id: str, holder: int, until: int, now: int) -> None:
        if not self.is_free(session_id, now):
            text = f"{session_id!r} was given to {holder}, held by {self.holders[session_id]}"
            raise Violation(SESSION_HOLDER, None, text)
        self.holders[session_id] = SessionHolder(holder, until)

    def leave(self, session_id: str, holder: int) -> None:
        """The session was given up: no delivery has failed."""
        holding = self.holders.get(session_id)
        if holding is not None and holding.holder == holder:
            del self.holders[session_id]
            for name, lock in list(self.locks.items()):
                if lock.session_id == session_id:
                    del self.locks[name]

"""What must hold at a quiet moment, read from the store: each copy once, nothing under way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from postbus.broker import records
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    KIND_MASK,
    MAIN,
    OUTBOX,
    OWNER_BITS,
    PUBLISHING,
    SCHEDULED,
    Message,
)
from postbus.broker.policy import NOWHERE, Policy
from postbus.store import batch
from postbus.store.base import StoredBatch
from tests.simulation.history import Violation
from tests.simulation.topics.people import People
from tests.simulation.topics.plan import ROUTE, TOPIC, TRAVELS_MAX, Root
from tests.simulation.topics.world import World

_ALL = 1 << 20
ENDS = "work comes to an end"
SERVED = "whoever waits is served"
REPLAY = "replay equals live"
FULL = "index and tail equal a full replay"
TOTALS = "size and counts are right"
ONCE = "every copy is there once"
LOST = "nothing accepted is lost"
ORDER = "copies keep the order of their messages"
BODY = "no body is wrong or missing"
DUE = "what is due comes on time"


class Judge:
    """Looks; never changes anything."""

    def __init__(self, world: World, people: People) -> None:
        self._world = world
        self._people = people
        self._plan = world.plan
        self._rows: dict[int, list[Message]] = {}

    def at_rest(self) -> None:
        """Everything that was under way has come to its end."""
        self._rows = {fragment: self._read(fragment) for fragment in self._world.hosts}
        for fragment, rows in self._rows.items():
            for message in rows:
                self._has_ended(fragment, message)
            self._in_order(fragment, rows)
        self._served()
        self._each_once()

    def empty(self) -> None:
        """Everything was taken out."""
        for fragment in self._world.hosts:
            ledger = self._full_replay(fragment)
            if any(ledger.counts.values()) or ledger.size_bytes:
                left = {place: n for place, n in ledger.counts.items() if n}
                raise Violation(TOTALS, None, f"{left} left, {ledger.size_bytes} bytes")

    def deferred(self) -> list[tuple[int, Message]]:
        found = [(fragment, self._full_replay(fragment)) for fragment in self._world.hosts]
        return [
            (fragment, message)
            for fragment, ledger in found
            for message in _rows(ledger, lambda *_: [])
            if message.lane == DEFERRED
        ]

    # -- the same from everywhere --------------------------------------------------------------

    def _read(self, fragment: int) -> list[Message]:
        store = self._world.records.store
        full = self._full_replay(fragment)
        kept = {each.base: each.data for each in self._world.records.batches.get(fragment, [])}
        rows = _rows(full, lambda *_: [])
        told = [
            _told(row, kept[row.base][row.position : row.position + row.length]) for row in rows
        ]

        def load(subqueue: int, lane: int) -> Any:
            return store.load_lane(fragment, subqueue, lane, 0, _ALL)

        others = [(FULL, self._index_and_tail(fragment))]
        engine = self._world.hosts[fragment].engine
        if engine is not None:
            others.append((REPLAY, engine.ledger))
        for promise, ledger in others:
            found = _rows(ledger, load)
            shown = [
                _told(row, store.read_slice(fragment, row.base, row.position, row.length))
                for row in found
            ]
            _same(promise, told, shown)
            if ledger.marks != full.marks:
                raise Violation(promise, None, f"marks {ledger.marks}, must be {full.marks}")
            self._totals(ledger, rows)
        self._totals(full, rows)
        for row, (*_, body) in zip(rows, told, strict=True):
            if body != self._plan.root_of(row.message_id).body:
                raise Violation(BODY, row.message_id, repr(body))
        return rows

    def _totals(self, ledger: Ledger, rows: list[Message]) -> None:
        counts = dict(Counter((row.subqueue, row.lane) for row in rows))
        if counts != {place: n for place, n in ledger.counts.items() if n}:
            raise Violation(TOTALS, None, f"counts {ledger.counts}, there are {counts}")
        size = sum(row.charge for row in rows)
        if ledger.size_bytes != size:
            raise Violation(TOTALS, None, f"{ledger.size_bytes} bytes, there are {size}")

    def _full_replay(self, fragment: int) -> Ledger:
        ledger = _ledger(fragment, 0, b"")
        _replay(ledger, self._world.records.batches.get(fragment, []))
        return ledger

    def _index_and_tail(self, fragment: int) -> Ledger:
        stands = self._world.records.stands.get(fragment)
        if stands is None:
            return _ledger(fragment, 0, b"")
        ledger = _ledger(fragment, stands.checkpoint, stands.state)
        while ledger.head < stands.head:
            _replay(ledger, self._world.records.store.read(fragment, ledger.head, 1 << 10))
        return ledger

    # -- nothing under way ---------------------------------------------------------------------

    def policy(self, fragment: int, owner: int) -> Policy:
        if owner:
            return self._plan.subscriptions[owner].policy
        return self._world.policies[fragment]

    def _has_ended(self, fragment: int, message: Message) -> None:
        owner, lane = message.subqueue >> OWNER_BITS, message.lane
        name, place = message.message_id, f"{fragment}.{message.subqueue}"
        if fragment == TOPIC and owner and self._plan.subscriptions[owner].deleted:
            raise Violation(ENDS, name, f"not purged from {place}")
        if lane in (OUTBOX, PUBLISHING):
            raise Violation(ENDS, name, f"still in lane {lane} of {place}")
        if lane == SCHEDULED and message.enqueued_at < self._world.now:
            raise Violation(DUE, name, f"due at {message.enqueued_at}, it is {self._world.now}")
        if (
            message.subqueue & KIND_MASK == MAIN
            and lane == ACTIVE
            and self.policy(fragment, owner).forward_to != NOWHERE
        ):
            raise Violation(ENDS, name, f"did not set out from {place}")

    def _served(self) -> None:
        for taker in self._world.takers:
            fragment, subqueue = taker.host.fragment, taker.subqueue
            owner = subqueue >> OWNER_BITS
            policy = self.policy(fragment, owner)
            is_dead = subqueue & KIND_MASK == DEAD_LETTER
            target = policy.forward_dead_letters_to if is_dead else policy.forward_to
            if target != NOWHERE or not taker.capacity() or fragment not in self._rows:
                continue
            engine = taker.host.engine
            queue = None if engine is None else engine.queues.get(owner)
            locked = {} if queue is None else {each.number for each in queue.locks.values()}
            for row in self._rows[fragment]:
                if (row.subqueue, row.lane) != (subqueue, ACTIVE) or row.number in locked:
                    continue
                if not row.expired(self._world.now):
                    raise Violation(SERVED, row.message_id, f"nobody gets it at {subqueue}")

    def _in_order(self, fragment: int, rows: list[Message]) -> None:
        """Copies by the numbers of their messages, forwarded ones by those in their outbox."""
        last: dict[tuple[int, int], tuple[int, str]] = {}
        for row in rows:
            trail = row.trail
            if trail is None or row.lane != ACTIVE or row.subqueue & KIND_MASK != MAIN:
                continue
            if trail.origin >= 0:
                key, number = (row.subqueue, trail.origin), trail.origin_number
            elif fragment == TOPIC and trail.hops == 0:
                key, number = (row.subqueue, -1), row.enqueue_number
            else:
                continue
            before = last.get(key)
            if before is not None and before[0] > number:
                text = f"{number} behind {before[0]} of {before[1]} in {fragment}.{row.subqueue}"
                raise Violation(ORDER, row.message_id, text)
            last[key] = number, row.message_id

    # -- each once -----------------------------------------------------------------------------

    def _each_once(self) -> None:
        self._there: Counter[str] = Counter(self._world.records.consumed)
        for rows in self._rows.values():
            self._there.update(row.message_id for row in rows)
        for name, times in self._there.items():
            if times > 1:
                raise Violation(ONCE, name, f"{times} of it, consumed ones among them")
        for name, root in self._plan.roots.items():
            happened = name in self._world.records.traces
            if name in self._people.refused and happened:
                raise Violation(ONCE, name, "refused, and there")
            if name in self._people.acknowledged or happened:
                self._whole(name, root)

    def _whole(self, name: str, root: Root, travels: int = 0) -> None:
        """The message is where its way ends; or, where its way leads on, what became of it is."""
        traces = self._world.records.traces.get(name, set())
        if self._there[name] or self._may_be_lost(name, traces):
            return
        from_topic = root.to == TOPIC and "/" not in name
        if not (from_topic or TOPIC in self._plan.reaches(name)) or travels > TRAVELS_MAX:
            raise Violation(LOST, name, f"it was in {sorted(traces)}")
        for subscription in self._plan.certain(root):
            for copy in subscription.copies(name, root.colour):
                self._whole(copy, root, travels + 1)

    def _may_be_lost(self, name: str, traces: set[int]) -> bool:
        subscription = self._plan.last(name)
        if subscription is not None and subscription.deleted:
            return True
        return ROUTE in self._plan.gone and ROUTE in traces | {self._plan.root_of(name).to}


def _ledger(fragment: int, head: int, state: bytes) -> Ledger:
    layout = Layout(batch.HEADER_SIZE, batch.RECORD_PREFIX_SIZE)
    return Ledger(layout, fragment << 48, head, state)


def _replay(ledger: Ledger, batches: list[StoredBatch]) -> None:
    for stored in batches:
        header = batch.unpack(stored.data)
        for position, record in batch.records(stored.data):
            ledger.replay(records.decode(record), stored.base, position, header.at)
        ledger.head = stored.base + header.record_count


def _rows(ledger: Ledger, load: Any) -> list[Message]:
    found: list[Message] = []
    for subqueue, lane in sorted(ledger.counts):
        rows, _ = ledger.delta.over_lane(load(subqueue, lane), subqueue, lane, 0, _ALL)
        found += rows
    return found


def _told(row: Message, body: bytes | None) -> tuple[Any, ...]:
    trail = row.trail
    trailed = None if trail is None else tuple(getattr(trail, each) for each in trail.__slots__)
    place = row.subqueue, row.lane, row.number, row.message_id, row.enqueue_number
    state = row.delivery_count, row.enqueued_at, row.ttl, row.reason, row.properties, row.source
    return (*place, *state, trailed, row.base, row.position, body)


def _same(promise: str, one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    if one == other:
        return
    odd = sorted(set(one) ^ set(other), key=repr)
    raise Violation(promise, odd[0][3] if odd else None, f"{odd[:2]}")

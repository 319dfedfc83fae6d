"""The real store with a copy of all that was ever written to it, and what the records say was
consumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from postbus.broker import records
from postbus.broker.message import OWNER_BITS
from postbus.broker.records import Kind, Record
from postbus.store import batch
from postbus.store.base import Lease, MessageStore, Part, StoredBatch
from tests.simulation.history import STAYS, History, Violation
from tests.simulation.topics.plan import TOPIC, Plan

CONSUMED = frozenset({Kind.COMPLETED, Kind.RECEIVED})


class Records:
    """Passes every call on."""

    def __init__(self, store: MessageStore, plan: Plan, history: History) -> None:
        self.store: Any = store
        self._plan = plan
        self._history = history
        self.batches: dict[int, list[StoredBatch]] = {}
        self.stands: dict[int, Lease] = {}
        self.consumed: Counter[str] = Counter()
        self.traces: dict[str, set[int]] = {}
        """Every id that was ever written, and the fragments that it was in."""
        self._under_way: Sequence[Part] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        self._under_way = parts
        passed: frozenset[int] = self.store.commit(parts)
        self._under_way = ()
        for part in parts:
            self._take(part)
        return passed

    def _take(self, part: Part) -> None:
        fragment = part.lease.fragment
        if part.batch:
            self.batches.setdefault(fragment, []).append(StoredBatch(part.base, part.batch))
            for _, data in batch.records(part.batch):
                self._read(fragment, records.decode(data), data, part.at)
        self.stands[fragment] = self._after(part)

    def _after(self, part: Part) -> Lease:
        fragment = part.lease.fragment
        before = self.stands.get(fragment, Lease(fragment, 0, 0, 0, b""))
        checkpoint, state = before.checkpoint, before.state
        if part.checkpoint is not None:
            checkpoint, state = part.checkpoint.offset, part.checkpoint.state
        return Lease(fragment, 0, part.base + part.count, checkpoint, state)

    def _read(self, fragment: int, record: Record, data: bytes, at: int) -> None:
        kind, message = record.kind, record.message
        name, owner = message.message_id, message.subqueue >> OWNER_BITS
        place = f"{fragment}.{message.subqueue} lane {message.lane} #{message.number}"
        self._history.note(at, name, f"{kind.name} {place}")
        self.traces.setdefault(name, set()).add(fragment)
        root = self._plan.root_of(name)
        if record.body_at >= 0 and data[record.body_at :] != root.body:
            raise Violation("no body is wrong or missing", name, f"{data[record.body_at :]!r}")
        if kind in CONSUMED:
            self.consumed[name] += 1
            if self.consumed[name] > 1:
                raise Violation("every copy is there once", name, f"consumed again at {place}")
        elif kind is Kind.ENQUEUED and self.consumed[name]:
            self.consumed[name] -= 1  # put back unseen
        elif kind is Kind.DISTRIBUTED:
            taker = self._plan.last(name)
            if taker is None or taker.owner != owner or root.colour not in taker.colours:
                raise Violation("no copy is where it does not belong", name, place)
        elif kind is Kind.EXPIRED:
            raise Violation("nothing accepted is lost", name, "dropped, and not dead-lettered")
        elif kind is Kind.DELETED and (
            fragment != TOPIC or not owner or not self._plan.subscriptions[owner].deleted
        ):
            raise Violation("nothing accepted is lost", name, f"purged from {place}")

    def reopened(self, store: MessageStore) -> None:
        """All that was committed is there, and what was under way is there wholly or not."""
        self.store = store
        parts, self._under_way = self._under_way, ()
        there = [self._found(part.lease.fragment) == self._after(part) for part in parts]
        if there and any(there) != all(there):
            raise Violation(STAYS, None, "half of a commit")
        if parts and all(there):
            for part in parts:
                self._take(part)
        for fragment, stands in self.stands.items():
            if fragment not in self._plan.gone and self._found(fragment) != stands:
                raise Violation(STAYS, None, f"found {self._found(fragment)}, must be {stands}")

    def _found(self, fragment: int) -> Lease:
        standing = self.store.standing(fragment)
        if standing is None:
            return Lease(fragment, 0, 0, 0, b"")
        return Lease(fragment, 0, standing.head, standing.checkpoint, standing.state)

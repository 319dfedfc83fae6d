"""What the records of a topic and of the queues beside it say was consumed."""

from __future__ import annotations

from collections import Counter

from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import owner_of
from postbus.store.ports.journal import Part
from postbus.store.ports.store import Store
from tests.simulation.history import History, Violation
from tests.simulation.kept import Kept, Written
from tests.simulation.topics.plan import TOPIC, Plan

CONSUMED = frozenset({RecordKind.COMPLETED, RecordKind.RECEIVED})


class Records(Kept):
    """Holds each record against the plan."""

    def __init__(self, store: Store, plan: Plan, history: History) -> None:
        super().__init__(store, history, plan.gone)
        self._plan = plan
        self.consumed: Counter[str] = Counter()
        self._sent_again: set[str] = set()
        """Taken out of a dead-letter queue by the record before."""
        self.traces: dict[str, set[int]] = {}
        """Every id that was ever written, and the fragments that it was in."""

    def learn(self, part: Part, written: Written) -> None:
        for record, data in written:
            self._read(part.lease.fragment, record, data, part.at)

    def _read(self, fragment: int, record: Record, data: bytes, at: int) -> None:
        kind, message = record.kind, record.message
        name, owner = message.message_id, owner_of(message.subqueue)
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
        elif kind is RecordKind.RESUBMITTED:
            self._sent_again.add(name)
        elif kind in (RecordKind.PUT_BACK, RecordKind.POSTED) and name in self._sent_again:
            self._sent_again.discard(name)
        elif kind is RecordKind.PUT_BACK:
            self.consumed[name] -= 1
            if self.consumed[name] < 0:
                raise Violation("every copy is there once", name, f"never taken from {place}")
        elif kind is RecordKind.DISTRIBUTED:
            taker = self._plan.last(name)
            if taker is None or taker.owner != owner or root.colour not in taker.colours:
                raise Violation("no copy is where it does not belong", name, place)
        elif kind is RecordKind.EXPIRED:
            raise Violation("nothing accepted is lost", name, "dropped, and not dead-lettered")
        elif kind is RecordKind.DELETED and (
            fragment != TOPIC or not owner or not self._plan.subscriptions[owner].deleted
        ):
            raise Violation("nothing accepted is lost", name, f"purged from {place}")

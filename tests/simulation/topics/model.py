"""What the records of a topic, and of the queues beside it, say was consumed."""

from __future__ import annotations

from collections import Counter

from postbus.broker.forwarding import outbox_of
from postbus.broker.message import Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import Record
from postbus.broker.subqueue_numbers import owner_of
from postbus.runtime.receivers import OutgoingMessage
from postbus.store.ports.journal import Part as StorePart
from tests.simulation.history import Violation
from tests.simulation.journal import Written
from tests.simulation.promises import BODY, LOST, MISPLACED, ONCE
from tests.simulation.receivers import Receiver
from tests.simulation.topics.routes import ROUTE, TOPIC, Routes
from tests.simulation.world import Model, World

CONSUMED = frozenset({RecordKind.COMPLETED, RecordKind.RECEIVED})


class TopicModel(Model):
    """Holds each record against the routes; one model for the topic and the queues beside it."""

    def __init__(self, world: World, routes: Routes) -> None:
        super().__init__(world)
        self._routes = routes
        self.consumed: Counter[str] = Counter()
        self._resubmitted: set[str] = set()
        """Taken out of a dead-letter queue by the record before."""
        self.seen_in: dict[str, set[int]] = {}
        """Every id that was ever written, and the fragments that it was in."""
        self._uncleared: dict[str, int] = {}
        """Messages that have arrived at the route, and the fragment that still has them in its
        outbox."""
        self.doubled: set[str] = set()
        """Messages that have arrived at the route and stay at their source. The route was deleted
        before the outbox was cleared, and its marks went with it (docs/internals/forwarding.md)."""
        self.deliveries: list[tuple[int, int, bytes]] = []
        """Messages that are not settled yet: fragment, subqueue and lock token."""

    def check_body(self, name: str, body: bytes) -> None:
        if body != self._routes.root_of(name).body:
            raise Violation(BODY, name, f"{body!r}")

    def delivered(self, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        name, fragment = outgoing.message.message_id, receiver.fragment
        self.world.note(name, f"delivered from {fragment.name} {receiver.subqueue}")
        self.check_body(name, outgoing.raw)
        if outgoing.token is not None:
            self.deliveries.append((fragment.id, receiver.subqueue, outgoing.token))

    def committed(self, part: StorePart, written: Written) -> None:
        for record, data in written:
            self._read(part.lease.fragment, record, data, part.at)

    def _read(self, fragment: int, record: Record, data: bytes, at: int) -> None:
        kind, message = record.kind, record.message
        name, owner = message.message_id, owner_of(message.subqueue)
        place = f"{fragment}.{message.subqueue} lane {message.lane} #{message.number}"
        self.world.history.note(at, name, f"{kind.name} {place}")
        self.seen_in.setdefault(name, set()).add(fragment)
        root = self._routes.root_of(name)
        if record.body_at >= 0:
            self.check_body(name, data[record.body_at :])
        self._follow(fragment, kind, message)
        if kind in CONSUMED:
            self.consumed[name] += 1
            if self.consumed[name] > self.times_max(name):
                raise Violation(ONCE, name, f"consumed again at {place}")
        elif kind is RecordKind.RESUBMITTED:
            self._resubmitted.add(name)
        elif kind in (RecordKind.PUT_BACK, RecordKind.POSTED) and name in self._resubmitted:
            self._resubmitted.discard(name)
        elif kind is RecordKind.PUT_BACK:
            self.consumed[name] -= 1
            if self.consumed[name] < 0:
                raise Violation(ONCE, name, f"never taken from {place}")
        elif kind is RecordKind.DISTRIBUTED:
            taker = self._routes.last(name)
            if taker is None or taker.owner != owner or root.colour not in taker.colours:
                raise Violation(MISPLACED, name, place)
        elif kind is RecordKind.EXPIRED:
            raise Violation(LOST, name, "dropped, and not dead-lettered")
        elif kind is RecordKind.DELETED and (
            fragment != TOPIC or not owner or not self._routes.subscriptions[owner].deleted
        ):
            raise Violation(LOST, name, f"purged from {place}")

    def times_max(self, name: str) -> int:
        """How often a message may be there, consumed ones included."""
        return 2 if name in self.doubled else 1

    def _follow(self, fragment: int, kind: RecordKind, message: Message) -> None:
        """Note which messages are both at the route and in the outbox that they left."""
        name = message.message_id
        if kind is RecordKind.ARRIVED and fragment == ROUTE:
            assert message.trail is not None
            self._uncleared[name] = outbox_of(message.trail.origin)[0]
        elif self._uncleared.get(name) == fragment:
            if kind is RecordKind.FORWARDED:
                del self._uncleared[name]
            elif kind is RecordKind.DEAD_LETTERED and ROUTE in self._routes.deleted:
                del self._uncleared[name]
                self.doubled.add(name)

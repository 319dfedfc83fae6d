"""What must hold at a quiet moment, read from the store: each copy once, nothing under way."""

from __future__ import annotations

from collections import Counter

from postbus.broker.message import ACTIVE, DEFERRED, OUTBOX, PUBLISHING, SCHEDULED, Message
from postbus.broker.policy import NOWHERE, Policy
from postbus.broker.send_via import is_posted
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, kind_of, owner_of
from tests.simulation.history import Violation
from tests.simulation.ledgers import TOTALS, compare, full_replay, nothing, rows_of
from tests.simulation.playing import ENDS
from tests.simulation.topics.people import People
from tests.simulation.topics.plan import END, ROUTE, TOPIC, TRAVELS_MAX, Root
from tests.simulation.topics.world import World

SERVED = "whoever waits is served"
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
        self._rows = {fragment_id: self._read(fragment_id) for fragment_id in self._world.fragments}
        for fragment_id, rows in self._rows.items():
            for message in rows:
                self._has_ended(fragment_id, message)
            self._in_order(fragment_id, rows)
        self._served()
        self._each_once()

    def empty(self) -> None:
        """Everything was taken out."""
        for fragment_id in self._world.fragments:
            ledger = full_replay(self._world, fragment_id)
            if any(ledger.counts.values()) or ledger.size_bytes:
                left = {place: n for place, n in ledger.counts.items() if n}
                raise Violation(TOTALS, None, f"{left} left, {ledger.size_bytes} bytes")

    def deferred(self) -> list[tuple[int, Message]]:
        found = [
            (fragment_id, full_replay(self._world, fragment_id))
            for fragment_id in self._world.fragments
        ]
        return [
            (fragment_id, message)
            for fragment_id, ledger in found
            for message in rows_of(ledger, nothing)
            if message.lane == DEFERRED
        ]

    # -- the same from everywhere --------------------------------------------------------------

    def _read(self, fragment_id: int) -> list[Message]:
        found = compare(self._world, fragment_id)
        for row, body in found:
            if body != self._plan.root_of(row.message_id).body:
                raise Violation(BODY, row.message_id, repr(body))
        return [row for row, _ in found]

    # -- nothing under way ---------------------------------------------------------------------

    def policy(self, fragment_id: int, owner: int) -> Policy:
        if owner:
            return self._plan.subscriptions[owner].policy
        return self._world.policies[fragment_id]

    def _has_ended(self, fragment_id: int, message: Message) -> None:
        owner, lane = owner_of(message.subqueue), message.lane
        name, place = message.message_id, f"{fragment_id}.{message.subqueue}"
        if fragment_id == TOPIC and owner and self._plan.subscriptions[owner].deleted:
            raise Violation(ENDS, name, f"not purged from {place}")
        if lane == OUTBOX and is_posted(message.subqueue) and self._is_full(END):
            return  # it waits for room (semantics B §7)
        if lane in (OUTBOX, PUBLISHING):
            raise Violation(ENDS, name, f"still in lane {lane} of {place}")
        if lane == SCHEDULED and message.enqueued_at < self._world.now:
            raise Violation(DUE, name, f"due at {message.enqueued_at}, it is {self._world.now}")
        if (
            kind_of(message.subqueue) == MAIN
            and lane == ACTIVE
            and self.policy(fragment_id, owner).forward_to != NOWHERE
        ):
            raise Violation(ENDS, name, f"did not set out from {place}")

    def _is_full(self, fragment_id: int) -> bool:
        return self._world.policies[fragment_id].size_bytes_max < 1 << 20

    def _served(self) -> None:
        for taker in self._world.takers:
            fragment_id, subqueue = taker.fragment.id, taker.subqueue
            owner = owner_of(subqueue)
            policy = self.policy(fragment_id, owner)
            is_dead = kind_of(subqueue) == DEAD_LETTER
            target = policy.forward_dead_letters_to if is_dead else policy.forward_to
            if target != NOWHERE or not taker.capacity() or fragment_id not in self._rows:
                continue
            engine = taker.fragment.engine
            queue = None if engine is None else engine.queues.get(owner)
            locked = {} if queue is None else {each.number for each in queue.locks.values()}
            for row in self._rows[fragment_id]:
                if (row.subqueue, row.lane) != (subqueue, ACTIVE) or row.number in locked:
                    continue
                if not row.expired(self._world.now):
                    raise Violation(SERVED, row.message_id, f"nobody gets it at {subqueue}")

    def _in_order(self, fragment_id: int, rows: list[Message]) -> None:
        """Copies by the numbers of their messages, forwarded ones by those in their outbox."""
        last: dict[tuple[int, int], tuple[int, str]] = {}
        for row in rows:
            trail = row.trail
            if trail is None or row.lane != ACTIVE or kind_of(row.subqueue) != MAIN:
                continue
            if trail.origin >= 0:
                key, number = (row.subqueue, trail.origin), trail.origin_number
            elif fragment_id == TOPIC and trail.hops == 0:
                key, number = (row.subqueue, -1), row.enqueue_number
            else:
                continue
            before = last.get(key)
            if before is not None and before[0] > number:
                text = f"{number} behind {before[0]} of {before[1]} in {fragment_id}.{row.subqueue}"
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

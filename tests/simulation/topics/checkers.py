"""What must hold of topics and forwarding at a quiet moment, read from the store: each copy is
there once, and nothing is under way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postbus.broker.message import ACTIVE, OUTBOX, PUBLISHING, SCHEDULED, Message
from postbus.broker.policy import Policy
from postbus.broker.send_via import is_posted
from postbus.broker.subqueue_numbers import DEAD_LETTER, MAIN, kind_of, owner_of
from tests.simulation.history import Violation
from tests.simulation.promises import COPY_ORDER, DUE, ENDS, LOST, ONCE, REFUSED, SERVED
from tests.simulation.replay import compare
from tests.simulation.topics.routes import END, NAMES, ROUTE, TOPIC, TRAVELS_MAX, Root

if TYPE_CHECKING:
    from tests.simulation.topics.part import Topics


class TopicChecker:
    """Looks; never changes anything."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._world = topics.world
        self._routes = topics.routes
        self._model = topics.model
        self._rows: dict[int, list[Message]] = {}

    def at_rest(self) -> None:
        """Everything that was under way has come to its end."""
        there = [fragment_id for fragment_id in NAMES if fragment_id in self._world.fragments]
        self._rows = {fragment_id: self._read(fragment_id) for fragment_id in there}
        for fragment_id, rows in self._rows.items():
            for message in rows:
                self._has_ended(fragment_id, message)
            self._in_order(fragment_id, rows)
        self._served()
        self._each_once()

    def _read(self, fragment_id: int) -> list[Message]:
        found = compare(self._world, fragment_id)
        for row, body in found:
            self._model.check_body(row.message_id, body)
        return [row for row, _ in found]

    # -- nothing under way ---------------------------------------------------------------------

    def policy(self, fragment_id: int, owner: int) -> Policy:
        if owner:
            return self._routes.subscriptions[owner].policy
        return self._world.policy_of(fragment_id)

    def _has_ended(self, fragment_id: int, message: Message) -> None:
        owner, lane = owner_of(message.subqueue), message.lane
        name, place = message.message_id, f"{fragment_id}.{message.subqueue}"
        if fragment_id == TOPIC and owner and self._routes.subscriptions[owner].deleted:
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
            and self.policy(fragment_id, owner).forward_to is not None
        ):
            raise Violation(ENDS, name, f"did not set out from {place}")

    def _is_full(self, fragment_id: int) -> bool:
        return self._world.policy_of(fragment_id).size_bytes_max < 1 << 20

    def _served(self) -> None:
        for receiver in self._world.receivers:
            fragment_id, subqueue = receiver.fragment.id, receiver.subqueue
            owner = owner_of(subqueue)
            if fragment_id not in self._rows:
                continue
            policy = self.policy(fragment_id, owner)
            is_dead = kind_of(subqueue) == DEAD_LETTER
            target = policy.forward_dead_letters_to if is_dead else policy.forward_to
            if target is not None or not receiver.capacity():
                continue
            engine = receiver.fragment.engine
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
                raise Violation(COPY_ORDER, row.message_id, text)
            last[key] = number, row.message_id

    # -- each once -----------------------------------------------------------------------------

    def _each_once(self) -> None:
        self._there: Counter[str] = Counter(self._model.consumed)
        for rows in self._rows.values():
            self._there.update(row.message_id for row in rows)
        for name, times in self._there.items():
            if times > self._model.times_max(name):
                raise Violation(ONCE, name, f"{times} of it, consumed ones among them")
        for name, root in self._routes.roots.items():
            happened = name in self._model.seen_in
            if name in self._topics.refused and happened:
                raise Violation(REFUSED, name, "refused, and there")
            if name in self._topics.acknowledged or happened:
                self._whole(name, root)

    def _whole(self, name: str, root: Root, travels: int = 0) -> None:
        """The message is where its way ends; or, where its way leads on, what became of it is."""
        seen_in = self._model.seen_in.get(name, set())
        if self._there[name] or self._may_be_lost(name, seen_in):
            return
        from_topic = root.to == TOPIC and "/" not in name
        if not (from_topic or TOPIC in self._routes.reaches(name)) or travels > TRAVELS_MAX:
            raise Violation(LOST, name, f"it was in {sorted(seen_in)}")
        for subscription in self._routes.certain(root):
            for copy in subscription.copies(name, root.colour):
                self._whole(copy, root, travels + 1)

    def _may_be_lost(self, name: str, seen_in: set[int]) -> bool:
        subscription = self._routes.last(name)
        if subscription is not None and subscription.deleted:
            return True
        return ROUTE in self._routes.deleted and ROUTE in seen_in | {self._routes.root_of(name).to}

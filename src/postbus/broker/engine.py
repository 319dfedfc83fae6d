"""The engine of one fragment: a queue, or a topic with all its subscriptions."""

from collections.abc import Sequence

from postbus.broker.alarms import Alarms
from postbus.broker.duplicates import foresee, send_once
from postbus.broker.index_pages import Need, Pages
from postbus.broker.ledger import Ledger
from postbus.broker.message import LANES, OUTBOX, Message
from postbus.broker.outbox import Outbox
from postbus.broker.pings import accept_ping
from postbus.broker.policy import Policy, admit
from postbus.broker.queue import Queue
from postbus.broker.session_queue import SessionQueue
from postbus.broker.shared_state import SharedState
from postbus.broker.subqueue_numbers import owner_of, subqueues_of
from postbus.broker.topic import RuleMatcher, Topic
from postbus.errors import EntityNotFound
from postbus.model.times import Instant


class Engine:
    """Owner 0 is the queue or the topic itself, the others are subscriptions."""

    __slots__ = (
        "_expiries",
        "_lock_ends",
        "_overdue",
        "_received",
        "ledger",
        "name",
        "queues",
        "removed",
        "shared",
        "topic",
    )

    def __init__(self, name: str, policy: Policy, shared: SharedState) -> None:
        self.name = name
        self.shared = shared
        self.ledger: Ledger = shared.ledger
        self.queues: dict[int, Queue] = {0: _make(name, 0, policy, shared)}
        self.topic: Topic | None = None
        self.removed: dict[int, None] = {}
        """Owners that are gone and have left messages behind."""
        self._received: dict[int, Queue] = {}
        self._lock_ends = Alarms()
        self._expiries = Alarms()
        """Times of the queues that have receivers."""
        self._overdue: dict[int, Queue] = {}
        """Queues with expired messages that are not swept yet."""
        for subqueue, lane in self.ledger.counts:
            if lane == OUTBOX and self.ledger.count(subqueue, lane):
                shared.outboxes[subqueue] = Outbox(0)
                shared.outboxes_with_work[subqueue] = None

    @property
    def own(self) -> Queue:
        return self.queues[0]

    def at(self, subqueue: int) -> Queue:
        """The queue or subscription that a subqueue belongs to."""
        queue = self.queues.get(owner_of(subqueue))
        if queue is None:
            raise EntityNotFound(self.name)
        return queue

    # -- the subscriptions of a topic --------------------------------------------------------

    def become_topic(
        self, subscriptions: dict[int, tuple[str, Policy]], matcher: RuleMatcher
    ) -> None:
        """Called once, when the engine is loaded."""
        for owner, (name, policy) in subscriptions.items():
            self.queues[owner] = _make(name, owner, policy, self.shared)
        self.topic = Topic(self.own, self.queues, matcher)
        for subqueue, lane in self.ledger.counts:
            owner = owner_of(subqueue)
            if owner not in self.queues and self.ledger.count(subqueue, lane):
                self.removed[owner] = None

    def add_subscription(self, owner: int, name: str, policy: Policy) -> None:
        self.queues[owner] = _make(name, owner, policy, self.shared)
        if self.topic is not None:
            self.topic.newest = max(self.topic.newest, owner)

    def remove_subscription(self, owner: int) -> None:
        """Its messages are removed by a chore, as many at a time as is reasonable."""
        queue = self.queues.pop(owner, None)
        for subqueue in () if queue is None else queue.subqueues:
            self.shared.outboxes.pop(subqueue, None)
            self.shared.outboxes_with_work.pop(subqueue, None)
        if queue is not None:
            _close(queue)
        for marks in (self.shared.locked, self.shared.expiring, self.shared.diverting):
            marks.pop(owner, None)
        for alarms in (self._lock_ends, self._expiries):
            alarms.forget(owner)
        self._received.pop(owner, None)
        self._overdue.pop(owner, None)
        self.removed[owner] = None

    def close(self) -> None:
        """The engine is thrown away: give back its memory."""
        for queue in self.queues.values():
            _close(queue)
        self.shared.charge_changes(0)

    # -- requests ----------------------------------------------------------------------------

    def send(
        self, messages: Sequence[Message], now: Instant, pages: Pages | None = None
    ) -> list[int] | Need:
        """Store all of them or none; returns their sequence numbers. Duplicate detection may have
        to read first."""
        for message in messages:
            if message.is_ping:
                return self._send_with_pings(messages, now, pages)
        history, own, topic = self.ledger.history, self.queues[0], self.topic
        if history is None:
            return own.send(messages, now) if topic is None else topic.publish(messages, now)
        if topic is None:
            return send_once(history, "Queue", own, own.store, messages, now, pages)
        return send_once(history, "Topic", own, topic.store, messages, now, pages)

    def _send_with_pings(
        self, messages: Sequence[Message], now: Instant, pages: Pages | None
    ) -> list[int] | Need:
        """Pings are admitted like messages; only their records are kept (R-PAIR-07)."""
        own = self.own
        kind = "Queue" if self.topic is None else "Topic"
        admit(kind, own.name, own.policy, own.ledger.size_bytes, messages)
        others = [message for message in messages if not message.is_ping]
        numbers = self.send(others, now, pages) if others else []
        if isinstance(numbers, Need):
            return numbers
        stored = iter(numbers)
        return [accept_ping(own, each) if each.is_ping else next(stored) for each in messages]

    def foresee(self, messages: Sequence[Message], now: Instant) -> Need | None:
        """The pages that sending these messages would have to read. Changes nothing."""
        history = self.ledger.history
        return None if history is None else foresee(history, messages, now)

    def set_receivers(self, subqueue: int, count: int) -> None:
        queue = self.queues.get(owner_of(subqueue))
        if queue is None:
            return
        queue.receivers[subqueue] = count
        if queue.receivers[queue.main]:
            self._received[queue.owner] = queue
            self._expiries.set(queue.owner, queue.next_expiry)
        else:
            self._received.pop(queue.owner, None)

    # -- time --------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Take back the messages whose locks ran out, and find the queues with expired messages."""
        self._look_at_marks()
        for owner in self._lock_ends.due(now):
            queue = self.queues[owner]
            queue.tick(now)
            self._lock_ends.set(owner, queue.first_lock_end())
        for owner in self._expiries.due(now):
            queue = self.queues[owner]
            if self._is_received(queue):
                self._overdue[owner] = queue

    def _is_received(self, queue: Queue) -> bool:
        """Expired messages are swept only while somebody receives (R-DLQ-06), be it a session."""
        sessions = queue.sessions
        return queue.owner in self._received or (sessions is not None and bool(sessions.held))

    def next_deadline(self) -> Instant:
        """When tick() or a chore next has work, or earlier: waking for nothing is harmless."""
        self._look_at_marks()
        return min(self.queues[0].next_due, self._lock_ends.first(), self._expiries.first())

    def _look_at_marks(self) -> None:
        locked, expiring = self.shared.locked, self.shared.expiring
        if locked:
            for owner in locked:
                queue = self.queues[owner]
                self._lock_ends.set(owner, queue.first_lock_end())
                if queue.sessions is not None:
                    expiring[owner] = None  # perhaps a session was accepted
            locked.clear()
        if expiring:
            for owner in expiring:
                queue = self.queues[owner]
                if self._is_received(queue):
                    self._expiries.set(owner, queue.next_expiry)
            expiring.clear()

    def expired(self, now: Instant) -> list[Queue]:
        """Queues whose expired messages may be swept."""
        if not self._overdue:
            return []
        found: list[Queue] = []
        for owner, queue in list(self._overdue.items()):
            is_received = self._is_received(queue)
            if is_received and queue.next_expiry <= now:
                found.append(queue)
                continue
            del self._overdue[owner]
            if is_received:
                self._expiries.set(owner, queue.next_expiry)
        return found

    @property
    def holds_locks(self) -> bool:
        return any(queue.has_locks for queue in self.queues.values())


def _make(name: str, owner: int, policy: Policy, shared: SharedState) -> Queue:
    made = SessionQueue if policy.requires_session else Queue
    return made(name, owner, policy, shared)


def _close(queue: Queue) -> None:
    """Give back the memory of a queue that is gone."""
    for window in queue.windows.values():
        window.close()
    if queue.sessions is not None:
        queue.sessions.abolish()


def counted(ledger: Ledger, owner: int) -> int:
    """Messages that belong to an owner, in any state."""
    return sum(ledger.count(subqueue, lane) for subqueue in subqueues_of(owner) for lane in LANES)

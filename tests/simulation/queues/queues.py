"""The queues of a world, with one model each, and all that is known of the messages in them.

Queues are brought by several parts: plain ones, those with sessions, those that detect duplicates.
Clients and checkers are the same for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.policy import Policy
from postbus.broker.record_kinds import RecordKind
from postbus.errors import OutcomeUnknown, ServiceBusError
from postbus.runtime.receivers import OutgoingMessage
from tests.simulation.history import Violation
from tests.simulation.parts import Part
from tests.simulation.promises import ONCE
from tests.simulation.queues.messages import SentMessage, SentMessages, name_of
from tests.simulation.queues.model import LOCKS_LOST, Asked, Entry, Event, QueueModel
from tests.simulation.receivers import Receiver, shown_count
from tests.simulation.replay import Rows, compare
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import Entity, World

COMES_IN = frozenset({RecordKind.ENQUEUED, RecordKind.SCHEDULED, RecordKind.ARRIVED})
CONSUMED = frozenset(
    {
        RecordKind.COMPLETED,
        RecordKind.RECEIVED,
        RecordKind.EXPIRED,
        RecordKind.CANCELLED,
        RecordKind.DELETED,
    }
)


@dataclass(eq=False)
class Delivery:
    """A message that its receiver has not settled yet."""

    queue: int
    subqueue: int
    token: bytes
    name: str
    number: int
    session_id: str | None


class Checker:
    """A promise. A checker looks; it never changes anything. Each overrides what it needs."""

    promise = ""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def broken(self, name: str | None, text: str) -> Violation:
        return Violation(self.promise, name, text)

    @property
    def now(self) -> int:
        return self.queues.world.now

    def decided(self, model: QueueModel, event: Event) -> None:
        """The engine has decided a record."""

    def written(self, model: QueueModel, event: Event, at: int) -> None:
        """A record is durable."""

    def batch_written(self, model: QueueModel, events: Sequence[Event]) -> None:
        """All records of a batch are durable."""

    def taken(self, model: QueueModel, receiver: Receiver, entry: Entry) -> None:
        """The engine gives a message to a receiver."""

    def locked(self, model: QueueModel, message: Message, name: str) -> None:
        """A message has a new lock."""

    def shown(self, name: str, message: Message, raw: bytes) -> None:
        """A client sees a message."""

    def delivered(self, model: QueueModel, name: str, count: int, subqueue: int) -> None:
        """A receiver has a message."""

    def confirmed(self, model: QueueModel, verb: str, names: Sequence[str]) -> None:
        """A client was told that its request is done."""

    def at_rest(self, model: QueueModel, rows: Rows) -> None:
        """Everything that was under way in a queue has come to its end."""

    def all_at_rest(self) -> None:
        """Everything that was under way in any queue has come to its end."""


class MessageLedger:
    """Where each message has come in, and whether it was consumed: all that is durable."""

    def __init__(self) -> None:
        self.came: Counter[tuple[int, str]] = Counter()
        """How often each message came into each queue."""
        self.names: set[str] = set()
        self.consumed: Counter[str] = Counter()
        self.dropped: Counter[tuple[int, str]] = Counter()
        """Ids of messages that were dropped as duplicates, by queue."""
        self._resubmitted: set[str] = set()
        """Taken out of a dead-letter queue, and not sent again yet."""

    def read(self, queue: int, event: Event) -> None:
        kind, name = event.kind, event.after.name
        self.names.add(name)
        if kind is RecordKind.DUPLICATE:
            self.dropped[queue, event.after.message_id] += 1
        elif kind is RecordKind.RESUBMITTED:
            self._resubmitted.add(name)
        elif kind is RecordKind.PUT_BACK and name in self._resubmitted:
            self._resubmitted.discard(name)
        elif kind is RecordKind.PUT_BACK:
            self.consumed[name] -= 1
            if self.consumed[name] < 0:
                raise Violation(ONCE, name, f"put back at {event.after.place}, and never taken")
        elif kind in COMES_IN or kind is RecordKind.POSTED:
            self.came[queue, name] += 1
            if self.came[queue, name] > 1:
                raise Violation(ONCE, name, f"came into {queue} again, at {event.after.place}")
        elif kind in CONSUMED:
            self.consumed[name] += 1
            if self.consumed[name] > 1:
                raise Violation(ONCE, name, f"{kind.name} again at {event.after.place}")


class Queues(Part):
    """Tells the checkers of everything that happens to the queues."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        super().__init__(world, scheduler)
        self.models: dict[int, QueueModel] = {}
        self.messages = SentMessages(world.chance)
        self.ledger = MessageLedger()
        self.checkers: list[Checker] = []
        self.random_policy: dict[int, Callable[[], Policy]] = {}
        """How each queue is described anew."""
        self.deliveries: list[Delivery] = []
        self.old_deliveries: list[Delivery] = []
        """Those whose locks may have run out, were used, or are of an earlier engine."""
        self.on_engine_lost: list[Callable[[QueueModel], None]] = []

    def add(self, queue: int, name: str, random_policy: Callable[[], Policy]) -> QueueModel:
        policy = random_policy()
        model = self.models[queue] = QueueModel(self, queue, policy)
        self.random_policy[queue] = random_policy
        self.world.add(Entity(queue, name, policy, model))
        return model

    @property
    def tries_again(self) -> bool:  # type: ignore[override]
        """A queue that was full may have room again, and the forwarder rests before it looks."""
        return len(self.models) > 1

    def requires_session(self, queue: int) -> bool:
        return self.world.policy_of(queue).requires_session

    # -- what models tell ------------------------------------------------------------------------

    def decided(self, model: QueueModel, event: Event) -> None:
        entry = event.after
        place = f"{model.id}.{entry.place} {entry.message_id} of {entry.session_id!r}"
        self.world.note(
            entry.name or entry.message_id, f"{event.kind.name} {place} count {entry.count}"
        )
        for checker in self.checkers:
            checker.decided(model, event)

    def written(self, model: QueueModel, event: Event, at: int) -> None:
        self.ledger.read(model.id, event)
        for checker in self.checkers:
            checker.written(model, event, at)

    def batch_written(self, model: QueueModel, events: Sequence[Event]) -> None:
        for checker in self.checkers:
            checker.batch_written(model, events)

    def taken(self, model: QueueModel, receiver: Receiver, entry: Entry) -> None:
        for checker in self.checkers:
            checker.taken(model, receiver, entry)

    def locked(self, model: QueueModel, message: Message, name: str) -> None:
        self.world.note(name, f"locked until {message.locked_until % 10_000_000}")
        for checker in self.checkers:
            checker.locked(model, message, name)

    def shown(self, message: Message, raw: bytes) -> str:
        name = name_of(raw)
        for checker in self.checkers:
            checker.shown(name, message, raw)
        return name

    def delivered(self, model: QueueModel, receiver: Receiver, outgoing: OutgoingMessage) -> None:
        message = outgoing.message
        name, count = self.shown(message, outgoing.raw), shown_count(outgoing)
        self.world.note(name, f"delivered to {receiver.holder}, count {count}")
        for checker in self.checkers:
            checker.delivered(model, name, count, receiver.subqueue)
        if outgoing.token is None:
            self.confirm(model, "complete", [name])
        else:
            self.deliveries.append(
                Delivery(model.id, receiver.subqueue, outgoing.token, name, message.number,
                         receiver.session_id)
            )  # fmt: skip

    def engine_lost(self, model: QueueModel) -> None:
        self.old_deliveries += [each for each in self.deliveries if each.queue == model.id]
        del self.old_deliveries[:-20]
        self.deliveries = [each for each in self.deliveries if each.queue != model.id]
        for lost in self.on_engine_lost:
            lost(model)

    # -- what clients ask ------------------------------------------------------------------------

    def ask(
        self,
        queue: int,
        asked: Asked,
        call: Callable[[Engine, int, Pages], Any],
        done: Callable[[Any], None] = lambda _: None,
        failed: Callable[[ServiceBusError], None] = lambda _: None,
        exclusive: bool = False,
    ) -> None:
        """Ask, and hold what comes of it against the model."""
        model = self.models[queue]

        def decide(engine: Engine, now: int, pages: Pages) -> Any:
            fragment = self.world.fragments[queue]
            model.absorb(fragment)
            model.asked = asked
            try:
                result = call(engine, now, pages)
            except LOCKS_LOST:
                for token in asked.settles:
                    model.check_lost(token, now)
                raise
            finally:
                model.absorb(fragment)
                model.asked = None
            if not isinstance(result, Need):
                self.world.note(None, f"decided {asked.verb} {list(asked.numbers) or ''}")
            return result

        def refused(error: ServiceBusError) -> None:
            self.world.note(None, f"refused {asked.verb}: {type(error).__name__}")
            failed(error)

        self.world.ask(queue, decide, done, refused, exclusive)

    def confirm(self, model: QueueModel, verb: str, names: Sequence[str]) -> None:
        for name in names:
            self.world.note(name, f"client was told: {verb} done")
        for checker in self.checkers:
            checker.confirmed(model, verb, names)

    def acknowledge(self, model: QueueModel, sent: Sequence[SentMessage]) -> None:
        for message in sent:
            message.acknowledged = True
        self.confirm(model, "send", [message.name for message in sent])

    def refuse(self, sent: Sequence[SentMessage], error: ServiceBusError) -> None:
        """Where the outcome is unknown, the messages may have been stored."""
        for message in sent:
            message.refused = not isinstance(error, OutcomeUnknown)

    def update(self, queue: int, policy: Policy) -> None:
        """The queue gets another description, by which all its locks are lost."""
        model, window, window_ms = (
            self.models[queue],
            self.models[queue].window,
            policy.duplicate_window_ms,
        )
        version = window.ask(window_ms) if window is not None and window_ms is not None else 0
        self.world.entities[queue].policy = self.world.fragments[queue].policy = policy

        def call(engine: Engine, now: int, _: Pages) -> None:
            engine.own.update(policy, now)
            model.forget_locks()
            if window is not None:
                window.set(version, now)

        self.world.note(None, f"{self.world.entities[queue].name} is to be {policy}")
        self.ask(queue, Asked("update"), call)

    # -- quiet moments ---------------------------------------------------------------------------

    def check(self) -> None:
        for model in self.models.values():
            rows = compare(self.world, model.id)
            for checker in self.checkers:
                checker.at_rest(model, rows)
        for checker in self.checkers:
            checker.all_at_rest()

    def open_up(self) -> None:
        for queue in self.models:
            policy = self.world.policy_of(queue)
            self.update(
                queue,
                Policy(
                    dead_letter_on_expiry=True,
                    duplicate_window_ms=policy.duplicate_window_ms,
                    requires_session=policy.requires_session,
                ),
            )

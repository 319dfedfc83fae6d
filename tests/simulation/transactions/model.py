"""Transactions as their clients see them, over the real ones of a connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.record_kinds import RecordKind
from postbus.broker.transaction import Transaction, Verdict
from postbus.errors import ServiceBusError
from postbus.gateway.transactions.open_transactions import OpenTransaction, Transactions
from postbus.settings import Settings
from tests.simulation.history import Violation
from tests.simulation.promises import ATOMIC
from tests.simulation.queues.messages import SentMessage
from tests.simulation.queues.model import Asked, Event, QueueModel
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.queues.queues import Delivery

SETTINGS = Settings(transaction_timeout_ms=8_000)

RECORDS = {
    Verdict.COMPLETE: {RecordKind.COMPLETED},
    Verdict.ABANDON: {RecordKind.ABANDONED, RecordKind.DEAD_LETTERED},
    Verdict.DEFER: {RecordKind.DEFERRED, RecordKind.DEAD_LETTERED},
    Verdict.DEAD_LETTER: {RecordKind.DEAD_LETTERED},
}
VERBS = {
    Verdict.COMPLETE: "complete",
    Verdict.ABANDON: "abandon",
    Verdict.DEFER: "defer",
    Verdict.DEAD_LETTER: "dead_letter",
    Verdict.RELEASE: "release",
}


class WatchedTransaction(Transaction):
    """The real transaction. It tells its model when it is committed."""

    model: TransactionModel

    def commit(self, engine: Engine, now: int, pages: Pages) -> Need | None:
        transaction, queue = self.model, self.model.queue
        fragment = queue.world.fragments[queue.id]
        queue.absorb(fragment)
        before = len(engine.ledger.pending)
        queue.asked = transaction.asked()
        try:
            need = super().commit(engine, now, pages)
            if need is None:
                for delivery, verdict in transaction.settled:
                    if verdict is Verdict.RELEASE:
                        queue.unlock(delivery.token)
                queue.transactions.append(transaction)
            elif len(engine.ledger.pending) != before:
                raise transaction.broken("half of it done before something was read")
            queue.absorb(fragment)
        except ServiceBusError:
            if len(engine.ledger.pending) != before:
                raise transaction.broken("refused, and half of it done") from None
            raise
        finally:
            queue.asked = None
        return need


class TransactionModel:
    """What one transaction is to do, and what is known of it."""

    def __init__(self, name: str, queue: QueueModel, open_: OpenTransaction) -> None:
        self.name = name
        self.queue = queue
        self.open = open_
        work = WatchedTransaction()
        work.model = self
        open_._work = work
        self.sent: list[SentMessage] = []
        self.posted: list[SentMessage] = []
        self.settled: list[tuple[Delivery, Verdict]] = []
        self.cancelled: list[tuple[str, int]] = []
        """Names of scheduled messages, with their numbers."""
        self._written = False
        self._rolled_back = False
        """Somebody was told that nothing of it happens."""

    def broken(self, text: str, name: str | None = None) -> Violation:
        return Violation(ATOMIC, name or self.name, f"{text}: {self.name}")

    @property
    def messages(self) -> list[SentMessage]:
        return self.sent + self.posted

    @property
    def deliveries(self) -> list[Delivery]:
        return [delivery for delivery, _ in self.settled]

    def asked(self) -> Asked:
        """Its commit asks for all of it."""
        settles = {delivery.token: VERBS[verdict] for delivery, verdict in self.settled}
        return Asked("commit", settles, tuple(number for _, number in self.cancelled))

    # -- what became of it -----------------------------------------------------------------------

    def check_written(self, events: Sequence[Event]) -> None:
        """Its commit is in the batch of these events: so must all of it be."""
        if self._rolled_back:
            raise self.broken("rolled back, and written")
        self._written = True
        kinds: dict[str, set[RecordKind]] = {}
        dropped: Counter[str] = Counter()
        for event in events:
            kinds.setdefault(event.after.name, set()).add(event.kind)
            dropped[event.after.message_id] += event.kind is RecordKind.DUPLICATE
        stored = {RecordKind.ENQUEUED, RecordKind.SCHEDULED}
        expected = [(sent.name, {RecordKind.POSTED}) for sent in self.posted]
        expected += [(name, {RecordKind.CANCELLED}) for name, _ in self.cancelled]
        expected += [
            (delivery.name, RECORDS[verdict])
            for delivery, verdict in self.settled
            if verdict is not Verdict.RELEASE  # which is not written
        ]
        for sent in self.sent:
            if not kinds.get(sent.name, set()) & stored:
                dropped[sent.message_id] -= 1
                if dropped[sent.message_id] < 0:
                    raise self.broken("not stored with the rest", sent.name)
        for name, of in expected:
            if not kinds.get(name, set()) & of:
                raise self.broken(f"no {of} with the rest", name)

    def check_message(self, sent: SentMessage) -> None:
        """A message of it is durable."""
        if not self._written:
            raise self.broken("there, and not committed", sent.name)

    def must_have(self, sent: SentMessage) -> bool:
        if sent.acknowledged and not self._written:
            raise self.broken("said to be committed, and not written", sent.name)
        return self._written and sent in self.messages

    def committed(self) -> None:
        """Its client was told so."""
        writes = any(verdict is not Verdict.RELEASE for _, verdict in self.settled)
        if not self._written and (self.messages or self.cancelled or writes):
            raise self.broken("said to be committed, and not written")
        for sent in self.messages:
            sent.acknowledged = True

    def rolled_back(self) -> None:
        """Its client was told so."""
        if self._written:
            raise self.broken("said to be rolled back, and written")
        self._rolled_back = True


def connect(world: World) -> Transactions:
    """The transactions of one connection."""
    namespace = SimpleNamespace(runtime=world.runtime_of)
    context: Any = SimpleNamespace(namespace=namespace, settings=SETTINGS, transaction_bytes=0)
    return Transactions(context)

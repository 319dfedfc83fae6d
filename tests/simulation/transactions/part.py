"""Clients that work in transactions, and a queue that others send to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.message import Message
from postbus.broker.transaction import Settlement, Transaction, Verdict
from postbus.errors import OutcomeUnknown, ServiceBusError
from tests.simulation.parts import Part
from tests.simulation.queues.clients import random_policy
from tests.simulation.queues.messages import SentMessage
from tests.simulation.queues.model import LOCKS_LOST, Event, QueueModel
from tests.simulation.queues.part import QueueClients
from tests.simulation.queues.queues import COMES_IN, Checker
from tests.simulation.transactions.model import TransactionModel, connect
from tests.support.operations import EnlistBy

REMOTE = 23
OPEN_MAX = 3


class TransactionIsWhole(Checker):
    """What a transaction sends is there only if the transaction is."""

    def batch_written(self, model: QueueModel, events: Sequence[Event]) -> None:
        for event in events:
            sent = self.queues.messages.by_name.get(event.after.name)
            if sent is not None and sent.transaction is not None and event.kind in COMES_IN:
                sent.transaction.check_message(sent)


class TransactionClients(Part):
    """The transaction clients of one connection: they send, send through another queue, settle and
    cancel, and commit it or do not."""

    def __init__(self, clients: QueueClients) -> None:
        super().__init__(clients.world, clients.scheduler)
        self._clients = clients
        self._queues = queues = clients.queues
        queues.checkers.append(TransactionIsWhole(queues))
        queues.add(REMOTE, "remote", lambda: random_policy(queues))
        clients.after_delivery += [self.settle, self.move, self.move_and_commit]
        self._open: list[TransactionModel] = []
        self._count = 0
        self.habits(
            {
                self.begin_one: 3,
                self.send: 3,
                self.send_through: 3,
                self.schedule: 0.7,
                self.cancel: 0.5,
                self.settle: 4,
                self.move: 5,
                self.commit: 3,
                self.roll_back: 0.7,
                self.hang_up: 0.2,
            }
        )
        busy = self.chance.choice([0, 1, 1, 3])
        self.actions = {act: often * busy for act, often in self.actions.items()}

    def started(self) -> None:
        """The process is another: nobody can discharge what was open."""
        self._connection = connect(self.world)
        self._open.clear()

    # -- beginning and end -----------------------------------------------------------------------

    def begin_one(self) -> None:
        self._begin(self._clients.senders.any_queue())

    def _begin(self, queue: int) -> None:
        if len(self._open) < OPEN_MAX:
            number = self._connection.declare(self)
            model, open_ = self._queues.models[queue], self._connection.find(number)
            self._open.append(TransactionModel(f"t{self._count}", model, open_))
            self._count += 1

    def _any(self) -> TransactionModel | None:
        if not self._open and self.chance.random() < 0.5:
            self.begin_one()
        return self.chance.choice(self._open) if self._open else None

    def _of(self, queue: int) -> TransactionModel | None:
        if all(each.queue.id != queue for each in self._open):
            self._begin(queue)
        found = [each for each in self._open if each.queue.id == queue]
        return self.chance.choice(found) if found else None

    def commit(self) -> None:
        self._discharge(fail=False)

    def roll_back(self) -> None:
        self._discharge(fail=True)

    def _discharge(self, fail: bool) -> None:
        transaction = self._any()
        if transaction is None:
            return
        self._open.remove(transaction)
        note = self.world.note

        def done() -> None:
            if fail:
                self._rolled_back(transaction)
            else:
                note(transaction.name, "client was told: committed")
                transaction.committed()

        def failed(error: ServiceBusError) -> None:
            if isinstance(error, OutcomeUnknown):
                note(transaction.name, f"client was told: unknown, {error}")
                return
            note(transaction.name, f"client was told: rolled back, {error}")
            self._rolled_back(transaction)

        try:
            transaction.open.discharge(fail, done, failed)
        except ServiceBusError:
            self._rolled_back(transaction)  # it took too long

    def _rolled_back(self, transaction: TransactionModel) -> None:
        transaction.rolled_back()
        # The messages that it would have settled are still locked, and others can settle them.
        self._queues.deliveries += transaction.deliveries

    def hang_up(self) -> None:
        """The connection is lost."""
        self._connection.let_go(self)
        for transaction in self._open:
            self._rolled_back(transaction)
        self._open.clear()

    # -- operations ------------------------------------------------------------------------------

    def _ask(self, transaction: TransactionModel, operation: Any) -> None:
        model = transaction.queue
        fragment = self.world.fragments[model.id]

        def decide(work: Transaction, engine: Engine, now: int, pages: Pages) -> Any:
            model.absorb(fragment)
            return operation(work, engine, now, pages)

        try:
            transaction.open.ask(fragment, EnlistBy(decide), lambda _: None, lambda _: None)
        except ServiceBusError as error:
            self.world.note(transaction.name, f"refused: {error}")

    def _write(
        self, transaction: TransactionModel, queue: int, due: int = 0
    ) -> tuple[list[SentMessage], list[Message]]:
        sent, messages = self._clients.senders.write(queue, [1, 1, 2], due)
        for each in sent:
            each.transaction = transaction
        return sent, messages

    def send(self) -> None:
        self._send(0)

    def schedule(self) -> None:
        self._send(self.world.now + self.chance.choice([50, 3_000]))

    def _send(self, due: int) -> None:
        transaction = self._any()
        if transaction is None or self._queues.messages.too_many:
            return
        sent, messages = self._write(transaction, transaction.queue.id, due)

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            if due:
                work.schedule(engine, messages)
            else:
                work.send(engine, messages)
            transaction.sent += sent

        self._ask(transaction, operation)

    def send_through(self) -> None:
        transaction = self._any()
        if transaction is not None:
            self._post(transaction)

    def _post(self, transaction: TransactionModel) -> None:
        others = [queue for queue in self._queues.models if queue != transaction.queue.id]
        if not others or self._queues.messages.too_many:
            return
        to = self.chance.choice(others)
        sent, messages = self._write(transaction, to)

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            work.post(engine, to, messages)
            transaction.posted += sent

        self._ask(transaction, operation)

    def cancel(self) -> None:
        transaction = self._any()
        if transaction is None:
            return
        scheduled = self._clients.senders.scheduled
        known = [each for each in scheduled if each[0] == transaction.queue.id]
        if not known:
            return
        _, sent, number = self.chance.choice(known)

        def operation(work: Transaction, engine: Engine, now: int, pages: Pages) -> Need | None:
            need = work.cancel(engine, [number], pages)
            if need is None:
                transaction.cancelled.append((sent.name, number))
            return need

        self._ask(transaction, operation)

    def settle(self) -> None:
        verdicts = [*[Verdict.COMPLETE] * 4, Verdict.ABANDON, Verdict.DEFER, Verdict.RELEASE]
        self._settle(self.chance.choice([*verdicts, Verdict.DEAD_LETTER]))

    def _settle(self, verdict: Verdict) -> TransactionModel | None:
        """Settle a message in a transaction of its queue."""
        deliveries = self._queues.deliveries
        if not deliveries:
            return None
        delivery = self.chance.choice(deliveries)
        transaction = self._of(delivery.queue)
        if transaction is None:
            return None
        deliveries.remove(delivery)
        model = transaction.queue

        def operation(work: Transaction, engine: Engine, now: int, _: Pages) -> None:
            settlement = Settlement(delivery.subqueue, delivery.token, verdict)
            try:
                work.settle(engine, [settlement], now)
            except LOCKS_LOST:
                model.check_lost(delivery.token, now)
                raise
            transaction.settled.append((delivery, verdict))

        self._ask(transaction, operation)
        return transaction

    def move(self) -> None:
        """What most transactions do: complete a message, and send what follows from it."""
        transaction = self._settle(Verdict.COMPLETE)
        if transaction is not None:
            self._post(transaction)

    def move_and_commit(self) -> None:
        self.move()
        self.commit()

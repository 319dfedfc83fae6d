"""Transactions with a client that somebody else wrote: Proton, its own transaction and handlers."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from proton import Event, Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from tests.support.administration import Administration
from tests.support.server import Server


class Mover(MessagingHandler, TransactionHandler):
    """Takes orders and sends an invoice for each, one transaction for every two; each third
    transaction is rolled back."""

    def __init__(self, server: Server, queue: str, orders: int) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self._server = server
        self._queue = queue
        self._orders = orders
        self._transaction: Any = None
        self._in_transaction = 0
        self.committed = 0
        self.aborted = 0
        self.problem = ""

    def on_start(self, event: Event) -> None:
        self._container = event.container
        self._connection = event.container.connect(
            f"amqp://localhost:{self._server.port}",
            user="RootManageSharedAccessKey",
            password="SAS_KEY_VALUE",
            allowed_mechs="PLAIN",
        )
        self._sender = event.container.create_sender(self._connection, self._queue)
        self._receiver = event.container.create_receiver(self._connection, self._queue)
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self._transaction = event.transaction
        self._in_transaction = 0
        self._receiver.flow(2)

    def on_message(self, event: Event) -> None:
        if not bytes(event.message.body).startswith(b"order"):
            self.problem = f"{bytes(event.message.body)!r} came"
            self._connection.close()
            return
        self._transaction.accept(event.delivery)
        self._transaction.send(self._sender, Message(subject="invoice", id=event.message.id))
        self._in_transaction += 1
        if self._in_transaction == 2:
            if self.committed + self.aborted == 2:
                self._transaction.abort()
            else:
                self._transaction.commit()

    def on_transaction_committed(self, event: Event) -> None:
        self.committed += 1
        self._go_on()

    def on_transaction_aborted(self, event: Event) -> None:
        self.aborted += 1
        self._go_on()

    def on_transaction_commit_failed(self, event: Event) -> None:
        self.problem = "the commit failed"
        self._connection.close()

    def on_rejected(self, event: Event) -> None:
        self.problem = f"rejected: {event.delivery.remote.condition}"
        self._connection.close()

    def _go_on(self) -> None:
        if (self.committed + self.aborted) * 2 == self._orders:
            self._connection.close()
        else:
            self._container.declare_transaction(self._connection, handler=self)


async def test_transactions_with_proton(
    server: Server, administration: Administration, queue: str, open_bus: Any
) -> None:
    bus = open_bus()
    await bus.send(queue, *[ServiceBusMessage(f"order {n}") for n in range(6)])
    mover = Mover(server, queue, 6)
    container = Container(mover)
    container.timeout = 1
    container.run()
    assert (mover.problem, mover.committed, mover.aborted) == ("", 2, 1)
    # Two orders are locked still; for the other four there are invoices.
    counts = administration.counts(queue)
    assert counts.active_message_count == 6
    received = await bus.receive(queue, 4)
    assert [each.subject for each in received] == ["invoice"] * 4

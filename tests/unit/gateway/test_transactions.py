"""The transactions of a connection: what waits for what, and what is given back when one ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from postbus.broker.index_pages import BatchPage, Need
from postbus.broker.message import Message
from postbus.broker.transaction import Transaction
from postbus.errors import (
    InvalidOperation,
    MessageNotFound,
    OutcomeUnknown,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    StoreUnavailable,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from postbus.gateway.context import ConnectionContext
from postbus.gateway.transactions.open_transactions import OpenTransaction, Transactions
from postbus.runtime.loaded_fragment import LoadedFragment
from tests.support.bed import Bed, settled
from tests.support.operations import EnlistBy

SIZE = 100


class Desk:
    """Transactions on the runtime of a bed, and a coordinator that they are declared by."""

    def __init__(self, timeout_ms: int = 60_000) -> None:
        self.bed = Bed()
        settings = SimpleNamespace(
            transactions_per_connection_max=4,
            transactions_max_bytes=10 * SIZE,
            all_transactions_max_bytes=15 * SIZE,
            transaction_timeout_ms=timeout_ms,
        )
        namespace = SimpleNamespace(runtime=lambda _: self.bed.runtime)
        self.service = SimpleNamespace(namespace=namespace, settings=settings, transaction_bytes=0)
        self.all = Transactions(cast(ConnectionContext, self.service))
        self.coordinator = object()

    def declare(self) -> OpenTransaction:
        return self.all.find(self.all.declare(self.coordinator))

    def send(self, transaction: OpenTransaction, name: str) -> asyncio.Future[Any]:
        def enlist(work: Transaction, engine: Any, now: int, pages: Any) -> None:
            work.send(engine, [Message(b"x", name)])

        return self.ask(transaction, enlist)

    def ask(
        self, transaction: OpenTransaction, operation: Any, fragment: LoadedFragment | None = None
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        transaction.ask(
            fragment or self.bed.fragment,
            EnlistBy(operation),
            future.set_result,
            future.set_exception,
            SIZE,
        )
        return future

    def discharge(self, transaction: OpenTransaction, fail: bool = False) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transaction.discharge(fail, lambda: future.set_result(None), future.set_exception)
        return future

    @property
    def stored(self) -> int:
        engine = self.bed.fragment.engine
        return 0 if engine is None else engine.ledger.count(0)

    @property
    def enlisted(self) -> int:
        engine = self.bed.fragment.engine
        return 0 if engine is None else len(engine.shared.transactions)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.bed.store.open.set()
    await desk.bed.thread.stop()


def refuse(work: Transaction, engine: Any, now: int, pages: Any) -> None:
    raise MessageNotFound("not there")


async def test_a_discharge_waits_for_the_operations_before_it(desk: Desk) -> None:
    transaction = desk.declare()
    sends = [desk.send(transaction, f"{n}") for n in range(3)]
    done = desk.discharge(transaction)
    assert not any(each.done() for each in sends)
    await done
    assert all(each.done() for each in sends) and desk.stored == 3
    assert desk.bed.fragment.meter is not None
    assert desk.bed.fragment.meter.transactions_committed == 1
    with pytest.raises(TransactionUnknown):
        desk.all.find(transaction.id)
    with pytest.raises(TransactionUnknown):
        await desk.send(transaction, "late")


async def test_room_is_given_back_once_whatever_ends_first(desk: Desk) -> None:
    transaction = desk.declare()
    for _ in range(3):
        refused = desk.ask(transaction, refuse)
        with pytest.raises(MessageNotFound):
            await refused
    # One is refused when its transaction is over already.
    late = desk.ask(transaction, refuse)
    kept = desk.send(transaction, "x")
    desk.all.let_go(desk.coordinator)
    with pytest.raises(MessageNotFound):
        await late
    await kept
    await settled()
    assert (desk.stored, desk.enlisted) == (0, 0)
    assert desk.all._size_bytes == 0
    full = desk.declare()
    for n in range(10):
        await desk.send(full, f"{n}")
    with pytest.raises(QuotaExceeded):
        desk.send(full, "one more")
    await desk.discharge(full)
    assert desk.all._size_bytes == desk.service.transaction_bytes == 0


async def test_all_connections_together_have_their_bound_too(desk: Desk) -> None:
    mine = desk.declare()
    for n in range(10):
        await desk.send(mine, f"{n}")
    others = Transactions(cast(ConnectionContext, desk.service))
    theirs = others.find(others.declare(object()))
    for n in range(5):
        await desk.send(theirs, f"other {n}")
    with pytest.raises(ServerBusy):
        desk.send(theirs, "one more")
    await desk.discharge(mine)
    await desk.send(theirs, "one more")


async def test_what_a_commit_could_not_read_is_rolled_back_in_the_engine(desk: Desk) -> None:
    transaction = desk.declare()
    await desk.send(transaction, "x")
    with (
        mock.patch.object(Transaction, "commit", return_value=Need((BatchPage(7),))),
        mock.patch.object(desk.bed.store, "read_batch", side_effect=StoreUnavailable("gone")),
        pytest.raises(TransactionRolledBack),
    ):
        await desk.discharge(transaction)
    await settled()
    assert (desk.stored, desk.enlisted) == (0, 0)


async def test_a_lost_coordinator_rolls_back_what_waits_to_be_discharged(desk: Desk) -> None:
    other = object()
    mine, theirs = desk.declare(), desk.all.find(desk.all.declare(other))
    await desk.send(theirs, "kept")
    send = desk.send(mine, "lost")
    done = desk.discharge(mine)
    desk.all.let_go(desk.coordinator)
    await send
    await settled()
    assert not done.done() and desk.enlisted == 1
    await desk.discharge(theirs)
    assert desk.stored == 1


async def test_one_that_is_being_committed_is_not_rolled_back(desk: Desk) -> None:
    transaction = desk.declare()
    await desk.send(transaction, "x")
    done = desk.discharge(transaction)
    desk.all.let_go(desk.coordinator)
    await done
    assert desk.stored == 1


async def test_a_commit_that_the_store_does_not_take_is_a_rollback(desk: Desk) -> None:
    transaction = desk.declare()
    await desk.send(transaction, "x")
    desk.bed.store.failure = StoreUnavailable("The disk is full.")
    with pytest.raises(TransactionRolledBack, match="disk is full"):
        await desk.discharge(transaction)
    await desk.bed.send(b"y")
    assert desk.stored == 1
    assert desk.bed.fragment.meter is not None
    assert desk.bed.fragment.meter.transactions_rolled_back == 1


async def test_a_commit_whose_outcome_nobody_knows_is_not_called_a_rollback(desk: Desk) -> None:
    transaction = desk.declare()
    await desk.send(transaction, "x")
    desk.bed.store.failure = OutcomeUnknown("The sync failed.")
    with pytest.raises(OutcomeUnknown) as told:
        await desk.discharge(transaction)
    assert told.value.condition == "com.microsoft:timeout"
    assert desk.bed.fragment.meter is not None
    assert desk.bed.fragment.meter.transactions_rolled_back == 0


async def test_the_first_refusal_that_spoils_it_is_what_the_commit_says(desk: Desk) -> None:
    transaction = desk.declare()
    await desk.send(transaction, "x")
    for words in ("first", "second"):
        transaction.spoil(ServiceBusError(words))
    with pytest.raises(TransactionRolledBack, match="first"):
        await desk.discharge(transaction)
    await settled()
    assert (desk.stored, desk.enlisted) == (0, 0)


async def test_an_entity_counts_once_something_was_done_there(desk: Desk) -> None:
    other = LoadedFragment(2, 0, 0, "invoices", desk.bed.fragment.policy)
    transaction = desk.declare()
    with pytest.raises(MessageNotFound):
        await desk.ask(transaction, refuse, other)
    await desk.send(transaction, "x")
    with pytest.raises(InvalidOperation, match="cannot span multiple top-level entities"):
        desk.ask(transaction, refuse, other)
    await desk.discharge(transaction)
    assert desk.stored == 1


async def test_time_counts_from_the_first_operation() -> None:
    desk = Desk(timeout_ms=1)
    idle, transaction = desk.declare(), desk.declare()
    await desk.send(transaction, "x")
    async with asyncio.timeout(10):
        while not isinstance(_found(desk, transaction.id), TransactionTimedOut):
            await asyncio.sleep(0.001)
    await settled()
    assert (desk.stored, desk.enlisted) == (0, 0)
    await desk.discharge(idle)
    await desk.bed.thread.stop()


def _found(desk: Desk, transaction_id: bytes) -> OpenTransaction | ServiceBusError:
    try:
        return desk.all.find(transaction_id)
    except ServiceBusError as error:
        return error

"""The transactions of one connection: declared, worked in, and committed or rolled back (AMQP 4.4).

What is asked for in a transaction is checked by the engine of its fragment when it comes, and done
when the transaction is committed (`postbus.broker.transaction`). One whose coordinator link is
lost, or that takes too long, is rolled back (semantics B §7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final

import structlog

from postbus.amqp.frames.transactions import TransactionalState
from postbus.broker.transaction import Transaction
from postbus.errors import (
    InvalidOperation,
    OutcomeUnknown,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from postbus.gateway.settlement import ACCEPTED
from postbus.gateway.transactions.operations import Commit, Enlist, Enlistment, RollBack
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.requests import Call, Operation

if TYPE_CHECKING:
    from postbus.gateway.context import ConnectionContext

ID_BYTES: Final = 16
EXPIRED_MAX: Final = 1_000
"""Transactions that took too long and whose clients may not have heard of it yet."""
SPANS_ENTITIES: Final = (
    "Local transactions cannot span multiple top-level entities such as queue or topic."
)

log = structlog.get_logger("transactions")


class Transactions:
    """Those of one connection; no other one can use them (semantics B §7)."""

    def __init__(self, service: ConnectionContext) -> None:
        self._service = service
        self._open: dict[bytes, OpenTransaction] = {}
        self._expired: dict[bytes, None] = {}
        self._size_bytes = 0

    def declare(self, coordinator: object) -> bytes:
        """Begin one; it lasts no longer than the coordinator that it was declared by."""
        open_max = self._service.settings.transactions_per_connection_max
        if len(self._open) >= open_max:
            raise QuotaExceeded(f"A connection may have {open_max} transactions at a time.")
        made = OpenTransaction(self, self._service, token_bytes(ID_BYTES), coordinator)
        self._open[made.id] = made
        return made.id

    def find(self, transaction_id: bytes) -> OpenTransaction:
        found = self._open.get(transaction_id)
        if found is not None:
            return found
        if transaction_id in self._expired:
            raise self.timed_out()
        raise TransactionUnknown()

    def let_go(self, coordinator: object) -> None:
        """A coordinator is gone: what it declared and did not discharge never happened."""
        for each in [each for each in self._open.values() if each.coordinator is coordinator]:
            each.roll_back()

    def timed_out(self) -> TransactionTimedOut:
        limit_ms = self._service.settings.transaction_timeout_ms
        return TransactionTimedOut(
            f"The transaction was rolled back: it took longer than {limit_ms} milliseconds."
        )

    def expired(self, transaction: OpenTransaction) -> None:
        if len(self._expired) >= EXPIRED_MAX:
            del self._expired[next(iter(self._expired))]
        self._expired[transaction.id] = None

    def take_room(self, size: int) -> None:
        """Messages are kept in memory until their transaction is over."""
        service = self._service
        size_max = service.settings.transactions_max_bytes
        if self._size_bytes + size > size_max:
            raise QuotaExceeded(
                f"The transactions of one connection may hold {size_max} bytes at a time."
            )
        if size and service.transaction_bytes + size > service.settings.all_transactions_max_bytes:
            raise ServerBusy("The transactions of all connections together hold too many bytes.")
        self._size_bytes += size
        service.transaction_bytes += size

    def give_room(self, size: int) -> None:
        self._size_bytes -= size
        self._service.transaction_bytes -= size

    def forget(self, transaction: OpenTransaction) -> None:
        self._open.pop(transaction.id, None)


class OpenTransaction:
    """One that was declared, until it is known what became of it."""

    def __init__(
        self,
        owner: Transactions,
        service: ConnectionContext,
        transaction_id: bytes,
        coordinator: object,
    ) -> None:
        self.id = transaction_id
        self.accepted = TransactionalState(transaction_id, ACCEPTED)
        """What an operation is answered with: one for all, so that answers make few frames."""
        self.coordinator = coordinator
        self._owner = owner
        self._service = service
        self._work = Transaction()
        self._fragment: LoadedFragment | None = None
        """The fragment of the top-level entity that its first operation was on."""
        self._size_bytes = 0
        self._pending = 0
        """Operations that the engine has not answered."""
        self._spoilt: ServiceBusError | None = None
        self._discharge: Callable[[], None] | None = None
        """What is to be done when there are none of those."""
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._committed: list[Callable[[], None]] = []

    # -- operations ----------------------------------------------------------------------------

    def ask(
        self,
        fragment: LoadedFragment,
        enlistment: Enlistment,
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None],
        size: int = 0,
    ) -> None:
        """Make an operation part of it, or have it refused."""
        if self._over or self._discharge is not None:
            raise TransactionUnknown()
        if self._fragment is not None and self._fragment is not fragment:
            raise InvalidOperation(SPANS_ENTITIES)
        self._owner.take_room(size)
        self._size_bytes += size
        self._fragment = fragment
        self._pending += 1
        self._start_timer()

        def enlisted(result: Any) -> None:
            done(result)
            self._answered()

        def refused(error: ServiceBusError) -> None:
            failed(error)
            if not self._over:  # or all of its room was given back by then
                self._size_bytes -= size
                self._owner.give_room(size)
            if self._pending == 1 and self._work.empty:
                self._fragment = None  # it was not on that entity, after all
            self._answered()

        self._submit(fragment, Enlist(self._work, enlistment), enlisted, refused, size)

    def when_committed(self, call: Callable[[], None]) -> None:
        self._committed.append(call)

    def spoil(self, error: ServiceBusError) -> None:
        """An operation was refused and its client may take it for done: then nothing is done.
        The first one says why."""
        if self._spoilt is None:
            self._spoilt = error

    def _answered(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._discharge is not None and not self._over:
            self._discharge()

    # -- the end -------------------------------------------------------------------------------

    def discharge(
        self, fail: bool, done: Callable[[], None], failed: Callable[[ServiceBusError], None]
    ) -> None:
        """Commit it, or roll it back, once everything that was asked for before is decided."""
        if self._over or self._discharge is not None:
            raise TransactionUnknown()
        self._stop_timer()
        self._discharge = partial(self._end, fail, done, failed)
        if self._pending == 0:
            self._discharge()

    def _end(
        self, fail: bool, done: Callable[[], None], failed: Callable[[ServiceBusError], None]
    ) -> None:
        self._close()
        fragment, spoilt = self._fragment, self._spoilt
        if fail or spoilt is not None:
            self._give_room()
            self._undo()
            if fail or spoilt is None:
                done()
            else:
                failed(_rolled_back(spoilt))
            return
        if fragment is None:
            self._give_room()
            done()
            return

        def committed(result: None) -> None:
            self._give_room()
            if fragment.meter is not None:
                fragment.meter.transactions_committed += 1
            for call in self._committed:
                call()
            done()

        def not_committed(error: ServiceBusError) -> None:
            self._give_room()
            if isinstance(error, OutcomeUnknown):  # nor does the engine know: it is gone
                failed(error)
                return
            self._undo()  # where what it needed could not be read, the engine does not know yet
            failed(_rolled_back(error))

        size = self._work.size_bytes
        commit = Commit(self._work)
        self._submit(fragment, commit, committed, not_committed, size, grows=size > 0)

    def roll_back(self) -> None:
        """Nobody is there any more who could discharge it. One that is being committed will be."""
        if not self._over:
            self._close()
            self._give_room()
            self._undo()

    def _undo(self) -> None:
        fragment = self._fragment
        if fragment is not None:
            if fragment.meter is not None:
                fragment.meter.transactions_rolled_back += 1
            self._submit(fragment, RollBack(self._work), _ignore, _ignore, 0)

    def _close(self) -> None:
        self._over = True
        self._stop_timer()
        self._owner.forget(self)

    def _give_room(self) -> None:
        self._owner.give_room(self._size_bytes)
        self._size_bytes = 0

    def _submit(
        self,
        fragment: LoadedFragment,
        operation: Operation[Any],
        done: Callable[[Any], None],
        failed: Callable[[ServiceBusError], None],
        size: int,
        grows: bool = False,
    ) -> None:
        runtime = self._service.namespace.runtime(fragment)
        runtime.submit(Call(fragment, operation, done, failed, size, exclusive=False, grows=grows))

    # -- time ----------------------------------------------------------------------------------

    def _start_timer(self) -> None:
        """Its time counts from its first operation (semantics B §7)."""
        if self._timer is None:
            limit_ms = self._service.settings.transaction_timeout_ms
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit_ms / 1000, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        log.info(
            "transaction timed out", entity=None if self._fragment is None else self._fragment.name
        )
        self._owner.expired(self)
        self.roll_back()


def _rolled_back(error: ServiceBusError) -> TransactionRolledBack:
    if isinstance(error, TransactionRolledBack):
        return error
    return TransactionRolledBack(f"The transaction was rolled back: {error}")


def _ignore(result: object) -> None:
    """There is nobody to tell. Where the engine is gone, so is what it knew of the transaction."""

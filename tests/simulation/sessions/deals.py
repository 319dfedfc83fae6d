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
from tests.simulation.sessions.letters import Letter
from tests.simulation.sessions.promises import ATOMIC
from tests.simulation.sessions.shelf import Event

if TYPE_CHECKING:
    from tests.simulation.sessions.people import Held
    from tests.simulation.sessions.world import World

TIMEOUT_MS = 8_000

ENDS_AS = {
    Verdict.COMPLETE: {RecordKind.COMPLETED},
    Verdict.ABANDON: {RecordKind.ABANDONED, RecordKind.DEAD_LETTERED},
    Verdict.DEFER: {RecordKind.DEFERRED, RecordKind.DEAD_LETTERED},
    Verdict.DEAD_LETTER: {RecordKind.DEAD_LETTERED},
}


class WatchedTransaction(Transaction):
    """Says when it is committed."""

    deal: Deal
    world: World

    def commit(self, engine: Engine, now: int, pages: Pages) -> Need | None:
        fragment = self.world.fragments[self.deal.fragment]
        self.world.absorb(fragment)
        before = len(engine.ledger.pending)
        try:
            need = super().commit(engine, now, pages)
        except ServiceBusError:
            if len(engine.ledger.pending) != before:
                raise Violation(ATOMIC, self.deal.name, "refused, and half of it done") from None
            raise
        if need is None:
            for token in self.deal.released:
                self.world.lives[self.deal.fragment].unlock(token)
            self.world.decided.setdefault(self.deal.fragment, []).append(self.deal)
        elif len(engine.ledger.pending) != before:
            raise Violation(ATOMIC, self.deal.name, "half of it done before something was read")
        self.world.absorb(fragment)
        return need


class Deal:
    """What one transaction is to do, and what is known of it."""

    def __init__(self, name: str, fragment_id: int, world: World, open_: OpenTransaction) -> None:
        self.name = name
        self.fragment = fragment_id
        self.open = open_
        work = WatchedTransaction()
        work.deal, work.world = self, world
        open_._work = work
        self.sent: list[Letter] = []
        self.posted: list[Letter] = []
        self.settled: list[tuple[str, Verdict]] = []
        self.released: list[bytes] = []
        """Locks that end without a record."""
        self.cancelled: list[str] = []
        self.holding: list[Held] = []
        """The deliveries that it settles."""
        self.written = False
        self.over = False
        """Somebody was told that nothing of it happens."""

    @property
    def letters(self) -> list[Letter]:
        return self.sent + self.posted

    def check_written(self, events: Sequence[Event]) -> None:
        """Its commit is in this batch: so must all of it be."""
        if self.over:
            raise Violation(ATOMIC, self.name, "rolled back, and written")
        self.written = True
        kinds: dict[str, set[RecordKind]] = {}
        dropped: Counter[str] = Counter()
        for event in events:
            kinds.setdefault(event.after.name, set()).add(event.kind)
            dropped[event.after.message_id] += event.kind is RecordKind.DUPLICATE
        for letter in self.sent:
            if not kinds.get(letter.name, set()) & {RecordKind.ENQUEUED, RecordKind.SCHEDULED}:
                self._was_dropped(letter, dropped)
        for letter in self.posted:
            if RecordKind.POSTED not in kinds.get(letter.name, set()):
                raise Violation(ATOMIC, letter.name, f"not posted with the rest of {self.name}")
        for name, verdict in self.settled:
            if not kinds.get(name, set()) & ENDS_AS[verdict]:
                raise Violation(ATOMIC, name, f"no {verdict} with the rest of {self.name}")
        for name in self.cancelled:
            if RecordKind.CANCELLED not in kinds.get(name, set()):
                raise Violation(ATOMIC, name, f"not cancelled with the rest of {self.name}")

    def _was_dropped(self, letter: Letter, dropped: Counter[str]) -> None:
        dropped[letter.message_id] -= 1
        if dropped[letter.message_id] < 0:
            raise Violation(ATOMIC, letter.name, f"not stored with the rest of {self.name}")

    def check_decided(self, letter: Letter) -> None:
        if not self.written:
            raise Violation(ATOMIC, letter.name, f"there, and {self.name} was not committed")

    def committed(self) -> None:
        if not self.written and (self.letters or self.settled or self.cancelled):
            raise Violation(ATOMIC, self.name, "said to be committed, and not written")
        for letter in self.letters:
            letter.acknowledged = True

    def rolled_back(self) -> None:
        if self.written:
            raise Violation(ATOMIC, self.name, "said to be rolled back, and written")
        self.over = True


def connect(world: World) -> Transactions:
    """The transactions of one connection."""
    settings = Settings(transaction_timeout_ms=TIMEOUT_MS)
    namespace = SimpleNamespace(runtime=lambda _: world.runtime)
    service: Any = SimpleNamespace(namespace=namespace, settings=settings, transaction_bytes=0)
    return Transactions(service)

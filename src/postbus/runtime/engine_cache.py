"""The engines in memory: all that are in use, and those that were used last, for a while.

An engine that nobody needs is forgotten once its index is up to date. Its next use loads it again.
Meanwhile its fragment keeps its counts, which cannot change, and the time of its next work.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from postbus.broker.engine import Engine
from postbus.broker.forwarding import diverts
from postbus.broker.ledger import Ledger
from postbus.broker.message import ACTIVE, DEFERRED, OUTBOX, PUBLISHING, SCHEDULED
from postbus.broker.subqueue_numbers import (
    DEAD_LETTER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    owner_of,
    subqueue_of,
)
from postbus.model.description import QueueCounts
from postbus.model.times import NEVER, Instant
from postbus.runtime.loaded_fragment import LoadedFragment

SOON_MS: Final = 10_000
"""An engine with work of its own within this time is not forgotten."""


class Retired(NamedTuple):
    """Fragments that the cache wants to be rid of."""

    forgotten: list[LoadedFragment]
    unwritten: list[LoadedFragment]
    """Their index is not up to date: they need a checkpoint before they can be forgotten."""


class EngineCache:
    """The fragments of one store whose engines are loaded."""

    __slots__ = ("_fragments", "_idle_ms", "_leaving", "_loaded_max", "_look_at")

    def __init__(self, loaded_max: int = 1_000, idle_ms: int = 60_000) -> None:
        self._loaded_max = loaded_max
        self._idle_ms = idle_ms
        self._fragments: dict[LoadedFragment, None] = {}
        self._leaving: dict[LoadedFragment, None] = {}
        self._look_at = loaded_max

    def __len__(self) -> int:
        return len(self._fragments)

    def loaded(self, fragment: LoadedFragment, now: Instant) -> None:
        """Add a fragment whose engine was loaded."""
        self._fragments[fragment] = None
        fragment.idle_since = now
        fragment.counts = None
        fragment.wakes_at = NEVER

    def dropped(self, fragment: LoadedFragment) -> None:
        """Remove a fragment whose engine was discarded."""
        self._fragments.pop(fragment, None)
        self._leaving.pop(fragment, None)

    @property
    def crowded(self) -> bool:
        """Whether make_room() may find an engine to forget."""
        return len(self._fragments) > self._look_at or bool(self._leaving)

    def make_room(self, now: Instant) -> Retired:
        """Forget the engines that waited for their checkpoint and, if there are too many, those
        that have been idle for longest."""
        leaving, self._leaving = self._leaving, {}
        retired = self._retire(leaving, now, may_ask=False)
        if len(self._fragments) > self._look_at:
            found = self._retire(self._surplus(), now, may_ask=True)
            retired.forgotten.extend(found.forgotten)
            retired.unwritten.extend(found.unwritten)
        # If most engines are in use, none can be forgotten: look again when there are more.
        self._look_at = max(self._loaded_max, len(self._fragments) + self._loaded_max // 8)
        if len(self._fragments) <= self._loaded_max:
            self._look_at = self._loaded_max
        return retired

    def age(self, now: Instant) -> Retired:
        """Forget engines that have been idle for `idle_ms`, and engines beyond `loaded_max`. Upkeep
        calls it now and then."""
        leaving = dict.fromkeys(self._surplus())
        for fragment in self._fragments:
            if fragment.used:
                fragment.used = False
                fragment.idle_since = now
            elif fragment.idle_since + self._idle_ms <= now:
                leaving[fragment] = None
        self._look_at = self._loaded_max
        return self._retire(leaving, now, may_ask=True)

    def _surplus(self) -> list[LoadedFragment]:
        """The engines beyond `loaded_max` that have been idle for longest, and an eighth more, so
        that a long list is not sorted for each single engine."""
        surplus = len(self._fragments) - self._loaded_max
        if surplus <= 0:
            return []
        idlest = sorted(self._fragments, key=lambda fragment: (fragment.used, fragment.idle_since))
        return idlest[: surplus + self._loaded_max // 8]

    def _retire(self, fragments: Iterable[LoadedFragment], now: Instant, may_ask: bool) -> Retired:
        retired = Retired([], [])
        for fragment in fragments:
            engine = fragment.engine
            if engine is None or not at_rest(fragment, now):
                continue
            if engine.ledger.head == engine.ledger.checkpoint:
                _forget(fragment)
                del self._fragments[fragment]
                retired.forgotten.append(fragment)
            elif may_ask:
                self._leaving[fragment] = None
                retired.unwritten.append(fragment)
        return retired


def at_rest(fragment: LoadedFragment, now: Instant) -> bool:
    """Whether an engine can be forgotten: no lock, no receiver, nothing under way or due soon.

    A client's sender link does not matter, because each of its messages is a new request.
    """
    engine = fragment.engine
    return (
        engine is not None
        and not engine.holds_locks
        and not engine.shared.transactions
        and not _has_work(engine)
        and not engine.ledger.pending
        and not fragment.loads
        and not fragment.wants
        and not fragment.chores
        and engine.own.next_due > now + SOON_MS
        and not any(receivers.members for receivers in fragment.receiver_queues.values())
    )


def _has_work(engine: Engine) -> bool:
    """Whether the engine has work that no client waits for. The chores do not show that if the
    engine was loaded just now, because no turn has looked at it."""
    topic = engine.topic
    return bool(
        engine.shared.outboxes
        or engine.removed
        or (topic is not None and topic.behind)
        or any(diverts(engine.queues[owner]) is not None for owner in engine.shared.diverting)
    )


def _forget(fragment: LoadedFragment) -> None:
    engine = fragment.engine
    assert engine is not None
    fragment.counts = all_counts(engine.ledger)
    # Expired messages are swept only while a receiver is there (R-DLQ-06), so they can wait.
    fragment.wakes_at = engine.own.next_due
    fragment.unload()


def all_counts(ledger: Ledger) -> dict[int, QueueCounts]:
    """The message counts of a fragment, by owner."""
    owners = {owner_of(subqueue) for subqueue, _ in ledger.counts} | {0}
    return {owner: counts_of(ledger, owner) for owner in owners}


def counts_of(ledger: Ledger, owner: int = 0) -> QueueCounts:
    """The counts of a queue, topic or subscription. The size is that of the whole fragment."""
    main = subqueue_of(owner, MAIN)
    dead = subqueue_of(owner, DEAD_LETTER)
    transfer_dead = subqueue_of(owner, TRANSFER_DEAD_LETTER)
    count = ledger.count
    return QueueCounts(
        active=count(main, ACTIVE) + count(main, DEFERRED) + count(main, PUBLISHING),
        dead_letter=count(dead, ACTIVE) + count(dead, DEFERRED),
        scheduled=count(main, SCHEDULED),
        transfer=count(main, OUTBOX) + count(dead, OUTBOX) + count(transfer_dead, OUTBOX),
        transfer_dead_letter=count(transfer_dead, ACTIVE) + count(transfer_dead, DEFERRED),
        size_bytes=ledger.size_bytes,
    )

"""Which engines are in memory: those in use, and of the others the latest few, for a while.

An engine that nobody needs is forgotten once its index is up to date; its next use loads it
again. What must be known of it meanwhile, without loading it, stays with its fragment: its counts,
which cannot change, and when it next has work of its own.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from postbus.broker.engine import Engine
from postbus.broker.forwarding import diverts
from postbus.broker.ledger import Ledger
from postbus.broker.message import ACTIVE, DEFERRED, OUTBOX, PUBLISHING, SCHEDULED
from postbus.broker.subqueue import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER, owner_of, subqueue_of
from postbus.model.description import QueueCounts
from postbus.model.times import NEVER, Instant
from postbus.runtime.fragment import LoadedFragment

SOON_MS: Final = 10_000
"""An engine with work of its own within this is not worth forgetting."""


class Retired(NamedTuple):
    """What came of making room."""

    forgotten: list[LoadedFragment]
    unwritten: list[LoadedFragment]
    """Would be forgotten if their index were up to date: a checkpoint is wanted first."""


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
        """The fragment's engine was loaded."""
        self._fragments[fragment] = None
        fragment.idle_since = now
        fragment.counts = None
        fragment.wakes_at = NEVER

    def dropped(self, fragment: LoadedFragment) -> None:
        """The fragment's engine was thrown away."""
        self._fragments.pop(fragment, None)
        self._leaving.pop(fragment, None)

    @property
    def crowded(self) -> bool:
        """Is it worth looking for somebody to forget?"""
        return len(self._fragments) > self._look_at or bool(self._leaving)

    def make_room(self, now: Instant) -> Retired:
        """Forget the engines that waited for their checkpoint and, when there are too many, those
        that were not used for longest."""
        leaving, self._leaving = self._leaving, {}
        retired = self._retire(leaving, now, may_ask=False)
        if len(self._fragments) > self._look_at:
            found = self._retire(self._surplus(), now, may_ask=True)
            retired.forgotten.extend(found.forgotten)
            retired.unwritten.extend(found.unwritten)
        # Where most are in use there is nothing to be had: look again when there are more.
        self._look_at = max(self._loaded_max, len(self._fragments) + self._loaded_max // 8)
        if len(self._fragments) <= self._loaded_max:
            self._look_at = self._loaded_max
        return retired

    def age(self, now: Instant) -> Retired:
        """Forget the engines that nobody has used for as long as is set, and those that are too
        many. Called now and then."""
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
        """Those that were not used for longest, when there are too many; an eighth more than that,
        so that a long list is not sorted for each engine."""
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
    """Nothing in the engine would be missed: no lock, no receiver, nothing under way or due soon.

    A client's sender link is no obstacle: it asks anew for each message.
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
    """Is there work that nobody waits for? An engine that was only just loaded has not been looked
    at, so that its chores say nothing of it."""
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
    # Expired messages are swept only while somebody receives (R-DLQ-06), so they can wait.
    fragment.wakes_at = engine.own.next_due
    fragment.engine = fragment.lease = None


def all_counts(ledger: Ledger) -> dict[int, QueueCounts]:
    """What is in a fragment, by owner."""
    owners = {owner_of(subqueue) for subqueue, _ in ledger.counts} | {0}
    return {owner: counts_of(ledger, owner) for owner in owners}


def counts_of(ledger: Ledger, owner: int = 0) -> QueueCounts:
    """What a queue, topic or subscription has; the size is that of all in the fragment."""
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

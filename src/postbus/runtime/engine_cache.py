"""Which engines are in memory: those in use, and of the others the latest few, for a while.

An engine that nobody needs is forgotten once its index is up to date; its next use loads it
again. What must be known of it meanwhile, without loading it, stays with its host: its counts,
which cannot change, and when it next has work of its own.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from postbus.broker.engine import Engine
from postbus.broker.forwarding import diverts
from postbus.broker.ledger import Ledger
from postbus.broker.message import (
    ACTIVE,
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    OUTBOX,
    OWNER_BITS,
    PUBLISHING,
    SCHEDULED,
    TRANSFER_DEAD_LETTER,
)
from postbus.model.description import QueueCounts
from postbus.model.instant import NEVER, Instant
from postbus.runtime.fragment import Host

SOON_MS: Final = 10_000
"""An engine with work of its own within this is not worth forgetting."""


class Retired(NamedTuple):
    """What came of making room."""

    forgotten: list[Host]
    unwritten: list[Host]
    """Would be forgotten if their index were up to date: a checkpoint is wanted first."""


class Residence:
    """The hosts of one store whose engines are loaded."""

    __slots__ = ("_hosts", "_idle_ms", "_leaving", "_loaded_max", "_look_at")

    def __init__(self, loaded_max: int = 1_000, idle_ms: int = 60_000) -> None:
        self._loaded_max = loaded_max
        self._idle_ms = idle_ms
        self._hosts: dict[Host, None] = {}
        self._leaving: dict[Host, None] = {}
        self._look_at = loaded_max

    def __len__(self) -> int:
        return len(self._hosts)

    def moved_in(self, host: Host, now: Instant) -> None:
        """The host's engine was loaded."""
        self._hosts[host] = None
        host.idle_since = now
        host.counts = None
        host.wakes_at = NEVER

    def moved_out(self, host: Host) -> None:
        """The host's engine was thrown away."""
        self._hosts.pop(host, None)
        self._leaving.pop(host, None)

    @property
    def crowded(self) -> bool:
        """Is it worth looking for somebody to forget?"""
        return len(self._hosts) > self._look_at or bool(self._leaving)

    def make_room(self, now: Instant) -> Retired:
        """Forget the engines that waited for their checkpoint and, when there are too many, those
        that were not used for longest."""
        leaving, self._leaving = self._leaving, {}
        retired = self._retire(leaving, now, may_ask=False)
        if len(self._hosts) > self._look_at:
            found = self._retire(self._surplus(), now, may_ask=True)
            retired.forgotten.extend(found.forgotten)
            retired.unwritten.extend(found.unwritten)
        # Where most are in use there is nothing to be had: look again when there are more.
        self._look_at = max(self._loaded_max, len(self._hosts) + self._loaded_max // 8)
        if len(self._hosts) <= self._loaded_max:
            self._look_at = self._loaded_max
        return retired

    def age(self, now: Instant) -> Retired:
        """Forget the engines that nobody has used for as long as is set, and those that are too
        many. Called now and then."""
        leaving = dict.fromkeys(self._surplus())
        for host in self._hosts:
            if host.used:
                host.used = False
                host.idle_since = now
            elif host.idle_since + self._idle_ms <= now:
                leaving[host] = None
        self._look_at = self._loaded_max
        return self._retire(leaving, now, may_ask=True)

    def _surplus(self) -> list[Host]:
        """Those that were not used for longest, when there are too many; an eighth more than that,
        so that a long list is not sorted for each engine."""
        surplus = len(self._hosts) - self._loaded_max
        if surplus <= 0:
            return []
        idlest = sorted(self._hosts, key=lambda host: (host.used, host.idle_since))
        return idlest[: surplus + self._loaded_max // 8]

    def _retire(self, hosts: Iterable[Host], now: Instant, may_ask: bool) -> Retired:
        retired = Retired([], [])
        for host in hosts:
            engine = host.engine
            if engine is None or not at_rest(host, now):
                continue
            if engine.ledger.head == engine.ledger.checkpoint:
                _forget(host)
                del self._hosts[host]
                retired.forgotten.append(host)
            elif may_ask:
                self._leaving[host] = None
                retired.unwritten.append(host)
        return retired


def at_rest(host: Host, now: Instant) -> bool:
    """Nothing in the engine would be missed: no lock, no receiver, nothing under way or due soon.

    A client's sender link is no obstacle: it asks anew for each message.
    """
    engine = host.engine
    return (
        engine is not None
        and not engine.holds_locks
        and not engine.fragment.transactions
        and not _has_work(engine)
        and not engine.ledger.pending
        and not host.loads
        and not host.wants
        and not host.chores
        and engine.own.next_due > now + SOON_MS
        and not any(line.receivers for line in host.lines.values())
    )


def _has_work(engine: Engine) -> bool:
    """Is there work that nobody waits for? An engine that was only just loaded has not been looked
    at, so that its chores say nothing of it."""
    topic = engine.topic
    return bool(
        engine.fragment.outboxes
        or engine.removed
        or (topic is not None and topic.behind)
        or any(diverts(queue) is not None for queue in engine.fragment.diverting.values())
    )


def _forget(host: Host) -> None:
    engine = host.engine
    assert engine is not None
    host.counts = all_counts(engine.ledger)
    # Expired messages are swept only while somebody receives (R-DLQ-06), so they can wait.
    host.wakes_at = engine.own.next_due
    host.engine = host.lease = None


def all_counts(ledger: Ledger) -> dict[int, QueueCounts]:
    """What is in a fragment, by owner."""
    owners = {subqueue >> OWNER_BITS for subqueue, _ in ledger.counts} | {0}
    return {owner: counts_of(ledger, owner) for owner in owners}


def counts_of(ledger: Ledger, owner: int = 0) -> QueueCounts:
    """What a queue, topic or subscription has; the size is that of all in the fragment."""
    main = owner << OWNER_BITS | MAIN
    dead = owner << OWNER_BITS | DEAD_LETTER
    transfer_dead = owner << OWNER_BITS | TRANSFER_DEAD_LETTER
    count = ledger.count
    return QueueCounts(
        active=count(main, ACTIVE) + count(main, DEFERRED) + count(main, PUBLISHING),
        dead_letter=count(dead, ACTIVE) + count(dead, DEFERRED),
        scheduled=count(main, SCHEDULED),
        transfer=count(main, OUTBOX) + count(dead, OUTBOX) + count(transfer_dead, OUTBOX),
        transfer_dead_letter=count(transfer_dead, ACTIVE) + count(transfer_dead, DEFERRED),
        size_bytes=ledger.size_bytes,
    )

"""A fragment in this process: its engine, its lease, its receivers and its chores.

The engine is loaded on first use. If a commit fails, memory is ahead of the disk: the engine is
discarded, waiting requests are refused, and the next use loads it again from the store. An engine
that nobody uses is forgotten after a while (`postbus.runtime.engine_cache`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from postbus.broker import chores, forwarding
from postbus.broker.duplicates import recall
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.broker.policy import Policy
from postbus.broker.subqueue_numbers import owner_of
from postbus.broker.topic import RuleMatcher, fan_out
from postbus.errors import ServiceBusError
from postbus.model.description import QueueCounts
from postbus.model.index_rows import Checkpoint
from postbus.model.times import NEVER, Instant
from postbus.runtime.receivers import ReceiverQueue
from postbus.runtime.requests import Chore, Request
from postbus.runtime.session_waiters import SessionWaiters
from postbus.store.ports.journal import Lease

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from postbus.observe.meters import EntityMeter

CHECKPOINT_CHANGES: Final = 32_768
"""Changed index rows that make a checkpoint due: a message that came and went between two
checkpoints costs the index nothing, so rare checkpoints are cheap."""
ROWS_PREPARED: Final = 512
"""Rows that a turn makes ahead of a checkpoint, from half of its changes on: about 1 ms."""
CHECKPOINT_CHANGES_MIN: Final = 4_096
"""The same when memory is short, or while chores read pages: each page has all changes laid over
it."""
CHECKPOINT_RECORDS: Final = 32_768
"""New records that make a checkpoint due: a start after a crash replays about as many."""
CHECKPOINT_BYTES: Final = 64 << 20
"""New bytes of journal that make a checkpoint due. Journal above a checkpoint is never trimmed."""
CHECKPOINT_PATIENCE: Final = 4
"""While pages are loaded, the bounds are so many times as high: a checkpoint makes pages useless.
"""
GIVEN_PER_TURN: Final = 2_048
"""Shares that one turn hands out, over all subqueues: a topic may have thousands of them."""


class LoadedFragment:
    """One fragment, and all volatile state of it outside the engine."""

    def __init__(self, fragment_id: int, index: int, store: int, name: str, policy: Policy) -> None:
        self.id = fragment_id
        self.index = index
        self.store = store
        self.name = name
        self.siblings = 1
        """Fragments of its entity. Each has its share of the memory that an entity may use."""
        self.policy = policy
        self.matcher: RuleMatcher | None = None
        """Applies the rules of a topic; None for a queue."""
        self.subscriptions: dict[int, tuple[str, Policy]] = {}
        """Names and policies of a topic's subscriptions, by owner."""
        self.meter: EntityMeter | None = None
        self.meters: dict[int, EntityMeter] = {}
        """Meters of a topic's subscriptions, by owner."""
        self.engine: Engine | None = None
        self.lease: Lease | None = None
        self.receiver_queues: dict[int, ReceiverQueue] = {}
        self.session_waiters: dict[int, SessionWaiters] = {}
        """Session receivers of entities that require sessions. They are in `receiver_queues`, too.
        """
        self.waiting_subqueues: dict[int, None] = {}
        """Subqueues with waiting receivers that the next turn must look at."""
        self.waiting: list[Request] | None = None
        """Requests that wait while the engine is being loaded; None at other times."""
        self.gone: ServiceBusError | None = None
        """The refusal of all requests, once the entity was deleted."""
        self.used = False
        """A client has made a request since `idle_since` was last updated."""
        self.idle_since: Instant = 0
        self.counts: dict[int, QueueCounts] | None = None
        """Message counts by owner while the engine is not loaded; None if they are not known."""
        self.wakes_at: Instant = NEVER
        """When there is work for an engine that is not loaded."""
        self.chores: set[str] = set()
        self.loads = 0
        self.wants = 0
        """Requests that need pages and are not decided yet. The engine must stay loaded for them.
        """
        self.checkpoint_wanted = False
        """Upkeep sets it now and then, so that the journal of a quiet queue can be trimmed too."""
        self.timer: TimerHandle | None = None
        self.timer_at: Instant = 0
        self.on_lost: dict[Callable[[ServiceBusError], None], None] = {}
        """Called when the engine is discarded, and every lock with it."""
        self.on_records: dict[Callable[[], None], None] = {}
        """Called when records are durable: for waiting readers of the change feed."""
        self.head: int | None = None
        """Offset after the newest durable record; None until a commit or a reader has shown it."""
        self.on_outbox: Callable[[int], None] | None = None
        """Called with a subqueue that has messages to forward."""
        self.on_session_lost: Callable[[int, str, int], None] | None = None
        """Called with subqueue, id and holder of a session whose lock has ended."""

    def receivers_of(self, subqueue: int) -> ReceiverQueue:
        """The receivers of a subqueue."""
        receivers = self.receiver_queues.get(subqueue)
        if receivers is None:
            receivers = self.receiver_queues[subqueue] = ReceiverQueue(
                subqueue, self.waiting_subqueues
            )
        return receivers

    def waiters_of(self, subqueue: int) -> SessionWaiters:
        """The session receivers of a subqueue."""
        receivers = self.session_waiters.get(subqueue)
        if receivers is None:
            receivers = self.session_waiters[subqueue] = SessionWaiters(
                subqueue, self.waiting_subqueues
            )
            self.on_session_lost = self._session_lost
        return receivers

    def _session_lost(self, subqueue: int, session_id: str, holder: int) -> None:
        receivers = self.session_waiters.get(subqueue)
        # Not by the session's id: another receiver may hold that session by now.
        receiver = None if receivers is None else receivers.of_holder(holder)
        if receiver is not None:
            receiver.lost()

    def has_durable(self) -> bool:
        """Whether receivers of a woken subqueue wait for a message that is durable already."""
        engine = self.engine
        if engine is None:
            return False
        for subqueue in self.waiting_subqueues:
            receivers = self.receiver_queues.get(subqueue)
            queue = engine.queues.get(owner_of(subqueue))
            if receivers is None or queue is None or not receivers.waiting:
                continue
            head = queue.windows[subqueue].head()
            if head is not None and head.raw is not None and engine.ledger.is_durable(head):
                return True
        return False

    def wake_all(self) -> None:
        """Let the next turn look at every subqueue that has receivers."""
        self.waiting_subqueues.update(dict.fromkeys(self.receiver_queues))

    def meter_of(self, subqueue: int) -> EntityMeter | None:
        """The meter of the queue, topic or subscription that a subqueue belongs to."""
        owner = owner_of(subqueue)
        return self.meters.get(owner) if owner else self.meter

    def due_chores(self, engine: Engine, looked_at: list[int], now: Instant) -> list[Chore]:
        """Return the chores that are due and not under way yet."""
        found: list[Chore] = []
        for subqueue in looked_at:
            receivers, queue = (
                self.receiver_queues.get(subqueue),
                engine.queues.get(owner_of(subqueue)),
            )
            if queue is not None and queue.forwards(subqueue):
                engine.shared.diverting[queue.owner] = None
            if receivers is None or queue is None or not receivers.waiting:
                continue
            window = queue.windows[subqueue]
            if window.low:
                self._add(found, f"refill {subqueue}", partial(_refill, subqueue))
            head = window.head()
            if head is not None and head.raw is None:
                self._add(found, f"bodies {subqueue}", partial(_fetch_bodies, subqueue))
        if engine.own.next_due <= now:
            self._add(found, "activate", partial(_activate, now))
        for queue in engine.expired(now):
            self._add(found, f"sweep {queue.owner}", partial(_sweep, queue.main, now))
        if engine.ledger.history is not None and engine.ledger.history.next_unread() is not None:
            self._add(found, "recall", _recall)
        if engine.topic is not None:
            self._add_for_topic(found, engine)
        for subqueue in forwarding.diverted(engine):
            self._add(found, f"divert {subqueue}", partial(_divert, subqueue))
        return found

    def _add_for_topic(self, found: list[Chore], engine: Engine) -> None:
        if engine.topic is not None and engine.topic.behind:
            self._add(found, "fan out", _fan_out)
        for owner in engine.removed:
            self._add(found, f"purge {owner}", partial(_purge, owner))
            break

    def _add(
        self, found: list[Chore], name: str, call: Callable[[Engine, Instant, Pages], Need | None]
    ) -> None:
        found += self.begin(name, call)

    def begin(
        self, name: str, call: Callable[[Engine, Instant, Pages], Need | None]
    ) -> list[Chore]:
        """Return a chore of this name, or nothing if one is under way already."""
        if name in self.chores:
            return []
        self.chores.add(name)
        return [Chore(self, name, call)]

    def checkpoint_due(self, engine: Engine) -> bool:
        ledger = engine.ledger
        changes = ledger.delta.size
        engine.shared.charge_changes(changes)
        if ledger.delta.frozen:
            return False  # a checkpoint is under way
        if changes >= CHECKPOINT_CHANGES // 2:
            ledger.delta.prepare(ROWS_PREPARED)
        records = ledger.head + len(ledger.pending) - ledger.checkpoint
        worthwhile = records > 0 or bool(ledger.outdated)
        patience = CHECKPOINT_PATIENCE if self.loads else 1
        return (
            changes >= CHECKPOINT_CHANGES
            or (
                changes >= CHECKPOINT_CHANGES_MIN * patience
                and (bool(self.chores) or engine.shared.budget.is_short_for_changes)
            )
            or records >= CHECKPOINT_RECORDS * patience
            or ledger.bytes_since_checkpoint >= CHECKPOINT_BYTES
            or (self.checkpoint_wanted and worthwhile and not self.loads)
            # Recent ids are all in memory, so they have a bound without patience.
            or (ledger.history is not None and len(ledger.history.recent) >= CHECKPOINT_RECORDS)
        )

    def unload(self) -> None:
        """Throw the engine away."""
        if self.engine is not None:
            self.engine.close()
        self.engine = self.lease = None

    def make_checkpoint(self, engine: Engine) -> Checkpoint:
        self.checkpoint_wanted = False
        return engine.ledger.make_checkpoint()


Output = tuple[LoadedFragment, Callable[[], None]]
"""A call that leaves the process when the records of its fragment are durable."""


def _refill(subqueue: int, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return chores.refill(engine.at(subqueue), subqueue, pages)


def _fetch_bodies(subqueue: int, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return chores.fetch_bodies(engine.at(subqueue), subqueue, pages)


def _activate(until: Instant, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return chores.activate(engine, until, now, pages)


def _sweep(
    subqueue: int, until: Instant, engine: Engine, now: Instant, pages: Pages
) -> Need | None:
    return chores.sweep(engine.at(subqueue), until, now, pages)


def _fan_out(engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return None if engine.topic is None else fan_out(engine.topic, engine.own, pages)


def _purge(owner: int, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return chores.purge(engine, owner, pages)


def _recall(engine: Engine, now: Instant, pages: Pages) -> Need | None:
    history = engine.ledger.history
    return None if history is None else recall(history, pages)


def _divert(subqueue: int, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return forwarding.divert(engine.at(subqueue), subqueue, now, pages)

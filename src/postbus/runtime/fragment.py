"""A fragment in this process: its engine, its lease, and who waits for it.

The engine is loaded on first use and thrown away when a commit fails, for memory is then ahead
of the disk; what was waiting is refused, and the next use loads it again from the store. One that
nobody uses is forgotten after a while (`postbus.runtime.engine_cache`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from postbus.broker import chores, forwarding
from postbus.broker.duplicates import recall
from postbus.broker.engine import Engine
from postbus.broker.pages import Need, Pages
from postbus.broker.policy import Policy
from postbus.broker.subqueue import owner_of
from postbus.broker.topic import RuleMatcher, fan_out
from postbus.errors import ServiceBusError
from postbus.model.description import QueueCounts
from postbus.model.rows import Checkpoint
from postbus.model.times import NEVER, Instant
from postbus.runtime.receivers import ReceiverQueue
from postbus.runtime.requests import Chore, Request
from postbus.runtime.session_waiters import SessionWaiters
from postbus.store.ports.journal import Lease

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from postbus.observe.meters import EntityMeter
    from postbus.runtime.holding import Held

CHECKPOINT_CHANGES: Final = 4_096
"""Index rows changed since the last checkpoint. SQLite writes so many in 13 ms."""
CHECKPOINT_RECORDS: Final = 32_768
"""Records to replay after a crash, at the most, while nothing else is in the way."""
CHECKPOINT_BYTES: Final = 64 << 20
"""Journal to replay after a crash, likewise; what is above the checkpoint is never trimmed."""
CHECKPOINT_PATIENCE: Final = 4
"""A checkpoint makes loaded pages useless, so it waits for them this many times as long."""
GIVEN_PER_TURN: Final = 2_048
"""Messages that one turn hands out, over all lines: a topic may have thousands of them."""


class LoadedFragment:
    """One fragment, and everything volatile about it that is not the engine's."""

    def __init__(self, fragment_id: int, index: int, store: int, name: str, policy: Policy) -> None:
        self.id = fragment_id
        self.index = index
        self.store = store
        self.name = name
        self.policy = policy
        self.matcher: RuleMatcher | None = None
        """Applies the rules of a topic; None for a queue."""
        self.subscriptions: dict[int, tuple[str, Policy]] = {}
        """Those of a topic, by owner."""
        self.meter: EntityMeter | None = None
        self.meters: dict[int, EntityMeter] = {}
        """Those of a topic's subscriptions, by owner."""
        self.engine: Engine | None = None
        self.lease: Lease | None = None
        self.receiver_queues: dict[int, ReceiverQueue] = {}
        self.session_waiters: dict[int, SessionWaiters] = {}
        """Of entities that require sessions; their receivers are in `receiver_queues`, too."""
        self.waiting_subqueues: dict[int, None] = {}
        """Subqueues where somebody waits who has not been looked at yet."""
        self.waiting: list[Request] | None = None
        """Requests that came while the engine is being loaded; None when it is not."""
        self.held: Held | None = None
        """Sends that wait for what one of them has to read."""
        self.gone: ServiceBusError | None = None
        """Why nothing can be asked of it any more (the entity was deleted)."""
        self.used = False
        """Somebody asked something since `idle_since` was last looked at."""
        self.idle_since: Instant = 0
        self.counts: dict[int, QueueCounts] | None = None
        """What is in the fragment, by owner, while its engine is not here; None when that is not
        known."""
        self.wakes_at: Instant = NEVER
        """When the engine has work of its own, while it is not here."""
        self.chores: set[str] = set()
        self.loads = 0
        self.wants = 0
        """Requests that have to read, until they were decided with what was read: the engine must
        be there for it."""
        self.checkpoint_wanted = False
        """Set by upkeep now and then, so that a quiet queue's journal can be trimmed too."""
        self.timer: TimerHandle | None = None
        self.timer_at: Instant = 0
        self.on_lost: dict[Callable[[ServiceBusError], None], None] = {}
        """Called when the engine, and with it every lock, is thrown away."""
        self.on_records: dict[Callable[[], None], None] = {}
        """Called when records are durable: for readers of the change feed that wait for some."""
        self.head: int | None = None
        """Offset after the newest durable record, as far as it is known without reading."""
        self.on_outbox: Callable[[int], None] | None = None
        """Called with a subqueue that has messages for another entity."""
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
        # Not by the session's id: that may be another's by now.
        receiver = None if receivers is None else receivers.of_holder(holder)
        if receiver is not None:
            receiver.lost()

    def wake_all(self) -> None:
        """Look at every line in the next turn."""
        self.waiting_subqueues.update(dict.fromkeys(self.receiver_queues))

    def meter_of(self, subqueue: int) -> EntityMeter | None:
        """The meter of the queue, topic or subscription that a subqueue belongs to."""
        owner = owner_of(subqueue)
        return self.meters.get(owner) if owner else self.meter

    def due_chores(self, engine: Engine, looked_at: list[int], now: Instant) -> list[Chore]:
        """The work that has come up and is not under way yet."""
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
        """The chore of this name, or none where it is under way already."""
        if name in self.chores:
            return []
        self.chores.add(name)
        return [Chore(self, name, call)]

    def checkpoint_due(self, engine: Engine) -> bool:
        ledger = engine.ledger
        changes = ledger.delta.size
        records = ledger.head + len(ledger.pending) - ledger.checkpoint
        worthwhile = records > 0 or bool(ledger.outdated)
        patience = CHECKPOINT_PATIENCE if self.loads else 1
        return (
            changes >= CHECKPOINT_CHANGES * patience
            or records >= CHECKPOINT_RECORDS * patience
            or ledger.bytes_since_checkpoint >= CHECKPOINT_BYTES
            or (self.checkpoint_wanted and worthwhile and not self.loads)
            # All of them are in memory; waiting for pages holds back who would bring more.
            or (ledger.history is not None and len(ledger.history.recent) >= CHECKPOINT_RECORDS)
        )

    def make_checkpoint(self, engine: Engine) -> Checkpoint:
        self.checkpoint_wanted = False
        return engine.ledger.make_checkpoint()


Output = tuple[LoadedFragment, Callable[[], None]]
"""Something that leaves the process when its fragment's records are durable."""


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

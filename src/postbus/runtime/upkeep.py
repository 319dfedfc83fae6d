"""Upkeep of a store beside its commits: disk space, health, trimming, deleted entities."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from postbus.broker.chores import copy_forward
from postbus.broker.engine import Engine
from postbus.broker.index_pages import Need, Pages
from postbus.model.description import QueueCounts
from postbus.model.times import Instant
from postbus.observe.meters import StoreMeter
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.loading import Loader
from postbus.runtime.requests import Chore
from postbus.runtime.runtime import Runtime
from postbus.runtime.store_thread import StoreThread
from postbus.store.ports.store import Store

LOOK_S: Final = 1.0
THOROUGH_EVERY: Final = 10
"""Every so many looks, upkeep is thorough."""
CLOCK_SET_MS: Final = 100
"""A clock that gains so much on timers between two looks was set. Drift is far less."""
GROWTH_SHARE: Final = 32
"""A store that has written this part of the retention since the last trim is trimmed at the next
look. At full rate, ten seconds of journal can be a fifth of the retention or more."""
TRIM_SLICE: Final = 256
DROP_SLICE: Final = 2_000
COPIED_AT_ONCE: Final = 256
SEEN_SLICE: Final = 2_000
RESTING_EVERY: Final = 600
"""Every so many looks, fragments without an engine are trimmed too. Their journals do not grow, but
their batches pass the retention."""
_HOUR_MS: Final = 3_600_000

log = structlog.get_logger("upkeep")


class Upkeep:
    """Looks after one store, in slices, between the commits of its runtime."""

    def __init__(
        self,
        store: Store,
        thread: StoreThread,
        runtime: Runtime,
        loader: Loader,
        meter: StoreMeter,
    ) -> None:
        self._store = store
        self._thread = thread
        self._runtime = runtime
        self._loader = loader
        self._meter = meter
        self._trimmed_at_bytes = 0
        self._trimmed_at_heads: dict[int, int] = {}
        self._dropped_below: dict[int, int] = {}
        """The first part of each duplicate history that is still in the store."""

    async def look_for_room(self) -> bool:
        """Return whether the disk has room for new messages. A change is logged."""
        has_room = await self._thread.run(self._store.look_for_room)
        if has_room != self._meter.has_room:
            self._meter.has_room = has_room
            if has_room:
                log.info("disk has room again, messages are taken")
            else:
                log.warning("disk is full, messages are refused until others were taken out")
        return has_room

    @property
    def has_room(self) -> bool:
        """Whether the last look found room for new messages."""
        return self._store.has_room

    async def probe(self, now: Instant) -> None:
        """Store and read a probe message. Raises if that fails."""
        await self._thread.run(partial(self._store.probe, now))

    async def drop(self, fragment_id: int) -> None:
        """Remove the fragment of a deleted entity."""
        while not await self._thread.run(partial(self._store.drop, fragment_id, DROP_SLICE)):
            pass
        await self._thread.run(partial(self._loader.checkpoints.pop, fragment_id, None))
        self._trimmed_at_heads.pop(fragment_id, None)
        self._dropped_below.pop(fragment_id, None)

    def has_grown(self, bytes_max: int) -> bool:
        """Whether so much was written since the last yes that trimming should not wait."""
        written = self._meter.bytes_written
        if written - self._trimmed_at_bytes <= bytes_max // GROWTH_SHARE:
            return False
        self._trimmed_at_bytes = written
        return True

    def set_timer_again(self, fragment: LoadedFragment) -> None:
        self._runtime.set_timer_again(fragment)

    def forget_idle(self) -> None:
        """Forget idle engines."""
        self._runtime.forget_idle()

    async def trim(self, fragment: LoadedFragment, older_than: Instant, bytes_max: int) -> None:
        """Trim the journal to its retention, if it has grown since the last time."""
        head = 0 if fragment.engine is None else fragment.engine.ledger.head
        if self._trimmed_at_heads.get(fragment.id) == head:
            return
        self._trimmed_at_heads[fragment.id] = head
        await self._trim(fragment, older_than, bytes_max)

    async def _trim(self, fragment: LoadedFragment, older_than: Instant, bytes_max: int) -> None:
        more = True
        while more and fragment.gone is None:
            trimmed = await self._thread.run(
                partial(self._store.trim, fragment.id, older_than, bytes_max, TRIM_SLICE)
            )
            more = trimmed.more

    async def forget_ids(self, fragment: LoadedFragment, now: Instant) -> None:
        """Drop message ids outside the duplicate window. The engine does not look them up any more,
        even if the stored state still lists their part."""
        below = await self._first_kept(fragment, now)
        if below <= self._dropped_below.get(fragment.id, 0):
            return
        drop = partial(self._store.index.drop_seen, fragment.id, below, SEEN_SLICE)
        while fragment.gone is None and not await self._thread.run(drop):
            pass
        self._dropped_below[fragment.id] = below

    async def _first_kept(self, fragment: LoadedFragment, now: Instant) -> int:
        if fragment.policy.duplicate_window_ms is None:
            return 0
        engine = fragment.engine
        if engine is None:
            return await self._loader.first_part(fragment, now)
        history = engine.ledger.history
        return 0 if history is None else history.expire(now)

    async def tidy(self, fragment: LoadedFragment, older_than: Instant, bytes_max: int) -> None:
        """Trim the journal, ask for a checkpoint so that the next trim gets further, and copy
        forward live bodies that pin old batches."""
        resting = fragment.engine is None
        if resting and fragment.counts is None:
            return  # it is being loaded, or cannot be read
        find_tail = partial(self._store.tail, fragment.id)
        before = await self._thread.run(find_tail) if resting else 0
        await self._trim(fragment, older_than, bytes_max)
        if self._store.is_spent:
            return  # commits would fail, and each would discard an engine and its locks
        engine = fragment.engine
        if engine is not None and engine.ledger.head > engine.ledger.checkpoint:
            fragment.checkpoint_wanted = True
            self._runtime.wake(fragment)
        below = await self._thread.run(find_tail)
        # An engine is loaded for copying only if the trim made progress and bodies remain.
        pinned = resting and below > before and _holds(fragment.counts)
        if (
            (fragment.engine is not None or pinned)
            and fragment.gone is None
            and "copy" not in fragment.chores
        ):
            fragment.chores.add("copy")
            self._runtime.attend(Chore(fragment, "copy", partial(_copy_forward, below)))


def _copy_forward(below: int, engine: Engine, now: Instant, pages: Pages) -> Need | None:
    return copy_forward(engine, below, COPIED_AT_ONCE, pages)


def _holds(counts: dict[int, QueueCounts] | None) -> bool:
    """Whether there may be a body that pins a batch."""
    return counts is None or any(each.size_bytes > 0 for each in counts.values())


class AheadOfTimers:
    """Detects that the clock was put forward. Timers count seconds and do not notice. A message
    that is due by the new time would wait for its old timer."""

    def __init__(self, clock: Callable[[], Instant], loop_time: Callable[[], float]) -> None:
        self._clock = clock
        self._loop_time = loop_time
        self._ahead_ms = self._measure()

    def _measure(self) -> float:
        return self._clock() - self._loop_time() * 1_000

    def has_changed(self) -> bool:
        """Return whether the clock was put forward since the last call."""
        ahead_ms = self._measure()
        changed = ahead_ms - self._ahead_ms > CLOCK_SET_MS
        self._ahead_ms = ahead_ms
        return changed


class RetainedEntity(Protocol):
    """The part of an entity that upkeep uses."""

    name: str

    @property
    def fragments(self) -> Sequence[LoadedFragment]: ...

    @property
    def retention(self) -> tuple[int, int]:
        """Retention of the journal in hours and in megabytes."""

    def warn(self, now: Instant) -> None: ...


def _is_read(entity: RetainedEntity) -> bool:
    """Used where readers are not registered: assume that the feed has some."""
    return True


async def keep_up(
    entities: Callable[[], Iterable[RetainedEntity]],
    upkeeps: list[Upkeep],
    clock: Callable[[], Instant],
    delete_idle: Callable[[], Awaitable[None]],
    forget_marks: Callable[[LoadedFragment], None],
    has_readers: Callable[[RetainedEntity], bool] = _is_read,
) -> None:
    """Do the upkeep of all entities at intervals, until cancelled.

    If the disk is full, history is trimmed before its time, except for feeds with known readers."""
    looks = smallest = 0
    ahead = AheadOfTimers(clock, asyncio.get_running_loop().time)
    while True:
        await asyncio.sleep(LOOK_S)
        looks += 1
        if ahead.has_changed():
            for entity in entities():
                for fragment in entity.fragments:
                    upkeeps[fragment.store].set_timer_again(fragment)
        is_thorough = looks % THOROUGH_EVERY == 0
        if is_thorough or looks == 1:
            smallest = min((entity.retention[1] for entity in entities()), default=0) << 20
        grown = {each for each, upkeep in enumerate(upkeeps) if upkeep.has_grown(smallest)}
        full = {each for each, upkeep in enumerate(upkeeps) if not await upkeep.look_for_room()}
        if not is_thorough and not grown and not full:
            continue
        now = clock()
        if is_thorough:
            for upkeep in upkeeps:
                upkeep.forget_idle()
            try:
                await delete_idle()
            except Exception as error:  # as below
                log.warning("idle entities not deleted", error=repr(error))
        for entity, fragment in [(each, part) for each in entities() for part in each.fragments]:
            is_full = fragment.store in full
            if fragment.engine is None and looks % (THOROUGH_EVERY if is_full else RESTING_EVERY):
                continue
            hours, megabytes = entity.retention
            if is_full and not has_readers(entity):
                hours = megabytes = 0
            older_than = now - hours * _HOUR_MS
            bytes_max = (megabytes << 20) // len(entity.fragments)
            try:
                if is_thorough:
                    entity.warn(now)
                    forget_marks(fragment)
                    await upkeeps[fragment.store].tidy(fragment, older_than, bytes_max)
                    await upkeeps[fragment.store].forget_ids(fragment, now)
                elif is_full:
                    await upkeeps[fragment.store].tidy(fragment, older_than, bytes_max)
                elif fragment.store in grown:
                    await upkeeps[fragment.store].trim(fragment, older_than, bytes_max)
            except Exception as error:  # upkeep goes on for the life of the process
                log.warning("journal not trimmed", entity=entity.name, error=repr(error))

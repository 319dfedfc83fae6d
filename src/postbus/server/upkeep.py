"""What is done for a store beside its commits: health probes, trimming, removal of what is gone."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Final, Protocol

import structlog

from postbus.broker.chores import copy_forward
from postbus.broker.pages import Need, Pages
from postbus.broker.queue import Queue
from postbus.model.description import QueueCounts
from postbus.model.instant import Instant
from postbus.server.host import Chore, Host
from postbus.server.loading import Loader
from postbus.server.runtime import Runtime
from postbus.server.storethread import StoreThread
from postbus.settings import Settings
from postbus.store.base import MessageStore

EVERY_S: Final = 10.0
TRIM_SLICE: Final = 256
DROP_SLICE: Final = 2_000
COPIED_AT_ONCE: Final = 256
RESTING_EVERY: Final = 60
"""Rounds after which the journals of engines that are not in memory are looked at as well: what
is past its retention goes from them too, but nothing comes in."""
_HOUR_MS: Final = 3_600_000

log = structlog.get_logger("upkeep")


class Upkeep:
    """Looks after one store, in slices, between the commits of its runtime."""

    def __init__(
        self, store: MessageStore, thread: StoreThread, runtime: Runtime, loader: Loader
    ) -> None:
        self._store = store
        self._thread = thread
        self._runtime = runtime
        self._loader = loader

    async def probe(self, now: Instant) -> None:
        """Can a message be stored and read? Raises when not."""
        await self._thread.run(partial(self._store.probe, now))

    async def drop(self, fragment: int) -> None:
        """Remove a deleted entity's fragment."""
        while not await self._thread.run(partial(self._store.drop, fragment, DROP_SLICE)):
            pass
        await self._thread.run(partial(self._loader.checkpoints.pop, fragment, None))

    def forget_idle(self) -> None:
        """Forget the engines that nobody uses."""
        self._runtime.forget_idle()

    async def trim(self, host: Host, older_than: Instant, bytes_max: int) -> None:
        """Let go of journal past its retention; copy forward what few live bodies pin."""
        resting = host.queue is None
        if resting and host.counts is None:
            return  # on its way into memory, or out of reach
        find_tail = partial(self._store.tail, host.fragment)
        before = await self._thread.run(find_tail) if resting else 0
        more = True
        while more and host.gone is None:
            trimmed = await self._thread.run(
                partial(self._store.trim, host.fragment, older_than, bytes_max, TRIM_SLICE)
            )
            more = trimmed.more
        queue = host.queue
        if queue is not None and queue.ledger.head > queue.ledger.checkpoint:
            host.checkpoint_wanted = True
            self._runtime.wake(host)
        below = await self._thread.run(find_tail)
        # An engine is loaded for it only where something has come up.
        pinned = resting and below > before and _holds(host.counts)
        if (host.queue is not None or pinned) and host.gone is None and "copy" not in host.chores:
            host.chores.add("copy")
            self._runtime.attend(Chore(host, "copy", partial(_copy_forward, below)))


def _copy_forward(below: int, queue: Queue, now: Instant, pages: Pages) -> Need | None:
    return copy_forward(queue, below, COPIED_AT_ONCE, pages)


def _holds(counts: QueueCounts | None) -> bool:
    """Is there a body that could pin a batch?"""
    return counts is None or counts.size_bytes > 0


class Kept(Protocol):
    """An entity, as far as its upkeep goes."""

    name: str
    host: Host

    def warn(self, now: Instant) -> None: ...


async def keep_up(
    entities: Callable[[], Iterable[Kept]],
    upkeeps: list[Upkeep],
    settings: Settings,
    clock: Callable[[], Instant],
) -> None:
    """See to every entity that is in use, now and then. Runs until cancelled."""
    for number in count(1):
        await asyncio.sleep(EVERY_S)
        now = clock()
        older_than = now - settings.retention_hours * _HOUR_MS
        for upkeep in upkeeps:
            upkeep.forget_idle()
        for entity in entities():
            host = entity.host
            if host.queue is None and number % RESTING_EVERY:
                continue
            entity.warn(now)
            try:
                await upkeeps[host.store].trim(host, older_than, settings.retention_mb << 20)
            except Exception as error:  # upkeep goes on for the life of the process
                log.warning("journal not trimmed", entity=entity.name, error=repr(error))

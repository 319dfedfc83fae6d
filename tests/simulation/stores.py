"""One store of a world: the disk below it, its thread, and the runtime of its fragments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from postbus.observe.meters import StoreMeter
from postbus.runtime.engine_cache import EngineCache
from postbus.runtime.loading import Loader
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.journal import Part as StorePart
from tests.simulation.disk import SimDisk
from tests.simulation.journal import RecordedStore, Written
from tests.simulation.machine import Thread

if TYPE_CHECKING:
    from tests.simulation.world import WatchedRuntime, World


class Store:
    """The store outlives the process; its thread and its runtime do not."""

    thread: Thread
    runtime: WatchedRuntime

    def __init__(self, world: World, disk: type[SimDisk] | None) -> None:
        self._world = world
        self.disk = disk(world.chance, world.disk_syncs) if disk else None
        self.recorded = RecordedStore(
            self.disk.store if self.disk else MemoryStore(),
            world.is_deleted,
            self._committed,
            lambda text: world.note(None, text),
        )

    def _committed(self, part: StorePart, written: Written) -> None:
        fragment = part.lease.fragment
        self._world.durable_heads[fragment] = part.base + part.count
        self._world.models[fragment].committed(part, written)

    def start(self) -> None:
        world = self._world
        self.thread = Thread(world.chance, world.failing)
        store: Any = self.recorded
        thread: Any = self.thread
        loader = Loader(store, thread, "here", world.budget, lambda: 12345)
        with mock.patch("asyncio.get_running_loop", return_value=world.machine):
            self.runtime = world.runtime_class(
                store, thread, lambda: world.now, loader, StoreMeter(), EngineCache(1, 0)
            )
        self.runtime.world = world

    def crash(self) -> str:
        """The process is gone; says how it ended, where there is a disk."""
        self.thread.crash()
        if self.disk is None:
            return ""
        how = self.disk.restart()
        self.recorded.reopened(self.disk.store)
        return how

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()

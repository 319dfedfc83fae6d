"""The data of an ephemeral namespace: it ends with the process."""

from pathlib import Path
from typing import NoReturn

from postbus.errors import NotSupported
from postbus.model.times import Instant
from postbus.store.memory.catalog import MemoryCatalog
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.namespace_data import Upgraded


class MemoryData:
    """NamespaceData in memory, of a namespace that is created `now`."""

    folder = None
    is_outdated = False
    upgraded: tuple[Upgraded, ...] = ()

    def __init__(self, now: Instant) -> None:
        self.catalog = MemoryCatalog(now)
        self.stores = (MemoryStore(),)

    def newest(self) -> Instant:
        return self.catalog.newest()

    def begin_backup(self, target: Path) -> NoReturn:
        raise NotSupported("An ephemeral namespace keeps nothing that could be backed up.")

    def close(self) -> None:
        self.stores[0].close()

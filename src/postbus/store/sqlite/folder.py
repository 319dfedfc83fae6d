"""The data folder of a namespace: its lock, its catalog and its stores.

lock         held by the process that uses the folder; names it
catalog.db   entities and where their fragments live
store-0.db   journals and indexes; more stores when there are more
reserve      space for what makes room when the disk is full
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from postbus.model.times import Instant
from postbus.store.ports.namespace_data import DataDamaged, DataInUse, Upgraded
from postbus.store.sqlite.catalog import SqliteCatalog, new_folder_id
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.files import make_private_folder
from postbus.store.sqlite.folder_backup import CATALOG, FolderBackup, store_path
from postbus.store.sqlite.reserve import Reserve, fitting
from postbus.store.sqlite.store import SqliteStore

_LOCK: Final = "lock"
_RESERVE: Final = "reserve"
_STORES: Final = "stores"
"""Catalog value: how many stores the folder has."""


class DataFolder:
    """NamespaceData in SQLite files. See `postbus.store.ports.namespace_data`.

    Opens the folder, or makes a new folder; from then on no other process can open it.

    `now` becomes the creation time of a new namespace. A folder that has more stores than
    `store_count` keeps them; a folder that has fewer gets new stores. `reserve_bytes` of the disk
    are set aside for writes that make room when it is full; None leaves the reserve as it is.

    A folder of an older format is upgraded, unless the caller wants it left as it is: then it may
    only be copied. All files are checked before the first is changed. The catalog comes first: an
    older Postbus looks at it first, and refuses the folder by it. Each file is upgraded in a
    transaction of its own, independent of the other files. So a cut between two files leaves a
    folder that opens, and the next start completes the upgrade.
    """

    def __init__(
        self,
        folder: str | Path,
        now: Instant,
        store_count: int = 1,
        reserve_bytes: int | None = None,
        *,
        upgrade: bool = True,
    ) -> None:
        self.folder = Path(folder)
        make_private_folder(self.folder)
        self._lock = _lock(self.folder)
        self._stores: list[SqliteStore] = []
        self._reserve: Reserve | None = None
        try:
            # First: on a full disk not even the stores could be opened without it.
            if reserve_bytes is not None:
                size = fitting(self.folder, reserve_bytes)
                if size:
                    self._reserve = Reserve(self.folder / _RESERVE, size)
                else:
                    (self.folder / _RESERVE).unlink(missing_ok=True)
            _sign(self._lock)
            path = self.folder / CATALOG
            if not path.exists() and store_path(self.folder, 0).exists():
                raise DataDamaged(f"{self.folder} has stores but its {CATALOG} is missing")
            self.catalog = SqliteCatalog(str(path), now, upgrade=False, reserve=self._reserve)
            self.upgraded: list[Upgraded] = []
            try:
                self._open_stores()
                if upgrade:
                    self._upgrade()
                    self._add_stores(store_count)
            except BaseException:
                self._close_stores()
                self.catalog.close()
                raise
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        if self._reserve is not None:
            self._reserve.close()
        os.close(self._lock)

    def _open_stores(self) -> None:
        for number in range(int(self.catalog.get(_STORES) or 0)):
            path = store_path(self.folder, number)
            if not path.exists():
                raise DataDamaged(f"{path} is missing, and with it what was stored in it")
            self._open_store(path, upgrade=False)

    def _add_stores(self, store_count: int) -> None:
        known = len(self._stores)
        for number in range(known, store_count):
            self._open_store(store_path(self.folder, number), upgrade=True)
        if len(self._stores) > known:
            # Before any fragment is placed there: from now on a missing file is a loss.
            self.catalog.set(_STORES, str(len(self._stores)))

    def _open_store(self, path: Path, upgrade: bool) -> None:
        folder = self.catalog.file.folder
        store = SqliteStore(str(path), folder=folder, upgrade=upgrade, reserve=self._reserve)
        self._stores.append(store)
        if store.file.folder != folder and not store.file.is_outdated:
            raise DataDamaged(f"{path} is part of another data folder")

    def _files(self) -> list[Database]:
        return [self.catalog.file, *(store.file for store in self._stores)]

    def _upgrade(self) -> None:
        for file in self._files():
            was = file.format
            file.upgrade(self.catalog.file.folder or new_folder_id())
            if file.format != was:
                self.upgraded.append(Upgraded(file.name, was, file.format))

    @property
    def is_outdated(self) -> bool:
        return any(file.is_outdated for file in self._files())

    @property
    def stores(self) -> Sequence[SqliteStore]:
        return self._stores

    def newest(self) -> Instant:
        return max(self.catalog.newest(), *(store.newest() for store in self._stores))

    def begin_backup(self, target: Path) -> FolderBackup:
        return FolderBackup(self.folder, self.catalog, self._stores, target)

    def close(self) -> None:
        try:
            self._close_stores()
            self.catalog.close()
        finally:
            self._let_go()

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()


def _lock(folder: Path) -> int:
    """The descriptor that holds the lock: it goes with the process, however that ends."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise DataInUse(f"{folder} is in use by process {holder}") from None
    return descriptor


def _sign(lock: int) -> None:
    """Write the process into the lock, for a second process that finds the folder in use. A full
    disk may not have the room."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)


def holds_data(folder: Path) -> bool:
    """Is it a data folder?"""
    return (folder / CATALOG).exists()

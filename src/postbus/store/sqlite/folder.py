"""The data folder of a namespace: its lock, its catalog and its stores.

lock         held by the process that uses the folder; names it
catalog.db   entities and where their fragments live
store-0.db   journals and indexes; more stores when there are more
reserve      space for what makes room when the disk is full
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from postbus.model.times import Instant
from postbus.store.sqlite.catalog import Catalog, new_folder_id
from postbus.store.sqlite.database import BackupFailed, Database, sync
from postbus.store.sqlite.reserve import Reserve, fitting
from postbus.store.sqlite.store import SqliteStore

_LOCK: Final = "lock"
_RESERVE: Final = "reserve"
_CATALOG: Final = "catalog.db"
_STORES: Final = "stores"
"""Catalog value: how many stores the folder has."""


class FolderInUse(Exception):
    """Another process has the folder open."""


class FolderDamaged(Exception):
    """A file that belongs to the folder is missing, or is that of another folder. Going on would
    hide the loss, or give the messages of others to whoever asks for those of this one."""


class Upgraded(NamedTuple):
    """A file that was of an older format until just now."""

    file: str
    was: int
    is_now: int


class DataFolder:
    """Opens the folder, or makes a new one; from then on no other process can.

    `now` becomes the creation time of a new namespace. A folder that has more stores than
    `store_count` keeps them; one that has fewer gets new ones. Of the disk `reserve_bytes` are set
    aside for what makes room when it is full; None leaves what is there as it is.

    A folder of an older format is upgraded, unless it is to be left as it is: then it may only be
    copied. All files are looked at before the first is changed. The catalog comes first, for an
    older Postbus looks at it first, and refuses the folder by it. Each file is upgraded in one
    transaction and whatever the others are like, so a cut between two of them leaves a folder
    that opens, and is upgraded to its end then.
    """

    def __init__(
        self,
        path: str | Path,
        now: Instant,
        store_count: int = 1,
        reserve_bytes: int | None = None,
        *,
        upgrade: bool = True,
    ) -> None:
        self.path = Path(path)
        _make_private(self.path)
        self._lock = _lock(self.path)
        self._stores: list[SqliteStore] = []
        self._reserve: Reserve | None = None
        try:
            # First: on a full disk not even the stores could be opened without it.
            if reserve_bytes is not None:
                size = fitting(self.path, reserve_bytes)
                if size:
                    self._reserve = Reserve(self.path / _RESERVE, size)
                else:
                    (self.path / _RESERVE).unlink(missing_ok=True)
            _sign(self._lock)
            catalog_path = self.path / _CATALOG
            if not catalog_path.exists() and _store_path(self.path, 0).exists():
                raise FolderDamaged(f"{self.path} has stores but its {_CATALOG} is missing")
            self.catalog = Catalog(str(catalog_path), now, upgrade=False, reserve=self._reserve)
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
            path = _store_path(self.path, number)
            if not path.exists():
                raise FolderDamaged(f"{path} is missing, and with it what was stored in it")
            self._open_store(path, upgrade=False)

    def _add_stores(self, store_count: int) -> None:
        known = len(self._stores)
        for number in range(known, store_count):
            self._open_store(_store_path(self.path, number), upgrade=True)
        if len(self._stores) > known:
            # Before any fragment is placed there: from now on a missing file is a loss.
            self.catalog.set(_STORES, str(len(self._stores)))

    def _open_store(self, path: Path, upgrade: bool) -> None:
        folder = self.catalog.file.folder
        store = SqliteStore(str(path), folder=folder, upgrade=upgrade, reserve=self._reserve)
        self._stores.append(store)
        if store.file.folder != folder and not store.file.is_outdated:
            raise FolderDamaged(f"{path} is part of another data folder")

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
        """Some file is of an older format."""
        return any(file.is_outdated for file in self._files())

    @property
    def store_count(self) -> int:
        return len(self._stores)

    def store(self, number: int) -> SqliteStore:
        return self._stores[number]

    def newest(self) -> Instant:
        """The latest time that anything in the folder bears."""
        return max(self.catalog.newest(), *(store.newest() for store in self._stores))

    def begin_backup(self, target: str | Path) -> "FolderBackup":
        return FolderBackup(self, Path(target))

    def backup(self, target: str | Path, beside: Sequence[str] = ()) -> None:
        """Copy the whole folder, from the thread that uses it. See FolderBackup for slices."""
        backup = self.begin_backup(target)
        try:
            for number in range(self.store_count):
                self.store(number).backup(backup.store_path(number))
            backup.finish(beside)
        except BaseException:
            backup.abandon()
            raise

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


class FolderBackup:
    """A copy of a folder in use, made under another name until it is whole.

    The caller copies each store, on that store's thread and in slices
    (`store.backup_steps(backup.store_path(i))`), and then calls `finish`, which copies the catalog.

    The catalog comes last. An entity leaves the catalog before its store begins to drop it, so a
    copy of a half-dropped fragment is always of one that the copied catalog lists as dropped or
    does not know. The other way round the copy could promise a queue whose messages are half gone.
    An entity created in between has no fragment in the copied store: it opens as an empty one.
    """

    def __init__(self, folder: DataFolder, target: Path) -> None:
        if target.exists():
            raise BackupFailed(f"{target} is there already")
        self._folder = folder
        self._target = target
        self._partial = target.with_name(target.name + ".partial")
        if self._partial.exists():
            # Left by a backup that was cut short; nothing in it is a whole copy.
            shutil.rmtree(self._partial)
        _make_private(self._partial)

    def store_path(self, number: int) -> str:
        return str(_store_path(self._partial, number))

    def finish(self, beside: Sequence[str] = ()) -> None:
        """Copy the catalog, and what lies beside it by these names, and give the copy its name.

        A copy that has its name is whole, whatever happens then: all of it is synced before."""
        self._folder.catalog.backup(str(self._partial / _CATALOG))
        for name in beside:
            self._add(name)
        sync(self._partial)
        self._partial.rename(self._target)
        sync(self._target.parent)

    def _add(self, name: str) -> None:
        """Copy a file, or a folder of files, if it is there."""
        source, copy = self._folder.path / name, self._partial / name
        if source.is_dir():
            shutil.copytree(source, copy)
            for each in copy.iterdir():
                sync(each)
        elif source.exists():
            shutil.copy2(source, copy)
        if copy.exists():
            sync(copy)

    def abandon(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)


def _store_path(folder: Path, number: int) -> Path:
    return folder / f"store-{number}.db"


def _make_private(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        # mkdir's mode is cut by the umask, never widened; the name must survive a power cut.
        sync(path.parent)


def _lock(folder: Path) -> int:
    """The descriptor that holds the lock: it goes with the process, however that ends."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise FolderInUse(f"{folder} is in use by process {holder}") from None
    return descriptor


def _sign(lock: int) -> None:
    """Name the process, for whoever finds the folder in use. A full disk may not have the room."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)

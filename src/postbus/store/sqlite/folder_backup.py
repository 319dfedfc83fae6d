"""The copy of a data folder in use, and the names of the files in it."""

import shutil
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Final

from postbus.store.ports.namespace_data import BackupFailed
from postbus.store.sqlite.catalog import SqliteCatalog
from postbus.store.sqlite.files import make_private_folder, sync
from postbus.store.sqlite.store import SqliteStore

CATALOG: Final = "catalog.db"


def store_path(folder: Path, number: int) -> Path:
    return folder / f"store-{number}.db"


class FolderBackup:
    """A Backup, made under another name until it is whole."""

    def __init__(
        self, folder: Path, catalog: SqliteCatalog, stores: Sequence[SqliteStore], target: Path
    ) -> None:
        if target.exists():
            raise BackupFailed(f"{target} is there already")
        self._folder = folder
        self._catalog = catalog
        self._stores = stores
        self._target = target
        self._partial = target.with_name(target.name + ".partial")
        if self._partial.exists():
            # Left by a backup that was cut short; nothing in it is a whole copy.
            shutil.rmtree(self._partial)
        make_private_folder(self._partial)

    def steps(self, number: int) -> Generator[None, None, None]:
        return self._stores[number].backup_steps(str(store_path(self._partial, number)))

    def finish(self, beside: Sequence[str] = ()) -> None:
        """The copy gets its name when all of it is synced: a copy that has its name is whole."""
        self._catalog.backup(str(self._partial / CATALOG))
        for name in beside:
            self._add(name)
        sync(self._partial)
        self._partial.rename(self._target)
        sync(self._target.parent)

    def _add(self, name: str) -> None:
        """Copy a file, or a folder of files, if it exists."""
        source, copy = self._folder / name, self._partial / name
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

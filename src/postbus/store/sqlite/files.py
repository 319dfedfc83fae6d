"""Files that must not lose anything, and are for the eyes of their owner only."""

import os
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from postbus.store.ports.namespace_data import BackupFailed

BACKUP_PAGES: Final = 512
"""4 MB a step: commits wait for a step of a backup, not for the backup."""


def sync(path: str | os.PathLike[str]) -> None:
    """Have the disk keep a file as it is, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_private(path: str) -> None:
    """Create the file if it does not exist. The log gets the permissions of its file.

    Only a new file is touched: closing a descriptor of a file in use would drop the locks that
    SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def make_private_folder(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True)
        # mkdir's mode is cut by the umask, never widened; the name must survive a power cut.
        sync(path.parent)


def copy_steps(
    connection: apsw.Connection, target: str, vfs: str | None, refuse: Callable[[], None]
) -> Generator[None, None, None]:
    """Copy the file of a connection into `target`, a slice between two yields.

    `refuse` is called after each slice, and raises once the file can no longer be trusted.
    """
    name = os.path.basename(connection.filename)
    if os.path.exists(target):
        raise BackupFailed(f"{target} is there already")
    try:
        create_private(target)
        copy = apsw.Connection(target, vfs=vfs)
        try:
            # A copy cut short is thrown away, so it needs no journal; it is synced once, below.
            copy.execute("PRAGMA journal_mode=OFF").fetchall()
            copy.execute("PRAGMA synchronous=OFF")
            with copy.backup("main", connection, "main") as backup:
                while not backup.step(BACKUP_PAGES):
                    yield
                    refuse()
        finally:
            copy.close()
        sync(target)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.remove(target)
        if isinstance(error, apsw.Error | OSError):
            raise BackupFailed(f"copying {name} to {target}: {error}") from error
        raise

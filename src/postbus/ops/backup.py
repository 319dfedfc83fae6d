"""Copy a data folder into one that opens as a folder of its own.

A folder in use is copied by the server that uses it, through the writer's own connections, in
slices between commits: nobody else can copy it without holding up the log or starting again at
every commit (`postbus.store.sqlite.database`). A folder at rest is copied here.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from postbus.auth.namespace_key import KEY_FILE
from postbus.errors import ServiceBusError
from postbus.ops.control import ControlError, ask
from postbus.runtime.store_thread import StoreThread
from postbus.settings import MADE_CERTIFICATE
from postbus.store.sqlite.database import BackupFailed, FormatUnknown
from postbus.store.sqlite.folder import DataFolder, FolderDamaged, FolderInUse

BACKUP: Final = "backup"
"""The name of the request to a running server."""
SECRETS: Final = (KEY_FILE, str(MADE_CERTIFICATE.parent))
"""Clients of the copy have the key of the original, and trust the same certificate."""

_REFUSALS = (BackupFailed, ControlError, FolderDamaged, FormatUnknown, ServiceBusError, OSError)


class BackupRefused(Exception):
    """No copy was made; the text says why."""


def back_up(source: Path, target: Path) -> None:
    """Copy `source`, in use or not, to `target`, which must not be there yet."""
    if not (source / "catalog.db").exists():
        raise BackupRefused(f"{source} is not a data folder")
    try:
        try:
            # In the format it has: before an upgrade is when a copy is wanted most.
            folder = DataFolder(source, time.time_ns() // 1_000_000, upgrade=False)
        except FolderInUse:
            ask(source, BACKUP, str(target.absolute()))
            return
        try:
            folder.backup(target, SECRETS)
        finally:
            folder.close()
    except _REFUSALS as error:
        raise BackupRefused(str(error)) from error


async def back_up_running(
    folder: DataFolder, catalog: StoreThread, stores: Sequence[StoreThread], target: str
) -> None:
    """The same inside the server: each slice is one call on the thread of its store."""
    backup = folder.begin_backup(target)
    try:
        for number, thread in enumerate(stores):
            steps = folder.store(number).backup_steps(backup.store_path(number))
            try:
                while await thread.run(partial(_step, steps)):
                    pass
            finally:
                # On its thread too: ending a copy half-way closes its connections.
                await thread.run(partial(_end, steps))
        await catalog.run(partial(backup.finish, SECRETS))
    except BaseException:
        backup.abandon()
        raise


def _step(steps: Iterator[None]) -> bool:
    for _ in steps:
        return True
    return False


def _end(steps: Iterator[None]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()

"""Copy a data folder into a new folder that opens by itself.

The server that uses a folder copies it, in slices between commits. No other process could copy it
without holding up the server's writes (`postbus.store.sqlite.database`). A folder at rest is copied
here.
"""

import time
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from postbus.auth.namespace_key import KEY_FILE
from postbus.errors import ServiceBusError
from postbus.ops.control import ControlError, ask
from postbus.runtime.store_thread import StoreThread
from postbus.settings import MADE_CERTIFICATE
from postbus.store.opening import holds_data, open_at_rest
from postbus.store.ports.namespace_data import (
    BackupFailed,
    DataDamaged,
    DataInUse,
    FormatUnknown,
    NamespaceData,
)

BACKUP: Final = "backup"
"""The name of the request to a running server."""
SECRETS: Final = (KEY_FILE, str(MADE_CERTIFICATE.parent))
"""Clients of the copy use the key of the original, and trust the same certificate."""

_REFUSALS = (BackupFailed, ControlError, DataDamaged, FormatUnknown, ServiceBusError, OSError)


class BackupRefused(Exception):
    """No copy was made; the text says why."""


def back_up(source: Path, target: Path) -> None:
    """Copy `source`, in use or not, to `target`, which must not exist yet."""
    if not holds_data(source):
        raise BackupRefused(f"{source} is not a data folder")
    try:
        try:
            # In its present format: operators want a copy most of all before an upgrade.
            data = open_at_rest(source, time.time_ns() // 1_000_000)
        except DataInUse:
            ask(source, BACKUP, str(target.absolute()))
            return
        try:
            copy_data(data, target)
        finally:
            data.close()
    except _REFUSALS as error:
        raise BackupRefused(str(error)) from error


def copy_data(data: NamespaceData, target: Path) -> None:
    """Copy data that no other process uses, at once."""
    backup = data.begin_backup(target)
    try:
        for number in range(len(data.stores)):
            for _ in backup.steps(number):
                pass
        backup.finish(SECRETS)
    except BaseException:
        backup.abandon()
        raise


async def back_up_running(
    data: NamespaceData, catalog: StoreThread, stores: Sequence[StoreThread], target: str
) -> None:
    """The same inside the server: each slice is one call on the thread of its store."""
    backup = data.begin_backup(Path(target))
    try:
        for number, thread in enumerate(stores):
            steps = backup.steps(number)
            try:
                while await thread.run(partial(_step, steps)):
                    pass
            finally:
                # On the same thread: ending a copy half-way closes its connections.
                await thread.run(steps.close)
        await catalog.run(partial(backup.finish, SECRETS))
    except BaseException:
        backup.abandon()
        raise


def _step(steps: Generator[None, None, None]) -> bool:
    for _ in steps:
        return True
    return False

"""The one place that chooses where a namespace keeps its data.

A new kind of store is a folder beside `sqlite`, which implements the ports, and a line here.
Nothing else outside those folders imports them (`tests/tidy/test_store_ports.py`).
"""

from pathlib import Path

import apsw

from postbus.model.times import Instant
from postbus.settings import Settings
from postbus.store.memory.namespace_data import MemoryData
from postbus.store.ports.namespace_data import NamespaceData
from postbus.store.sqlite import folder as sqlite_folder
from postbus.store.sqlite.folder import DataFolder


def open_data(settings: Settings, now: Instant) -> NamespaceData:
    """The data that a server works on, upgraded if need be. `now` becomes the creation time of a
    new namespace.

    Raises DataInUse, DataDamaged, FormatUnknown, StoreUnavailable and OSError.
    """
    if settings.ephemeral:
        return MemoryData(now)
    return DataFolder(settings.data, now, reserve_bytes=settings.disk_reserve_mb << 20)


def open_at_rest(folder: Path, now: Instant) -> NamespaceData:
    """The data of a folder that no server works on, in the format it has: for a copy or an export.
    Raises as `open_data` does."""
    return DataFolder(folder, now, upgrade=False)


def holds_data(folder: Path) -> bool:
    """Does a namespace keep its data there?"""
    return sqlite_folder.holds_data(folder)


def store_library() -> tuple[str, str]:
    """The library that keeps the data, and its version."""
    return "sqlite", apsw.sqlite_lib_version()

"""Offsets of change feed readers, in the catalog's table of values."""

from collections.abc import Mapping
from typing import Final

from postbus.store.ports.catalog import ReaderKey
from postbus.store.sqlite.database import Database

_READER: Final = "reader "


class SqliteReaderOffsets:
    """ReaderOffsets in the catalog's file. See `postbus.store.ports.catalog`."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[ReaderKey, str]:
        with self._database.reading():
            rows = self._database.run(
                "SELECT key, value FROM meta WHERE key >= ? AND key < ?",
                (_READER, _READER[:-1] + "!"),
            )
        found: dict[ReaderKey, str] = {}
        for key, value in rows:
            fragment, _, name = str(key).removeprefix(_READER).partition(" ")
            found[ReaderKey(int(fragment), name)] = str(value)
        return found

    def write(self, changed: Mapping[ReaderKey, str | None]) -> None:
        with self._database.transaction():
            for (fragment, name), value in changed.items():
                key = f"{_READER}{fragment} {name}"
                if value is None:
                    self._database.run("DELETE FROM meta WHERE key = ?", (key,))
                else:
                    self._database.set_meta(key, value)

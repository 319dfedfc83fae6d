"""How far readers of change feeds have come, by their own word. Kept in the catalog.

A mark belongs to the fragment that an entity began with, and not to its name: a new entity of an
old name has new offsets.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from postbus.store.sqlite.database import Database

_READER: Final = "reader "


class MarkKey(NamedTuple):
    fragment: int
    name: str


class ReaderOffsets:
    """Texts by fragment and reader; durable with every call."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> dict[MarkKey, str]:
        with self._database.reading():
            rows = self._database.run(
                "SELECT key, value FROM meta WHERE key >= ? AND key < ?",
                (_READER, _READER[:-1] + "!"),
            )
        found: dict[MarkKey, str] = {}
        for key, value in rows:
            fragment, _, name = str(key).removeprefix(_READER).partition(" ")
            found[MarkKey(int(fragment), name)] = str(value)
        return found

    def write(self, changed: Mapping[MarkKey, str | None]) -> None:
        """Set these; None removes one."""
        with self._database.transaction():
            for (fragment, name), value in changed.items():
                key = f"{_READER}{fragment} {name}"
                if value is None:
                    self._database.run("DELETE FROM meta WHERE key = ?", (key,))
                else:
                    self._database.set_meta(key, value)

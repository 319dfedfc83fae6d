"""Names of deleted entities while other entities lie below them, as `a` above `a/b`.

A token that was made for the entity looks like a token for the folder of the same name. The name is
kept as long as that folder exists, so that the token opens no more than it did.
"""

from typing import Final

from postbus.store.sqlite.database import Database

_FORMER: Final = "former "
_END_OF_FOLDER: Final = chr(ord("/") + 1)


class DeletedPrefixes:
    """Kept in the catalog; each call is part of a transaction of the caller."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[str]:
        """As they compare."""
        rows = self._database.run(
            "SELECT key FROM meta WHERE key >= ? AND key < ?", (_FORMER, _FORMER[:-1] + "!")
        )
        return [str(key).removeprefix(_FORMER) for (key,) in rows]

    def created(self, key: str) -> None:
        """An entity has this name."""
        self._forget(key)

    def deleted(self, key: str) -> None:
        """No entity has this name any more."""
        if self._is_folder(key):
            self._database.set_meta(f"{_FORMER}{key}", "")
        above = key.rpartition("/")[0]
        while above:
            if not self._is_folder(above):
                self._forget(above)
            above = above.rpartition("/")[0]

    def _is_folder(self, key: str) -> bool:
        return bool(
            self._database.run(
                "SELECT 1 FROM entity WHERE key > ? AND key < ? LIMIT 1",
                (f"{key}/", key + _END_OF_FOLDER),
            )
        )

    def _forget(self, key: str) -> None:
        self._database.run("DELETE FROM meta WHERE key = ?", (f"{_FORMER}{key}",))

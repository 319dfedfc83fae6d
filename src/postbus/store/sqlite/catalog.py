"""Which entities a namespace has, and in which store each of their fragments lives."""

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final

from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from postbus.model.times import Instant
from postbus.store.ports import journal
from postbus.store.ports.catalog import EntityRecord, FragmentRecord, key_of, to_json
from postbus.store.sqlite.database import Database, Layout, name_folder
from postbus.store.sqlite.deleted_prefixes import DeletedPrefixes
from postbus.store.sqlite.reader_offsets import SqliteReaderOffsets
from postbus.store.sqlite.reserve import Reserve
from postbus.store.sqlite.subscriptions import SqliteSubscriptions

# `key` is the name as it compares; `name` as it was given when the entity was created.
_ENTITY: Final = """
CREATE TABLE entity (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    description TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID"""

# `owner` is the subscription's number in the fragment of its topic. It is never used twice:
# messages of a deleted subscription may be left under it.
_SUBSCRIPTION: Final = """
CREATE TABLE subscription (
    topic TEXT NOT NULL,
    key TEXT NOT NULL,
    owner INTEGER NOT NULL,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (topic, key)
) WITHOUT ROWID"""
_RULE: Final = """
CREATE TABLE rule (
    topic TEXT NOT NULL,
    owner INTEGER NOT NULL,
    key TEXT NOT NULL,
    description TEXT NOT NULL,
    PRIMARY KEY (topic, owner, key)
) WITHOUT ROWID"""
# The next owner of each topic.
_OWNER: Final = "CREATE TABLE owner (topic TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID"

# A fragment of a deleted entity keeps its row, without an entity, until its store has dropped it.
_FRAGMENT: Final = """
CREATE TABLE fragment (
    id INTEGER PRIMARY KEY,
    entity TEXT,
    place INTEGER NOT NULL,
    store INTEGER NOT NULL
)"""
_FRAGMENT_ENTITY: Final = "CREATE INDEX fragment_entity ON fragment (entity, place)"

CATALOG: Final = Layout(
    "catalog",
    3,
    (_ENTITY, _SUBSCRIPTION, _RULE, _OWNER, _FRAGMENT, _FRAGMENT_ENTITY),
    {2: name_folder},
)

_NEXT_FRAGMENT: Final = "next fragment"
_CREATED_AT: Final = "created at"


class SqliteCatalog:
    """A Catalog in one file. See `postbus.store.ports.catalog` for what the methods promise.

    Its `now` is the time a new namespace was created.
    """

    def __init__(
        self,
        path: str,
        now: Instant,
        *,
        vfs: str | None = None,
        upgrade: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        """A file of an older format is upgraded, or may only be copied."""
        folder = new_folder_id()
        self._database = Database(path, CATALOG, vfs, folder=folder, reserve=reserve)
        if upgrade:
            self._database.upgrade(folder)
        with self._database.reading():
            created_at = self._database.get_meta(_CREATED_AT)
        if created_at is None:
            created_at = now
            with self._database.transaction():
                self._database.set_meta(_CREATED_AT, now)
                self._database.set_meta(_NEXT_FRAGMENT, 1)
        self.namespace_created_at: Instant = created_at
        self.subscriptions = SqliteSubscriptions(self._database)
        self.reader_offsets = SqliteReaderOffsets(self._database)
        self._deleted_prefixes = DeletedPrefixes(self._database)

    @property
    def file(self) -> Database:
        return self._database

    def entities(self) -> list[EntityRecord]:
        with self._database.reading():
            rows = self._database.run("SELECT * FROM entity ORDER BY key")
            return [self._record(row) for row in rows]

    def newest(self) -> Instant:
        with self._database.reading():
            [(updated_at,)] = self._database.run("SELECT max(updated_at) FROM entity")
            subscribed_at = self.subscriptions.newest()
        return max(self.namespace_created_at, updated_at or 0, subscribed_at)

    def create(
        self,
        name: str,
        kind: str,
        description: dict[str, Any],
        now: Instant,
        stores: Sequence[int],
    ) -> EntityRecord:
        key = key_of(name)
        with self._database.transaction():
            if self._database.run("SELECT 1 FROM entity WHERE key = ?", (key,)):
                raise EntityAlreadyExists(name)
            first = int(self._database.get_meta(_NEXT_FRAGMENT))
            most = journal.FRAGMENT_MAX
            if first + len(stores) - 1 > most:
                raise QuotaExceeded(
                    f"The namespace has had {most} fragments, and none is used twice."
                )
            self._database.set_meta(_NEXT_FRAGMENT, first + len(stores))
            self._database.run(
                "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?)",
                (key, name, kind, to_json(description), now, now),
            )
            self._deleted_prefixes.created(key)
            for place, store in enumerate(stores):
                self._database.run(
                    "INSERT INTO fragment VALUES (?, ?, ?, ?)", (first + place, key, place, store)
                )
            return self._find(name)

    def update(self, name: str, description: dict[str, Any], now: Instant) -> EntityRecord:
        with self._database.transaction():
            self._find(name)
            self._database.run(
                "UPDATE entity SET description = ?, updated_at = ? WHERE key = ?",
                (to_json(description), now, key_of(name)),
            )
            return self._find(name)

    def delete(self, name: str) -> EntityRecord:
        with self._database.transaction():
            record = self._find(name)
            self._database.run("DELETE FROM entity WHERE key = ?", (key_of(name),))
            self._deleted_prefixes.deleted(key_of(name))
            self.subscriptions.drop_topic(name)
            self._database.run(
                "UPDATE fragment SET entity = NULL WHERE entity = ?", (key_of(name),)
            )
            return record

    def deleted_prefixes(self) -> list[str]:
        with self._database.reading():
            return self._deleted_prefixes.all()

    def dropped(self) -> list[FragmentRecord]:
        with self._database.reading():
            return self._fragments("entity IS NULL", ())

    def forget(self, fragment: int) -> None:
        with self._database.transaction():
            self._database.run("DELETE FROM fragment WHERE id = ? AND entity IS NULL", (fragment,))

    def get(self, key: str) -> str | None:
        with self._database.reading():
            value = self._database.get_meta(f"value {key}")
        return None if value is None else str(value)

    def set(self, key: str, value: str) -> None:
        with self._database.transaction():
            self._database.set_meta(f"value {key}", value)

    def backup(self, target: str) -> None:
        for _ in self._database.backup_steps(target):
            pass

    def close(self) -> None:
        self._database.close()

    def _find(self, name: str) -> EntityRecord:
        rows = self._database.run("SELECT * FROM entity WHERE key = ?", (key_of(name),))
        if not rows:
            raise EntityNotFound(name)
        return self._record(rows[0])

    def _record(self, row: tuple[Any, ...]) -> EntityRecord:
        key, name, kind, description, created_at, updated_at = row
        fragments = tuple(self._fragments("entity = ?", (key,)))
        return EntityRecord(name, kind, json.loads(description), created_at, updated_at, fragments)

    def _fragments(self, condition: str, values: tuple[str, ...]) -> list[FragmentRecord]:
        rows = self._database.run(
            f"SELECT id, place, store FROM fragment WHERE {condition} ORDER BY entity, place, id",
            values,
        )
        return [FragmentRecord(*row) for row in rows]


def new_folder_id() -> str:
    return secrets.token_hex(16)

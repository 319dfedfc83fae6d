"""Which entities a namespace has, and in which store each of their fragments lives."""

import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postbus.errors import EntityAlreadyExists, EntityNotFound, QuotaExceeded
from postbus.model.times import Instant
from postbus.store.sqlite.database import MEMORY, Database, Layout, name_folder
from postbus.store.sqlite.deleted_prefixes import DeletedPrefixes
from postbus.store.sqlite.reader_offsets import ReaderOffsets
from postbus.store.sqlite.reserve import Reserve
from postbus.store.sqlite.schema import FRAGMENT_MAX
from postbus.store.sqlite.subscriptions import SubscriptionCatalog, key_of, to_json

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

# `owner` is the subscription's place in the fragment of its topic. It is never used twice there,
# for what a deleted subscription has left is found by it.
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

# A fragment whose entity is gone keeps its row, without an entity, until its store has dropped it.
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


@dataclass(frozen=True, slots=True)
class FragmentRecord:
    id: int
    """Never used twice: a new entity of an old name has new fragments."""
    index: int
    """Its place among the fragments of the entity."""
    store: int
    """The number of the store it lives in; decided when the entity is created."""


@dataclass(frozen=True, slots=True)
class EntityRecord:
    name: str
    """As it was given at creation; names compare without regard to case."""
    kind: str
    description: dict[str, Any]
    created_at: Instant
    updated_at: Instant
    fragments: tuple[FragmentRecord, ...]


class Catalog:
    """The list of entities, durable with every call. Without a path it lives in memory only.

    Its `now` is the time a new namespace was created.
    """

    def __init__(
        self,
        path: str | None,
        now: Instant,
        *,
        vfs: str | None = None,
        upgrade: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        """A file of an older format is upgraded, or may only be copied."""
        folder = new_folder_id()
        self._database = Database(path or MEMORY, CATALOG, vfs, folder=folder, reserve=reserve)
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
        self.subscriptions = SubscriptionCatalog(self._database)
        self.reader_marks = ReaderOffsets(self._database)
        self._former = DeletedPrefixes(self._database)

    @property
    def file(self) -> Database:
        return self._database

    def entities(self) -> list[EntityRecord]:
        """All of them, by name."""
        with self._database.reading():
            rows = self._database.run("SELECT * FROM entity ORDER BY key")
            return [self._record(row) for row in rows]

    def newest(self) -> Instant:
        """The latest change of an entity that is there; the namespace's own beginning at least."""
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
        """Add an entity with one new fragment in each of `stores`."""
        key = key_of(name)
        with self._database.transaction():
            if self._database.run("SELECT 1 FROM entity WHERE key = ?", (key,)):
                raise EntityAlreadyExists(name)
            first = int(self._database.get_meta(_NEXT_FRAGMENT))
            if first + len(stores) - 1 > FRAGMENT_MAX:
                raise QuotaExceeded(
                    f"The namespace has had {FRAGMENT_MAX} fragments, and none is used twice."
                )
            self._database.set_meta(_NEXT_FRAGMENT, first + len(stores))
            self._database.run(
                "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?)",
                (key, name, kind, to_json(description), now, now),
            )
            self._former.created(key)
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
        """Take the entity out; its fragments are listed as dropped from then on."""
        with self._database.transaction():
            record = self._find(name)
            self._database.run("DELETE FROM entity WHERE key = ?", (key_of(name),))
            self._former.deleted(key_of(name))
            self.subscriptions.drop_topic(name)
            self._database.run(
                "UPDATE fragment SET entity = NULL WHERE entity = ?", (key_of(name),)
            )
            return record

    def former(self) -> list[str]:
        """Names that are an entity's no longer, and the beginning of others."""
        with self._database.reading():
            return self._former.all()

    def dropped(self) -> list[FragmentRecord]:
        """Fragments of deleted entities that their stores may still hold."""
        with self._database.reading():
            return self._fragments("entity IS NULL", ())

    def forget(self, fragment: int) -> None:
        """The store has nothing of this dropped fragment any more."""
        with self._database.transaction():
            self._database.run("DELETE FROM fragment WHERE id = ? AND entity IS NULL", (fragment,))

    def get(self, key: str) -> str | None:
        """A small value kept with the namespace, such as its generated key."""
        with self._database.reading():
            value = self._database.get_meta(f"value {key}")
        return None if value is None else str(value)

    def set(self, key: str, value: str) -> None:
        with self._database.transaction():
            self._database.set_meta(f"value {key}", value)

    def backup_steps(self, target: str) -> Iterator[None]:
        return self._database.backup_steps(target)

    def backup(self, target: str) -> None:
        for _ in self.backup_steps(target):
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

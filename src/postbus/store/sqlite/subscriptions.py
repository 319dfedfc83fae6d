"""The subscriptions of topics and their rules, as the catalog keeps them."""

import json
from typing import Any

from postbus.errors import EntityAlreadyExists, EntityNotFound
from postbus.model.times import Instant
from postbus.store.ports.catalog import SubscriptionRecord, key_of, to_json
from postbus.store.sqlite.database import Database


class SqliteSubscriptions:
    """A SubscriptionCatalog in the catalog's file. See `postbus.store.ports.catalog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, topic: str) -> list[SubscriptionRecord]:
        with self._database.reading():
            rows = self._database.run(
                "SELECT * FROM subscription WHERE topic = ? ORDER BY key", (key_of(topic),)
            )
            return [self._record(row) for row in rows]

    def newest(self) -> Instant:
        """The latest change of a subscription that exists. Within a transaction of the caller."""
        [(updated_at,)] = self._database.run("SELECT max(updated_at) FROM subscription")
        return int(updated_at or 0)

    def create(
        self,
        topic: str,
        name: str,
        description: dict[str, Any],
        rules: dict[str, dict[str, Any]],
        now: Instant,
    ) -> SubscriptionRecord:
        key, under = key_of(name), key_of(topic)
        with self._database.transaction():
            if self._rows(under, key):
                raise EntityAlreadyExists(f"{topic}|{name}")
            next_owner = self._database.run("SELECT next FROM owner WHERE topic = ?", (under,))
            owner = int(next_owner[0][0]) if next_owner else 1
            self._database.run("INSERT OR REPLACE INTO owner VALUES (?, ?)", (under, owner + 1))
            self._database.run(
                "INSERT INTO subscription VALUES (?, ?, ?, ?, ?, ?, ?)",
                (under, key, owner, name, to_json(description), now, now),
            )
            for rule, content in rules.items():
                self._put_rule(under, owner, rule, content)
            return self._find(topic, name)

    def update(
        self, topic: str, name: str, description: dict[str, Any], now: Instant
    ) -> SubscriptionRecord:
        with self._database.transaction():
            self._find(topic, name)
            self._database.run(
                "UPDATE subscription SET description = ?, updated_at = ?"
                " WHERE topic = ? AND key = ?",
                (to_json(description), now, key_of(topic), key_of(name)),
            )
            return self._find(topic, name)

    def delete(self, topic: str, name: str) -> SubscriptionRecord:
        with self._database.transaction():
            record = self._find(topic, name)
            self._database.run(
                "DELETE FROM subscription WHERE topic = ? AND key = ?",
                (key_of(topic), key_of(name)),
            )
            self._database.run(
                "DELETE FROM rule WHERE topic = ? AND owner = ?", (key_of(topic), record.owner)
            )
            return record

    def put_rule(self, topic: str, owner: int, name: str, content: dict[str, Any]) -> None:
        with self._database.transaction():
            self._put_rule(key_of(topic), owner, name, content)

    def delete_rule(self, topic: str, owner: int, name: str) -> None:
        with self._database.transaction():
            self._database.run(
                "DELETE FROM rule WHERE topic = ? AND owner = ? AND key = ?",
                (key_of(topic), owner, key_of(name)),
            )

    def drop_topic(self, topic: str) -> None:
        """Remove all subscriptions of a topic. Within a transaction of the caller."""
        for table in ("subscription", "rule", "owner"):
            self._database.run(f"DELETE FROM {table} WHERE topic = ?", (key_of(topic),))

    def _put_rule(self, topic: str, owner: int, name: str, content: dict[str, Any]) -> None:
        self._database.run(
            "INSERT OR REPLACE INTO rule VALUES (?, ?, ?, ?)",
            (topic, owner, key_of(name), to_json(content)),
        )

    def _find(self, topic: str, name: str) -> SubscriptionRecord:
        rows = self._rows(key_of(topic), key_of(name))
        if not rows:
            raise EntityNotFound(f"{topic}/Subscriptions/{name}")
        return self._record(rows[0])

    def _rows(self, topic: str, key: str) -> list[tuple[Any, ...]]:
        return self._database.run(
            "SELECT * FROM subscription WHERE topic = ? AND key = ?", (topic, key)
        )

    def _record(self, row: tuple[Any, ...]) -> SubscriptionRecord:
        topic, _, owner, name, description, created_at, updated_at = row
        rules = self._database.run(
            "SELECT description FROM rule WHERE topic = ? AND owner = ? ORDER BY key",
            (topic, owner),
        )
        return SubscriptionRecord(
            topic,
            owner,
            name,
            json.loads(description),
            created_at,
            updated_at,
            tuple(json.loads(content) for (content,) in rules),
        )

"""The index in SQLite: the tables `message` and `duplicate`, and a fragment's checkpoint."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from postbus.model.index_rows import Checkpoint, Row, RowKey
from postbus.model.times import Instant
from postbus.store.sqlite import duplicates, rows
from postbus.store.sqlite.damage import check_numbers
from postbus.store.sqlite.database import Database

_CHECKPOINT: Final = "UPDATE fragment SET checkpoint = ?, state = ? WHERE id = ? AND epoch = ?"

_LANE: Final = rows.page_of("""
SELECT * FROM message WHERE fragment = ? AND subqueue = ? AND lane = ? AND number >= ?
ORDER BY number LIMIT ?""")
_DUE: Final = rows.page_of("""
SELECT * FROM message INDEXED BY message_due
WHERE fragment = ? AND subqueue = ? AND lane = ? AND wake_at <= ?
ORDER BY wake_at, number LIMIT ?""")
_GROUP: Final = rows.page_of("""
SELECT * FROM message INDEXED BY message_group
WHERE fragment = ? AND subqueue = ? AND lane = ? AND grp = ? AND number >= ?
ORDER BY number LIMIT ?""")
_NEXT_DUE: Final = """
SELECT min(wake_at) FROM message INDEXED BY message_due
WHERE fragment = ? AND subqueue = ? AND lane = ? AND wake_at > ?"""
_DROP_ROWS: Final = """
DELETE FROM message WHERE (fragment, subqueue, lane, number) IN
    (SELECT fragment, subqueue, lane, number FROM message WHERE fragment = ? LIMIT ?)"""


class SqliteIndex:
    """An Index in a store's file. See `postbus.store.ports.index` for what the methods promise.

    `apply` and `drop` are for the journal beside it, within a transaction of the caller.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def apply(self, fragment: int, epoch: int, checkpoint: Checkpoint) -> None:
        """Go on to a checkpoint."""
        offset, changed, removed, state, seen_ids = checkpoint
        self._database.run(_CHECKPOINT, (offset, state, fragment, epoch))
        rows.remove(self._database, fragment, removed)
        rows.put(self._database, fragment, changed)
        if seen_ids is not None:
            duplicates.put(self._database, fragment, seen_ids)

    def drop(self, fragment: int, limit: int) -> int:
        """Remove rows and ids of a fragment, at most `limit`; returns how many went."""
        self._database.run(_DROP_ROWS, (fragment, limit))
        dropped = self._database.changes()
        if dropped < limit:
            left = limit - dropped
            dropped += duplicates.drop(self._database, fragment, duplicates.PART_MAX, left)
        return dropped

    def load_lane(
        self, fragment: int, subqueue: int, lane: int, start: int, limit: int
    ) -> list[Row]:
        return self._page(_LANE, (fragment, subqueue, lane, start, limit))

    def load_due(
        self, fragment: int, subqueue: int, lane: int, until: int, limit: int
    ) -> list[Row]:
        return self._page(_DUE, (fragment, subqueue, lane, until, limit))

    def next_due(self, fragment: int, subqueue: int, lane: int, after: int) -> int | None:
        with self._database.reading():
            [(wake_at,)] = self._database.run(_NEXT_DUE, (fragment, subqueue, lane, after))
            if wake_at is None:
                return None
            check_numbers((wake_at,), "a row of the index")
        return int(wake_at)

    def load_group(
        self, fragment: int, subqueue: int, lane: int, group: bytes, start: int, limit: int
    ) -> list[Row]:
        return self._page(_GROUP, (fragment, subqueue, lane, group, start, limit))

    def load_groups(
        self, fragment: int, subqueue: int, lane: int, after: bytes | None, limit: int
    ) -> list[bytes]:
        with self._database.reading():
            return rows.groups(self._database, fragment, subqueue, lane, after, limit)

    def load_rows(self, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
        with self._database.reading():
            return rows.load(self._database, fragment, keys)

    def load_seen(
        self, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        with self._database.reading():
            return duplicates.find(self._database, fragment, parts, digests)

    def load_seen_digests(self, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
        with self._database.reading():
            return duplicates.load(self._database, fragment, part, after, limit)

    def drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        return self._database.with_reserve(partial(self._drop_seen, fragment, below, limit))

    def _drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        with self._database.transaction():
            return duplicates.drop(self._database, fragment, below, limit) < limit

    def _page(self, statement: str, values: tuple[int | bytes, ...]) -> list[Row]:
        with self._database.reading():
            return rows.find(self._database, statement, values)

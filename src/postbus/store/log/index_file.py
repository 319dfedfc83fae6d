"""The SQLite file beside a commit log: the index, and what is known of fragments and segments.

fragment   who may write, and where index and retention stand
message    the index as of each fragment's checkpoint, as in `postbus.store.sqlite.schema`
duplicate  ids that were seen as of that checkpoint
pinned     batches below a fragment's tail that live bodies hold in place
segment    sealed segments, and where each has its directory

It is never ahead of the log. A checkpoint may be lost in a power cut: then more is replayed. So a
checkpoint is not synced, and all that was not is synced with the next transaction that is.
"""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Final

from postbus.store.log.blocks import Place
from postbus.store.log.format import STORE_ID_SIZE
from postbus.store.log.recovery import SealedSegment
from postbus.store.sqlite.damage import Damaged, check_numbers
from postbus.store.sqlite.database import Database, Layout
from postbus.store.sqlite.schema import (
    DUPLICATE,
    MESSAGE,
    MESSAGE_BODY,
    MESSAGE_DUE,
    MESSAGE_GROUP,
)

FRAGMENT: Final = """
CREATE TABLE fragment (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    broker TEXT NOT NULL,
    checkpoint INTEGER NOT NULL,
    tail INTEGER NOT NULL,
    born INTEGER NOT NULL,
    state BLOB NOT NULL
)"""
PINNED: Final = """
CREATE TABLE pinned (
    fragment INTEGER NOT NULL,
    base INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    position INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (fragment, base)
) WITHOUT ROWID"""
SEGMENT: Final = """
CREATE TABLE segment (
    number INTEGER PRIMARY KEY,
    end INTEGER NOT NULL,
    end_sequence INTEGER NOT NULL
)"""
LOG_INDEX: Final = Layout(
    kind="log index",
    version=1,
    tables=(
        *(FRAGMENT, MESSAGE, MESSAGE_DUE, MESSAGE_GROUP, MESSAGE_BODY, DUPLICATE),
        *(PINNED, SEGMENT),
    ),
)
FILE: Final = "index.db"
_STORE_ID: Final = "store id"

# A page is one row: each step of a statement gives up the interpreter's lock and takes it again.
_PAGE: Final = """
SELECT json_group_array(json_array(base, count, at, segment, position, length))
FROM (SELECT * FROM pinned WHERE {})"""
_PINNED_FROM: Final = _PAGE.format("fragment = ? AND base >= ? ORDER BY base LIMIT ?")
_PINNED_AT: Final = _PAGE.format("fragment = ? AND base = ?")
_HOLDING: Final = _PAGE.format("fragment = ? AND base <= ? ORDER BY base DESC LIMIT 1")
_PIN: Final = """
INSERT INTO pinned (fragment, base, count, at, segment, position, length)
SELECT ?, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(?)"""
_UNPIN: Final = """
DELETE FROM pinned WHERE fragment = ? AND base IN (SELECT value FROM json_each(?))"""
_REMOVE_SEGMENT: Final = """
DELETE FROM segment WHERE number = ? AND number < (SELECT max(number) FROM segment)"""


def store_id(database: Database) -> bytes:
    """The id that every segment of this store has."""
    with database.transaction():
        found = database.get_meta(_STORE_ID)
        if found is None:
            found = os.urandom(STORE_ID_SIZE).hex()
            database.set_meta(_STORE_ID, found)
    return bytes.fromhex(str(found))


def sealed_segments(database: Database) -> dict[int, SealedSegment]:
    rows = database.run("SELECT number, end, end_sequence FROM segment")
    for row in rows:
        check_numbers(row, "a segment")
    return {number: SealedSegment(end, sequence) for number, end, sequence in rows}


def put_segment(database: Database, number: int, end: int, end_sequence: int) -> None:
    database.run(
        "INSERT OR REPLACE INTO segment (number, end, end_sequence) VALUES (?, ?, ?)",
        (number, end, end_sequence),
    )


def remove_segments(database: Database, numbers: Iterable[int]) -> None:
    """The last sealed segment stays known: the frames behind it go on at its sequence."""
    for number in numbers:
        database.run(_REMOVE_SEGMENT, (number,))


def pinned_from(database: Database, fragment: int, start: int, limit: int) -> list[Place]:
    """Pinned batches with base >= start, in order."""
    return _places(database, _PINNED_FROM, (fragment, start, limit))


def pinned_at(database: Database, fragment: int, base: int) -> Place | None:
    found = _places(database, _PINNED_AT, (fragment, base))
    return found[0] if found else None


def pinned_holding(database: Database, fragment: int, offset: int) -> Place | None:
    """The pinned batch that holds an offset."""
    for place in _places(database, _HOLDING, (fragment, offset)):
        return place if place.end > offset else None
    return None


def pinned_sizes(database: Database) -> dict[int, int]:
    """Bytes of the pinned batches in each segment."""
    rows = database.run("SELECT segment, sum(length) FROM pinned GROUP BY segment")
    for row in rows:
        check_numbers(row, "a pinned batch")
    return dict(rows)


def pin(database: Database, fragment: int, places: Sequence[Place]) -> None:
    if places:
        database.run(_PIN, (fragment, json.dumps(places)))


def unpin(database: Database, fragment: int, places: Sequence[Place]) -> None:
    if places:
        database.run(_UNPIN, (fragment, json.dumps([place.base for place in places])))


def _places(database: Database, statement: str, values: tuple[int, ...]) -> list[Place]:
    try:
        [(page,)] = database.run(statement, values)
    except Exception as error:
        if "JSON" in str(error):  # JSON cannot hold a blob, and no number is a blob
            raise Damaged("a pinned batch has a blob for a number") from error
        raise
    rows = json.loads(page)
    for row in rows:
        check_numbers(row, "a pinned batch")
    return [Place(*row) for row in rows]

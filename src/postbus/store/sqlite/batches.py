"""Record batches out of a store's file."""

from contextlib import closing
from typing import Final

from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import OFFSET_MAX
from postbus.store.sqlite.damage import check_batch, check_numbers
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.schema import first_id

_BATCH: Final = "SELECT count, data FROM journal WHERE id = ?"
_HOLDING: Final = """
SELECT id, count FROM journal WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"""
_SIZES: Final = "SELECT id, length(data) FROM journal WHERE id BETWEEN ? AND ? ORDER BY id"
_RANGE: Final = "SELECT id, count, data FROM journal WHERE id BETWEEN ? AND ? ORDER BY id"


def read(database: Database, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
    """Batches from the batch that holds an offset on: at least one, then as many as fit."""
    first = first_id(fragment)
    row_id = first + start
    for before, count in database.run(_HOLDING, (first, row_id)):
        check_numbers((count,), f"the batch at {before - first} of fragment {fragment}")
        if before + count > row_id:
            row_id = before
    last, room = -1, bytes_max
    # Sizes first: they are read without touching the batches that will not fit.
    with closing(database.scan(_SIZES, (row_id, first + OFFSET_MAX))) as sizes:
        for found, size in sizes:
            check_numbers((size,), f"the batch at {found - first} of fragment {fragment}")
            if last >= 0 and size > room:
                break
            last, room = found, room - size
    batches = database.run(_RANGE, (row_id, last))
    for found, count, data in batches:
        check_batch(fragment, found - first, count, data)
    return [StoredBatch(found - first, data) for found, _, data in batches]


def read_whole(database: Database, fragment: int, base: int) -> bytes | None:
    for count, data in database.run(_BATCH, (first_id(fragment) + base,)):
        check_batch(fragment, base, count, data)
        return bytes(data)
    return None


def read_slice(
    database: Database, fragment: int, base: int, position: int, length: int
) -> bytes | None:
    row_id = first_id(fragment) + base
    try:
        return database.read_blob("journal", "data", row_id, position, length)
    except ValueError:
        # Outside the batch: was it cut short by damage, or was the question wrong?
        read_whole(database, fragment, base)
        raise

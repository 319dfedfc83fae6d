"""Index rows in and out of SQLite, many for each statement.

Each step of a statement gives up the interpreter lock and takes it again, and taking it from a busy
event loop can cost 5 ms. 4,096 rows in as many steps then took 1 to 8 s, against 60 ms in eight
steps (10 ms when nothing else runs). So rows go in by several hundred, and a page comes out as a
single row that holds a list for each column.
"""

import json
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import apsw

from postbus.model.index_rows import Row, RowKey
from postbus.store.sqlite.damage import Damaged, check_numbers
from postbus.store.sqlite.database import Database, Rows, Values

_RUNS: Final = (512, 64, 8, 1)
"""Rows for each statement; few sizes, so that all of them stay prepared."""

_PUT: Final = {
    run: "INSERT OR REPLACE INTO message"
    " (fragment, subqueue, lane, number, wake_at, base, position, length, data, grp) VALUES "
    + ",".join(["(?,?,?,?,?,?,?,?,?,?)"] * run)
    for run in _RUNS
}

_PAGE: Final = """
SELECT json_group_array(subqueue), json_group_array(lane), json_group_array(number),
    json_group_array(wake_at), json_group_array(base), json_group_array(position),
    json_group_array(length), json_group_array(length(data)), min(typeof(data) = 'blob'),
    CAST(group_concat(data, '') AS BLOB), json_group_array(length(grp)),
    min(typeof(grp) IN ('blob', 'null')), CAST(group_concat(grp, '') AS BLOB)
FROM ({})"""

# Each step goes down the tree once, to the first row of the next group.
_GROUPS: Final = """
WITH RECURSIVE found (grp, left) AS (
    SELECT min(grp), ?4 FROM message INDEXED BY message_group
    WHERE fragment = ?1 AND subqueue = ?2 AND lane = ?3 AND {}
    UNION ALL
    SELECT (SELECT min(message.grp) FROM message INDEXED BY message_group
        WHERE fragment = ?1 AND subqueue = ?2 AND lane = ?3 AND message.grp > found.grp),
        found.left - 1
    FROM found WHERE found.grp IS NOT NULL AND found.left > 1
)
SELECT json_group_array(length(grp)), min(typeof(grp) = 'blob'),
    CAST(group_concat(grp, '') AS BLOB)
FROM found WHERE grp IS NOT NULL"""
_FIRST_GROUPS: Final = _GROUPS.format("grp IS NOT NULL")
_LATER_GROUPS: Final = _GROUPS.format("grp > ?5")

_OTHER_TYPE: Final = "a row of the index has a value of another type than was written"

_WAKE_AT: Final = Row._fields.index("wake_at")
"""The only column that may hold nothing."""

_KEYED: Final = """
fragment = ? AND subqueue = ? AND lane = ? AND number IN (SELECT value FROM carray(?))"""
_BY_KEY: Final = _PAGE.format(f"SELECT * FROM message WHERE {_KEYED}")
_REMOVE: Final = f"DELETE FROM message WHERE {_KEYED}"
# CROSS JOIN keeps the keys on the outside. Left to itself, SQLite walks through all of a fragment
# in the index by batch, because that index has every requested column.
_BASES: Final = """
SELECT json_group_array(DISTINCT base) FROM carray(?4) CROSS JOIN message
ON fragment = ?1 AND subqueue = ?2 AND lane = ?3 AND number = value AND +base < ?5"""


def page_of(select: str) -> str:
    """The statement that returns the rows `select` finds in message as one page, for `find`. An
    order in `select` holds only together with a limit."""
    return _PAGE.format(select)


def find(database: Database, statement: str, values: Values) -> list[Row]:
    """Run a statement of `page_of`; the rows in the order they were found."""
    [page] = _run(database, statement, values)
    return _unpage(page)


def _run(database: Database, statement: str, values: Values) -> Rows:
    try:
        return database.run(statement, values)
    except apsw.SQLError as error:
        if "JSON" in str(error):  # JSON cannot hold a blob, and no number is a blob
            raise Damaged("a row of the index has a blob for a number") from error
        raise


def _unpage(page: tuple[Any, ...]) -> list[Row]:
    *texts, sizes_text, blobs_only, data, group_sizes_text, groups_only, groups = page
    columns = list(map(json.loads, texts))
    sizes = json.loads(sizes_text)
    if not sizes:
        return []
    # The types of whole columns, not of their values: a page has thousands of these.
    kinds = [set(map(type, column)) for column in (*columns, sizes)]
    kinds[_WAKE_AT].discard(type(None))
    if not (blobs_only and groups_only) or any(kind - {int} for kind in kinds):
        raise Damaged(_OTHER_TYPE)
    blobs = _apart(data, sizes)
    if groups is None:
        return list(map(Row, *columns, blobs))
    return list(map(Row, *columns, blobs, _apart(groups, json.loads(group_sizes_text))))


def _apart(data: bytes, sizes: Sequence[int | None]) -> list[Any]:
    """The values that were concatenated; None for a value without a size."""
    ends = accumulate([size or 0 for size in sizes], initial=0)
    return [
        None if size is None else data[start:end]
        for size, (start, end) in zip(sizes, pairwise(ends), strict=True)
    ]


def groups(
    database: Database, fragment: int, subqueue: int, lane: int, after: bytes | None, limit: int
) -> list[bytes]:
    """The groups of a lane behind `after`, or from the first on."""
    if after is None:
        [page] = _run(database, _FIRST_GROUPS, (fragment, subqueue, lane, limit))
    else:
        [page] = _run(database, _LATER_GROUPS, (fragment, subqueue, lane, limit, after))
    sizes_text, blobs_only, data = page
    sizes = json.loads(sizes_text)
    if not sizes:
        return []
    if not blobs_only:
        raise Damaged(_OTHER_TYPE)
    return _apart(data, sizes)


def put(database: Database, fragment: int, rows: Sequence[Row]) -> None:
    """Insert the rows, or replace existing rows."""
    start = 0
    for run in _RUNS:
        while len(rows) - start >= run:
            part = rows[start : start + run]
            database.run(_PUT[run], list(chain.from_iterable([(fragment, *row) for row in part])))
            start += run


def remove(database: Database, fragment: int, keys: Iterable[RowKey]) -> None:
    for (subqueue, lane), numbers in _by_lane(keys).items():
        database.run(_REMOVE, (fragment, subqueue, lane, apsw.carray(numbers)))


def bases_of(database: Database, fragment: int, keys: Iterable[RowKey], below: int) -> list[int]:
    """The batches below an offset that hold the bodies of these rows."""
    bases: list[int] = []
    for (subqueue, lane), numbers in _by_lane(keys).items():
        values = (fragment, subqueue, lane, apsw.carray(numbers), below)
        [(found,)] = _run(database, _BASES, values)
        bases += json.loads(found)
    check_numbers(bases, "a row of the index")
    return bases


def load(database: Database, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
    """The rows that exist among `keys`, in the order asked."""
    found: dict[tuple[int, int, int], Row] = {}
    for (subqueue, lane), numbers in _by_lane(keys).items():
        values = (fragment, subqueue, lane, apsw.carray(numbers))
        found.update((row[:3], row) for row in find(database, _BY_KEY, values))
    return [found[key] for key in keys if key in found]


def _by_lane(keys: Iterable[RowKey]) -> dict[tuple[int, int], "array[int]"]:
    lanes: dict[tuple[int, int], array[int]] = {}
    for subqueue, lane, number in keys:
        numbers = lanes.get((subqueue, lane))
        if numbers is None:
            numbers = lanes[subqueue, lane] = array("q")
        numbers.append(number)
    return lanes

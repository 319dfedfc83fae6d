"""Ids that entities have seen, in SQLite: in with a checkpoint, out by whole parts.

A part is a range of the table's key. The ids of a checkpoint go into one part, in order, so that
they fall on its pages and on no others.
"""

import json
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import apsw

from postbus.model.index_rows import SeenIds
from postbus.model.times import Instant
from postbus.store.sqlite.damage import Damaged, check_numbers
from postbus.store.sqlite.database import Database

DIGEST_BYTES: Final = 16

_RUNS: Final = (512, 64, 8, 1)
"""Ids for each statement, as in `postbus.store.sqlite.rows`."""
_PUT: Final = {
    run: "INSERT OR REPLACE INTO duplicate (fragment, part, digest, at) VALUES "
    + ",".join(["(?1,?2,?,?)"] * run)
    for run in _RUNS
}
# CROSS JOIN keeps the requested digests on the outside: each is a single step down the tree.
_FIND: Final = """
SELECT json_group_array(duplicate.at), min(typeof(digest) = 'blob'),
    CAST(group_concat(digest, '') AS BLOB)
FROM carray(?2) AS parts CROSS JOIN carray(?3) AS digests CROSS JOIN duplicate
ON fragment = ?1 AND part = parts.value AND digest = digests.value"""
_SLICE: Final = """
SELECT count(*), min(typeof(digest) = 'blob'), CAST(group_concat(digest, '') AS BLOB)
FROM (SELECT digest FROM duplicate WHERE fragment = ? AND part = ? AND digest > ?
    ORDER BY digest LIMIT ?)"""
_DROP: Final = """
DELETE FROM duplicate WHERE (fragment, part, digest) IN
    (SELECT fragment, part, digest FROM duplicate WHERE fragment = ? AND part < ? LIMIT ?)"""

PART_MAX: Final = (1 << 63) - 1


def put(database: Database, fragment: int, seen: SeenIds) -> None:
    pairs = sorted(zip(seen.digests, seen.times, strict=True))
    start = 0
    for run in _RUNS:
        while len(pairs) - start >= run:
            part = pairs[start : start + run]
            database.run(_PUT[run], (fragment, seen.part, *chain.from_iterable(part)))
            start += run


def find(
    database: Database, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
) -> dict[bytes, Instant]:
    """When each of these ids was last seen; unseen ids are left out."""
    if not parts or not digests:
        return {}
    # In order, so that neighbours are found on the same page.
    ordered = tuple(sorted(digests))
    values = (fragment, apsw.carray(array("q", parts)), apsw.carray(ordered))
    [(times_text, blobs_only, data)] = database.run(_FIND, values)
    times = json.loads(times_text)
    check_numbers(times, "the history of ids")
    found: dict[bytes, Instant] = {}
    for digest, at in zip(_apart(len(times), blobs_only, data), times, strict=True):
        found[digest] = max(at, found.get(digest, at))
    return found


def load(database: Database, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
    """The digests of a part behind `after`, in order."""
    [(count, blobs_only, data)] = database.run(_SLICE, (fragment, part, after, limit))
    return _apart(count, blobs_only, data)


def _apart(count: int, blobs_only: Any, data: Any) -> list[bytes]:
    if not count:
        return []
    if not blobs_only or len(data) != count * DIGEST_BYTES:
        raise Damaged("the history of ids has something else than digests")
    return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]


def drop(database: Database, fragment: int, below: int, limit: int) -> int:
    """Remove ids of parts with numbers below `below`; returns how many went."""
    database.run(_DROP, (fragment, below, limit))
    return database.changes()

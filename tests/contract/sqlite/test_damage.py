"""A file whose pages are pages and whose values are not what was written: the store says so.

Each case damages one value behind the store's back and names the readings that meet it. None may
end in anything but StoreFailed, and after it the store refuses everything.
"""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from postbus.errors import StoreFailed
from postbus.model.index_rows import RowKey, SeenIds
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer, change

ALL = 1 << 60
DIGEST = b"sixteen bytes ok"
BATCH = 1 << 40
"""Row id of the first batch of fragment 1."""

Reading = Callable[[SqliteStore], Any]
READINGS: dict[str, Reading] = {
    "acquire": lambda store: store.acquire(1, "broker-b", 0),
    "standing": lambda store: store.position(1),
    "newest": lambda store: store.newest(),
    "read": lambda store: store.read(1, 0, ALL),
    "read_within": lambda store: store.read(1, 1, ALL),
    "read_batch": lambda store: store.read_batch(1, 0),
    "read_slice": lambda store: store.read_slice(1, 0, 56, 10),
    "load_lane": lambda store: store.index.load_lane(1, 0, 0, 0, 10),
    "load_due": lambda store: store.index.load_due(1, 0, 0, T0 + 99, 10),
    "next_due": lambda store: store.index.next_due(1, 0, 0, 0),
    "load_rows": lambda store: store.index.load_rows(1, [RowKey(0, 0, 1)]),
    "load_pinned": lambda store: store.load_pinned(1, 9, 1.0, 10),
    "load_seen": lambda store: store.index.load_seen(1, [1], [DIGEST]),
    "load_seen_digests": lambda store: store.index.load_seen_digests(1, 1, b"", 10),
    "tail": lambda store: store.tail(1),
    "trim": lambda store: store.trim(1, T0 + 99, 0, 10),
    "drop": lambda store: store.drop(1, 100),
}


class Damage(NamedTuple):
    change: str
    values: tuple[Any, ...]
    said: str
    readings: str


def journal(column: str) -> str:
    return f"UPDATE journal SET {column} = ? WHERE id = {BATCH}"


def last(column: str) -> str:
    return f"UPDATE journal SET {column} = ? WHERE id = (SELECT max(id) FROM journal)"


def row(column: str) -> str:
    return f"UPDATE message SET {column} = ? WHERE number = 1"


FRAGMENT = "UPDATE fragment SET {} = ?"
WHOLE = "read read_batch"
PAGES = "load_lane load_rows load_pinned"
OTHER_TYPE = "a row of the index has a value of another type than was written"
TEXT_FOR_NUMBER = "has a value of type str for a number"
NOTHING = "has nothing for a number"

CASES = {
    "a batch cut short": Damage(
        "UPDATE journal SET data = substr(data, 1, 60)", (), "8 are there", WHOLE
    ),
    "a batch cut short, read in part": Damage(
        "UPDATE journal SET data = substr(data, 1, 60)", (), "8 are there", "read_slice"
    ),
    "a batch shorter than its header": Damage(
        journal("data"), (b"PBRB",), "4 bytes is shorter than its header", f"{WHOLE} read_slice"
    ),
    "a batch of nothing": Damage(journal("data"), (None,), "at 0 of fragment 1 has nothing", WHOLE),
    "a batch of nothing, read in part": Damage(
        journal("data"), (None,), "in journal: cannot open value of type null", "read_slice"
    ),
    "a batch that is a number": Damage(
        journal("data"), (7,), "at 0 of fragment 1 has a value of type int for its bytes", WHOLE
    ),
    "a batch that is text": Damage(
        journal("data"), ("x" * 99,), "has a value of type str for its bytes", WHOLE
    ),
    "a batch of a later format": Damage(
        "UPDATE journal SET data = CAST(substr(data, 1, 4) || x'00000003' || substr(data, 9)"
        " AS BLOB)",
        (),
        "format 3, known is 2",
        WHOLE,
    ),
    "a batch that was changed": Damage(
        "UPDATE journal SET data = CAST(substr(data, 1, 60) || 'X' || substr(data, 62) AS BLOB)",
        (),
        "fails its checksum",
        WHOLE,
    ),
    "a batch of another place": Damage(
        f"UPDATE journal SET data = (SELECT data FROM journal WHERE id = {BATCH + 3})"
        f" WHERE id = {BATCH}",
        (),
        "at 0 of fragment 1 was written as the one at 3 of fragment 1",
        WHOLE,
    ),
    "a batch without a count": Damage(journal("count"), (None,), NOTHING, "read_within trim"),
    "a batch with text for a count": Damage(
        last("count"), ("x",), TEXT_FOR_NUMBER, "acquire standing"
    ),
    "a batch with another count": Damage(journal("count"), (4,), "has 3 records, not 4", WHOLE),
    "a batch with text for a time": Damage(last("at"), ("x",), TEXT_FOR_NUMBER, "newest"),
    "a batch with no total": Damage(last("total"), (None,), NOTHING, "acquire trim"),
    "a batch without a size": Damage(journal("data"), (None,), NOTHING, "trim load_pinned drop"),
    "no batch for a row": Damage(
        f"DELETE FROM journal WHERE id = {BATCH}",
        (),
        "a batch that the index points to has nothing",
        "load_pinned",
    ),
    "a row without bytes": Damage(row("data"), (None,), OTHER_TYPE, PAGES),
    "a row that is a number": Damage(row("data"), (7,), OTHER_TYPE, PAGES),
    "a row that is text": Damage(row("data"), ("seven",), OTHER_TYPE, f"{PAGES} load_due"),
    "a row with text for a number": Damage(row("position"), ("x",), OTHER_TYPE, PAGES),
    "a row with a fraction for a number": Damage(
        row("length"), (0.5,), OTHER_TYPE, "load_lane load_rows"
    ),
    "a row with nothing for a number": Damage(row("length"), (None,), OTHER_TYPE, "load_lane"),
    "a row with a blob for a number": Damage(
        row("position"), (b"\xff\xff",), "a row of the index has a blob for a number", PAGES
    ),
    "a row that wakes at a text": Damage(
        "UPDATE message SET wake_at = ?", ("x",), TEXT_FOR_NUMBER, "next_due"
    ),
    "a fragment without an epoch": Damage(FRAGMENT.format("epoch"), (None,), NOTHING, "acquire"),
    "a fragment with text for an epoch": Damage(
        FRAGMENT.format("epoch"), ("x",), TEXT_FOR_NUMBER, "acquire"
    ),
    "a fragment with text for a checkpoint": Damage(
        FRAGMENT.format("checkpoint"), ("x",), TEXT_FOR_NUMBER, "acquire standing trim"
    ),
    "a fragment without a tail": Damage(FRAGMENT.format("tail"), (None,), NOTHING, "tail trim"),
    "a fragment without a state": Damage(
        FRAGMENT.format("state"), (None,), "the state of fragment 1 has nothing", "acquire standing"
    ),
    "a fragment with a state that is text": Damage(
        FRAGMENT.format("state"), ("x",), "the state of fragment 1 has a value of type", "acquire"
    ),
    "an id with text for a time": Damage(
        "UPDATE duplicate SET at = ?", ("x",), TEXT_FOR_NUMBER, "load_seen"
    ),
    "an id without a time": Damage("UPDATE duplicate SET at = ?", (None,), NOTHING, "load_seen"),
    "an id that is too short": Damage(
        "UPDATE duplicate SET digest = ?",
        (b"short",),
        "something else than digests",
        "load_seen_digests",
    ),
    "a time that is text": Damage(
        "UPDATE meta SET value = ? WHERE key = 'newest checkpoint'",
        ("x",),
        TEXT_FOR_NUMBER,
        "newest",
    ),
}


def filled(path: str) -> None:
    with closing(SqliteStore(path)) as store:
        writer = Writer(store)
        rows = writer.send(b"one", b"two", b"three")
        rows += writer.send(b"four")
        writer.checkpoint([row._replace(wake_at=T0 + row.number) for row in rows])
        seen = SeenIds(1, [DIGEST], [T0])
        writer.send(checkpoint=change(writer.head)._replace(seen=seen))
        writer.send(b"five")


def damage(path: str, change: str, values: tuple[Any, ...]) -> None:
    """The tables lose their constraints first, which rot does not ask either."""
    with closing(apsw.Connection(path)) as file:
        file.execute("PRAGMA writable_schema = ON")
        file.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE type = 'table'"
        )
    with closing(apsw.Connection(path)) as file:
        file.execute(change, values)
        assert file.changes()


@pytest.mark.parametrize(
    ("case", "reading"),
    [(case, reading) for case, each in CASES.items() for reading in each.readings.split()],
)
def test_what_is_damaged_is_not_read(tmp_path: Path, case: str, reading: str) -> None:
    path = str(tmp_path / "store.db")
    filled(path)
    with closing(SqliteStore(path)) as store:
        READINGS[reading](store)  # sound so far

    filled(path := str(tmp_path / "other.db"))
    damage(path, CASES[case].change, CASES[case].values)
    with closing(SqliteStore(path)) as store:
        text = rf"^other\.db is damaged and is stopped: .*{CASES[case].said}"
        with pytest.raises(StoreFailed, match=text) as found:
            READINGS[reading](store)
        with pytest.raises(StoreFailed, match=re.escape(str(found.value))):
            store.probe(T0)


def test_a_slice_outside_a_sound_batch_is_the_callers_fault(tmp_path: Path) -> None:
    filled(path := str(tmp_path / "store.db"))
    with closing(SqliteStore(path)) as store:
        with pytest.raises(ValueError, match="outside a blob"):
            store.read_slice(1, 0, 60, 3_000)
        assert store.read_slice(1, 0, 60, 3) is not None

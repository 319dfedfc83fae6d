"""Rows by their session, and sessions by their ids, in every store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postbus.errors import StoreFailed
from postbus.store.sqlite.store import SqliteStore
from tests.contract.index.test_groups import indexed

ODD = [b"", b"\x00", b"\x00\x00", b",'\"]", "Zoë".encode(), b"a", b"ab", b"b", b"\xff\xfe"]


@pytest.mark.parametrize("per_group", [1, 200])
def test_the_next_group_takes_as_long_however_many_rows_this_one_has(
    tmp_path: Path, per_group: int
) -> None:
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        indexed(store, *[b"%04d" % n for n in range(40) for _ in range(per_group)])
        counted = 0

        def count() -> bool:
            nonlocal counted
            counted += 100
            return False

        connection = store._database._connection
        connection.set_progress_handler(count, 100)
        assert len(store.index.load_groups(1, 0, 0, None, 40)) == 40
        connection.set_progress_handler(None)
        assert counted <= 4_000


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.index.load_lane(1, 0, 0, 0, 9),
        lambda store: store.index.load_groups(1, 0, 0, None, 9),
    ],
    ids=["load_lane", "load_groups"],
)
def test_a_group_that_is_no_blob_is_found_out(
    tmp_path: Path, read: Callable[[SqliteStore], object]
) -> None:
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        indexed(store, b"a", b"b")
        store._database._connection.execute("UPDATE message SET grp = 'text' WHERE number = 1")
        with pytest.raises(StoreFailed, match="another type than was written"):
            read(store)

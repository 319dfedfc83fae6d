"""Rows by their session, and sessions by their ids, in every store."""

from __future__ import annotations

from postbus.model.index_rows import Row
from postbus.store.ports.store import Store
from tests.contract.fragments import Writer

ODD = [b"", b"\x00", b"\x00\x00", b",'\"]", "Zoë".encode(), b"a", b"ab", b"b", b"\xff\xfe"]


def indexed(store: Store, *groups: bytes | None) -> list[Row]:
    """One message for each session named, all in the index."""
    writer = Writer(store)
    rows = writer.send(*[b"body %d" % i for i in range(len(groups))])
    rows = [row._replace(group=group) for row, group in zip(rows, groups, strict=True)]
    writer.checkpoint(rows)
    return rows


def test_the_rows_of_a_group_come_in_order_of_number(store: Store) -> None:
    rows = indexed(store, b"a", b"b", None, b"a", b"", b"a", b"b", b"a")

    assert store.index.load_group(1, 0, 0, b"a", 0, 10) == [rows[0], rows[3], rows[5], rows[7]]
    assert store.index.load_group(1, 0, 0, b"a", 1, 2) == [rows[3], rows[5]]
    assert store.index.load_group(1, 0, 0, b"", 0, 10) == [rows[4]]
    assert store.index.load_group(1, 0, 0, b"c", 0, 10) == []
    assert store.index.load_group(1, 0, 1, b"a", 0, 10) == []
    assert store.index.load_group(2, 0, 0, b"a", 0, 10) == []


def test_a_row_brings_its_group_whichever_way_it_is_found(store: Store) -> None:
    rows = indexed(store, b"", None, b"\x00\xff")

    assert store.index.load_lane(1, 0, 0, 0, 10) == rows
    assert store.index.load_lane(1, 0, 0, 1, 1) == [rows[1]]
    assert store.load_pinned(1, 99, 1.0, 10) == rows


def test_groups_are_listed_once_each_in_order_of_their_bytes(store: Store) -> None:
    indexed(store, *reversed(ODD), None, *ODD)

    assert store.index.load_groups(1, 0, 0, None, 99) == sorted(ODD)
    assert store.index.load_groups(1, 0, 0, b"", 99) == sorted(ODD)[1:]
    assert store.index.load_groups(1, 0, 0, b"a", 2) == [b"ab", b"b"]
    assert store.index.load_groups(1, 0, 0, b"aa", 1) == [b"ab"]
    assert store.index.load_groups(1, 0, 0, b"\xff\xfe", 9) == []
    assert store.index.load_groups(1, 0, 1, None, 9) == []


def test_groups_are_paged_by_the_last_one_seen(store: Store) -> None:
    ids = sorted(b"%d" % n for n in range(100))
    indexed(store, *ids)

    seen: list[bytes] = []
    while page := store.index.load_groups(1, 0, 0, seen[-1] if seen else None, 7):
        assert len(page) <= 7
        seen += page

    assert seen == ids


def test_a_group_is_gone_with_its_last_row(store: Store) -> None:
    writer = Writer(store)
    a, b, c = [
        row._replace(group=group)
        for row, group in zip(writer.send(b"1", b"2", b"3"), (b"x", b"x", b"y"), strict=True)
    ]
    writer.checkpoint([a, b, c])

    writer.checkpoint(removed=[a])
    assert store.index.load_groups(1, 0, 0, None, 9) == [b"x", b"y"]

    writer.checkpoint([b._replace(group=None)])
    assert store.index.load_groups(1, 0, 0, None, 9) == [b"y"]

    writer.checkpoint([c._replace(lane=1)], [c])
    assert store.index.load_groups(1, 0, 0, None, 9) == []
    assert store.index.load_groups(1, 0, 1, None, 9) == [b"y"]

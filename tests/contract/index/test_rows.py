"""Rows of the index, found by number, by time and by key."""

from postbus.model.index_rows import Row, RowKey
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer, key_of


def indexed(store: Store, *wake_at: int | None) -> list[Row]:
    """One message for each time it wants to be looked at, all in the index."""
    writer = Writer(store)
    rows = writer.send(*[b"body %d" % i for i in range(len(wake_at))])
    rows = [row._replace(wake_at=at) for row, at in zip(rows, wake_at, strict=True)]
    writer.checkpoint(rows)
    return rows


def test_a_lane_is_paged_in_order_of_number(store: Store) -> None:
    rows = indexed(store, *[None] * 10)

    assert store.index.load_lane(1, 0, 0, 0, 4) == rows[:4]
    assert store.index.load_lane(1, 0, 0, 4, 4) == rows[4:8]
    assert store.index.load_lane(1, 0, 0, 8, 4) == rows[8:]
    assert store.index.load_lane(1, 0, 0, 10, 4) == []


def test_rows_written_out_of_order_are_paged_in_order(store: Store) -> None:
    writer = Writer(store)
    rows = writer.send(*[b"body %d" % i for i in range(9)])
    writer.checkpoint([rows[7], rows[2], rows[5]])
    writer.checkpoint([rows[8], rows[0], rows[3], rows[6]], [rows[5]])

    assert [row.number for row in store.index.load_lane(1, 0, 0, 0, 99)] == [0, 2, 3, 6, 7, 8]


def test_row_data_may_be_any_bytes(store: Store) -> None:
    writer = Writer(store)
    rows = writer.send(b"a", b"b", b"c", b"d")
    odd = [b"", b"\x00", bytes(range(256)) * 20, b"\xff\xfe,'\"]"]
    rows = [row._replace(data=data) for row, data in zip(rows, odd, strict=True)]
    writer.checkpoint(rows)

    assert store.index.load_lane(1, 0, 0, 0, 10) == rows
    assert store.index.load_rows(1, [key_of(rows[2])]) == [rows[2]]


def test_numbers_may_use_all_63_bits(store: Store) -> None:
    writer = Writer(store)
    (row,) = writer.send(b"a")
    row = row._replace(number=(1 << 63) - 1, wake_at=(1 << 62) + 1)
    writer.checkpoint([row])

    assert store.index.load_lane(1, 0, 0, row.number, 1) == [row]
    assert store.index.load_due(1, 0, 0, (1 << 62) + 1, 1) == [row]
    assert store.index.next_due(1, 0, 0, 0) == (1 << 62) + 1


def test_due_rows_come_in_order_of_time_then_number(store: Store) -> None:
    a, b, c, _never, d = indexed(store, T0 + 5, T0, T0 + 5, None, T0 + 6)

    assert store.index.load_due(1, 0, 0, T0 + 5, 10) == [b, a, c]
    assert store.index.load_due(1, 0, 0, T0 + 5, 2) == [b, a]
    assert store.index.load_due(1, 0, 0, T0 - 1, 10) == []
    assert store.index.load_due(1, 0, 0, T0 + 6, 10) == [b, a, c, d]


def test_the_next_due_time_lies_after_the_one_given(store: Store) -> None:
    indexed(store, T0 + 5, None, T0, T0 + 9)

    assert store.index.next_due(1, 0, 0, 0) == T0
    assert store.index.next_due(1, 0, 0, T0) == T0 + 5
    assert store.index.next_due(1, 0, 0, T0 + 5) == T0 + 9
    assert store.index.next_due(1, 0, 0, T0 + 9) is None
    assert store.index.next_due(1, 0, 1, 0) is None


def test_a_row_that_is_no_longer_due_leaves_the_order_of_time(store: Store) -> None:
    writer = Writer(store)
    a, b = writer.send(b"a", b"b")
    writer.checkpoint([a._replace(wake_at=T0), b._replace(wake_at=T0)])

    writer.checkpoint([a._replace(wake_at=None), b._replace(wake_at=T0 + 9)])

    assert store.index.load_due(1, 0, 0, T0, 10) == []
    assert store.index.next_due(1, 0, 0, 0) == T0 + 9


def test_rows_by_key_come_in_the_order_asked_without_those_missing(store: Store) -> None:
    writer = Writer(store)
    rows = writer.send(b"a", b"b", b"c")
    rows[2] = rows[2]._replace(subqueue=1, lane=2)
    writer.checkpoint(rows)

    keys = [key_of(rows[2]), RowKey(0, 0, 77), key_of(rows[1]), RowKey(5, 5, 5), key_of(rows[0])]

    assert store.index.load_rows(1, keys) == [rows[2], rows[1], rows[0]]
    assert store.index.load_rows(1, []) == []

"""The index goes from checkpoint to checkpoint."""

from postbus.model.index_rows import RowKey
from postbus.store.ports.journal import FragmentPosition
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer, change, key_of


def test_a_checkpoint_replaces_moves_and_removes_rows(store: Store) -> None:
    writer = Writer(store)
    kept, replaced, moved, gone = writer.send(b"a", b"b", b"c", b"d")
    writer.checkpoint([kept, replaced, moved, gone])

    new = replaced._replace(data=b"second delivery", wake_at=T0)
    there = moved._replace(subqueue=1, lane=3)
    writer.checkpoint([new, there], [moved, gone])

    assert store.index.load_lane(1, 0, 0, 0, 10) == [kept, new]
    assert store.index.load_lane(1, 1, 3, 0, 10) == [there]
    assert store.index.load_due(1, 0, 0, T0, 10) == [new]


def test_removing_a_row_that_never_was_in_the_index_does_nothing(store: Store) -> None:
    # A message that came and went between two checkpoints is removed all the same: the engine
    # cannot know whether an earlier checkpoint had it.
    writer = Writer(store)
    (row,) = writer.send(b"brief")

    writer.checkpoint([], [row])

    assert store.index.load_lane(1, 0, 0, 0, 10) == []


def test_a_large_checkpoint_is_written_whole(store: Store) -> None:
    writer = Writer(store)
    rows = writer.send(*[b"%d" % i for i in range(1_234)])
    rows = [row._replace(wake_at=T0 - row.number if row.number % 3 else None) for row in rows]

    writer.checkpoint(rows)
    assert store.index.load_lane(1, 0, 0, 0, 5_000) == rows

    writer.checkpoint([], rows[1:-1])
    assert store.index.load_lane(1, 0, 0, 0, 5_000) == [rows[0], rows[-1]]


def test_keys_are_told_apart_by_every_part(store: Store) -> None:
    writer = Writer(store)
    (row,) = writer.send(b"one")
    rows = [row._replace(subqueue=s, lane=n, data=b"%d%d" % (s, n)) for s in (0, 1) for n in (0, 1)]
    writer.checkpoint(rows)

    writer.checkpoint([], [rows[2]])

    assert store.index.load_rows(1, [key_of(r) for r in rows]) == [rows[0], rows[1], rows[3]]


def test_an_unknown_fragment_has_an_empty_index(store: Store) -> None:
    assert store.index.load_lane(9, 0, 0, 0, 10) == []
    assert store.index.load_due(9, 0, 0, T0, 10) == []
    assert store.index.next_due(9, 0, 0, 0) is None
    assert store.index.load_group(9, 0, 0, b"", 0, 10) == []
    assert store.index.load_groups(9, 0, 0, None, 10) == []
    assert store.index.load_rows(9, [RowKey(0, 0, 1)]) == []
    assert store.index.load_seen(9, [1], [bytes(16)]) == {}
    assert store.index.load_seen_digests(9, 1, b"", 10) == []
    assert store.index.drop_seen(9, 5, 10)


def test_a_checkpoint_is_seen_as_soon_as_its_commit_returns(store: Store) -> None:
    # It may become durable later, but the engine has let go of what it says.
    writer = Writer(store)
    for number in range(20):
        (row,) = writer.part(b"body")[1]
        writer.send(b"body", checkpoint=change(number + 1, [row]))
        assert store.index.load_lane(1, 0, 0, number, 10) == [row]


def test_the_index_is_never_ahead_of_the_journal(store: Store) -> None:
    # A fenced part leaves no trace in either, a repeated part is applied once.
    writer = Writer(store)
    rows = writer.send(b"one", b"two")
    part = writer.part(b"three", checkpoint=change(3, rows, state=b"three"))[0]
    late = writer.part(b"late", checkpoint=change(3, [], rows, state=b"late"))[0]
    assert store.commit([part]) == {1}
    assert store.commit([part]) == {1}
    Writer(store)

    assert store.commit([late]) == set()

    assert store.position(1) == FragmentPosition(3, 3, b"three")
    assert store.index.load_lane(1, 0, 0, 0, 10) == rows

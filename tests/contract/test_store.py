"""Commits, leases and checkpoints: what every store promises."""

import pytest

from postbus.store import batch
from postbus.store.ports import FragmentPosition, MessageStore, Part, Row, RowKey
from tests.contract.fragments import T0, Writer, body_of, change, dump, key_of


def test_a_new_fragment_is_empty_and_starts_at_offset_zero(store: MessageStore) -> None:
    lease = store.acquire(7, "broker-a", 0)

    assert (lease.fragment, lease.head, lease.checkpoint, lease.state) == (7, 0, 0, b"")
    assert lease.epoch > 0
    assert store.read(7, 0, 1_000) == []
    assert store.tail(7) == 0


def test_what_was_committed_is_read_back_as_it_was(store: MessageStore) -> None:
    # given two commits of one and of three records
    writer = Writer(store)
    first = writer.send(b"one")
    second = writer.send(b"two", b"three", b"")

    # then both batches are whole and each body is found by its place
    batches = store.read(1, 0, 1_000_000)
    assert [b.base for b in batches] == [0, 1]
    assert [batch.unpack(b.data).record_count for b in batches] == [1, 3]
    assert [body_of(store, 1, row) for row in first + second] == [b"one", b"two", b"three", b""]
    assert store.read_batch(1, 1) == batches[1].data
    assert store.acquire(1, "broker-a", 0).head == 4


def test_fragments_of_one_commit_are_kept_apart(store: MessageStore) -> None:
    a, b = Writer(store, 1), Writer(store, 2)

    passed = store.commit([a.part(b"for a")[0], b.part(b"for b", b"again")[0]])

    assert passed == {1, 2}
    assert dump(store, 1).head == 1
    assert dump(store, 2).head == 2
    assert [r for _, r in batch.records(store.read(2, 0, 1_000)[0].data)] == [b"for b", b"again"]


def test_a_commit_may_have_more_fragments_than_one_statement_takes(store: MessageStore) -> None:
    writers = [Writer(store, fragment) for fragment in range(40)]

    passed = store.commit([w.part(b"body %d" % w.fragment)[0] for w in writers])

    assert passed == set(range(40))
    assert all(body_of(store, f, Row(0, 0, 0, None, 0, 56, 6, b"")) for f in range(40))


def test_an_earlier_lease_writes_nothing_once_the_fragment_was_taken_over(
    store: MessageStore,
) -> None:
    # given a broker that was replaced, and another fragment that was not
    late = Writer(store, 1)
    other = Writer(store, 2)
    late.send(b"in time")
    taken = Writer(store, 1)
    assert taken.lease.epoch > late.lease.epoch
    assert taken.lease.head == 1

    # when it commits, also with a checkpoint
    row = late.part(b"late")[1][0]
    late_part = late.part(b"late", checkpoint=change(2, [row], state=b"late"))[0]
    passed = store.commit([late_part, other.part(b"other")[0]])

    # then only the other fragment passed, and of the late one there is no trace
    assert passed == {2}
    assert store.commit([late.part(b"late")[0]]) == set()
    assert store.commit([late.part(checkpoint=change(1, state=b"late"))[0]]) == set()
    kept = dump(store, 1)
    assert (kept.head, kept.checkpoint, kept.state, kept.rows) == (1, 0, b"", [])


def test_a_new_epoch_is_greater_than_any_seen(store: MessageStore) -> None:
    assert store.acquire(1, "broker-a", 41).epoch == 42
    assert store.acquire(1, "broker-b", 7).epoch == 43
    assert store.acquire(1, "broker-b", 99).epoch == 100


def test_a_released_lease_is_over(store: MessageStore) -> None:
    writer = Writer(store)
    writer.send(b"one")

    store.release(writer.lease)

    assert store.commit([writer.part(b"two")[0]]) == set()
    assert store.acquire(1, "broker-b", 0).head == 1


def test_releasing_a_lease_that_was_taken_over_does_not_touch_its_successor(
    store: MessageStore,
) -> None:
    late = Writer(store)
    taken = Writer(store)

    store.release(late.lease)

    taken.send(b"still mine")


def test_a_commit_whose_answer_was_lost_can_be_repeated(store: MessageStore) -> None:
    # given a commit with a checkpoint, and one more after it
    writer = Writer(store)
    row = writer.part(b"one")[1][0]
    first = writer.part(b"one", checkpoint=change(1, [row]))[0]
    assert store.commit([first]) == {1}
    writer.head = 1
    second = writer.part(b"two")[0]
    assert store.commit([second]) == {1}
    before = store.read(1, 0, 1_000_000), store.load_lane(1, 0, 0, 0, 10)

    # when both are sent again
    # then they pass, and nothing is there twice
    assert store.commit([second]) == {1}
    assert store.commit([first]) == {1}
    assert (store.read(1, 0, 1_000_000), store.load_lane(1, 0, 0, 0, 10)) == before
    writer.head = 2
    writer.send(b"three")


def test_other_bytes_at_a_written_offset_are_refused(store: MessageStore) -> None:
    writer = Writer(store)
    writer.send(b"one")
    writer.head = 0

    with pytest.raises(ValueError, match="at offset 1, not at 0"):
        store.commit([writer.part(b"other")[0]])


def test_a_gap_in_the_offsets_is_refused_and_nothing_is_written(store: MessageStore) -> None:
    a, b = Writer(store, 1), Writer(store, 2)
    b.head = 5

    with pytest.raises(ValueError, match="at offset 0, not at 5"):
        store.commit([a.part(b"fine")[0], b.part(b"gap")[0]])

    assert store.read(1, 0, 1_000) == []


def test_a_fragment_has_one_part_in_a_commit(store: MessageStore) -> None:
    writer = Writer(store)
    part = writer.part(b"one")[0]

    with pytest.raises(ValueError, match="two parts"):
        store.commit([part, part])


@pytest.mark.parametrize("offset", [0, 4])
def test_a_checkpoint_goes_neither_back_nor_beyond_the_head(
    store: MessageStore, offset: int
) -> None:
    writer = Writer(store)
    writer.send(b"one", b"two")
    writer.checkpoint()

    with pytest.raises(ValueError, match=f"a checkpoint at {offset}"):
        writer.send(b"three", checkpoint=change(offset))


@pytest.mark.parametrize(("count", "data"), [(0, b"bytes"), (1, b"")])
def test_a_batch_and_its_count_belong_together(
    store: MessageStore, count: int, data: bytes
) -> None:
    writer = Writer(store)

    with pytest.raises(ValueError, match="records in a batch of"):
        store.commit([Part(writer.lease, 0, count, T0, data, None)])


def test_a_checkpoint_comes_with_its_batch_or_alone(store: MessageStore) -> None:
    # given messages of which the first two are in the index
    writer = Writer(store)
    one, two = writer.send(b"one", b"two")
    writer.checkpoint([one, two], state=b"two there")
    assert store.load_lane(1, 0, 0, 0, 10) == [one, two]

    # when a batch comes together with a checkpoint up to before it
    (three,) = writer.send(b"three", checkpoint=change(2, [], [one], b"one gone"))

    # then index and state stand there, and the batch is the tail to replay
    lease = store.acquire(1, "broker-b", 0)
    assert (lease.checkpoint, lease.head, lease.state) == (2, 3, b"one gone")
    assert store.load_lane(1, 0, 0, 0, 10) == [two]
    assert [b.base for b in store.read(1, lease.checkpoint, 1_000)] == [2]
    assert body_of(store, 1, three) == b"three"


def test_a_checkpoint_replaces_moves_and_removes_rows(store: MessageStore) -> None:
    writer = Writer(store)
    kept, replaced, moved, gone = writer.send(b"a", b"b", b"c", b"d")
    writer.checkpoint([kept, replaced, moved, gone])

    new = replaced._replace(data=b"second delivery", wake_at=T0)
    there = moved._replace(subqueue=1, lane=3)
    writer.checkpoint([new, there], [moved, gone])

    assert store.load_lane(1, 0, 0, 0, 10) == [kept, new]
    assert store.load_lane(1, 1, 3, 0, 10) == [there]
    assert store.load_due(1, 0, 0, T0, 10) == [new]


def test_removing_a_row_that_never_was_in_the_index_does_nothing(store: MessageStore) -> None:
    # A message that came and went between two checkpoints is removed all the same: the engine
    # cannot know whether an earlier checkpoint had it.
    writer = Writer(store)
    (row,) = writer.send(b"brief")

    writer.checkpoint([], [row])

    assert store.load_lane(1, 0, 0, 0, 10) == []


def test_a_large_checkpoint_is_written_whole(store: MessageStore) -> None:
    writer = Writer(store)
    rows = writer.send(*[b"%d" % i for i in range(1_234)])
    rows = [row._replace(wake_at=T0 - row.number if row.number % 3 else None) for row in rows]

    writer.checkpoint(rows)
    assert store.load_lane(1, 0, 0, 0, 5_000) == rows

    writer.checkpoint([], rows[1:-1])
    assert store.load_lane(1, 0, 0, 0, 5_000) == [rows[0], rows[-1]]


def test_the_probe_can_be_repeated(store: MessageStore) -> None:
    store.probe(T0)
    store.probe(T0 + 1)
    store.probe(T0 + 1)


def test_an_unknown_fragment_is_empty_to_a_reader(store: MessageStore) -> None:
    assert store.read(9, 0, 1_000) == []
    assert store.read_batch(9, 0) is None
    assert store.read_slice(9, 0, 0, 1) is None
    assert store.load_lane(9, 0, 0, 0, 10) == []
    assert store.load_due(9, 0, 0, T0, 10) == []
    assert store.load_rows(9, [RowKey(0, 0, 1)]) == []
    assert store.load_pinned(9, 100, 1.0, 10) == []
    assert store.next_due(9, 0, 0, 0) is None
    assert store.tail(9) == 0
    assert store.trim(9, T0, 0, 10) == (0, 0, False)


def test_keys_are_told_apart_by_every_part(store: MessageStore) -> None:
    writer = Writer(store)
    (row,) = writer.send(b"one")
    rows = [row._replace(subqueue=s, lane=n, data=b"%d%d" % (s, n)) for s in (0, 1) for n in (0, 1)]
    writer.checkpoint(rows)

    writer.checkpoint([], [rows[2]])

    assert store.load_rows(1, [key_of(r) for r in rows]) == [rows[0], rows[1], rows[3]]


def test_where_a_fragment_stands_is_told_without_taking_it_over(store: MessageStore) -> None:
    assert store.standing(1) is None
    writer = Writer(store)
    assert store.standing(1) == FragmentPosition(0, 0, b"")
    rows = writer.send(b"a", b"b")
    assert store.standing(1) == FragmentPosition(2, 0, b"")
    writer.checkpoint(rows, state=b"two")
    assert store.standing(1) == FragmentPosition(2, 2, b"two")
    writer.send(b"c")
    assert store.standing(1) == FragmentPosition(3, 2, b"two")
    assert writer.send(b"d")

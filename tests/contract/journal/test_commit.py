"""Commits and leases: what every journal promises."""

import pytest

from postbus.model.index_rows import Row
from postbus.store import batch
from postbus.store.ports.journal import FragmentPosition, Part
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer, body_of, change, dump


def test_a_new_fragment_is_empty_and_starts_at_offset_zero(store: Store) -> None:
    lease = store.acquire(7, "broker-a", 0)

    assert (lease.fragment, lease.head, lease.checkpoint, lease.state) == (7, 0, 0, b"")
    assert lease.epoch > 0
    assert store.read(7, 0, 1_000) == []
    assert store.tail(7) == 0


def test_what_was_committed_is_read_back_as_it_was(store: Store) -> None:
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


def test_fragments_of_one_commit_are_kept_apart(store: Store) -> None:
    a, b = Writer(store, 1), Writer(store, 2)

    passed = store.commit([a.part(b"for a")[0], b.part(b"for b", b"again")[0]])

    assert passed == {1, 2}
    assert dump(store, 1).head == 1
    assert dump(store, 2).head == 2
    assert [r for _, r in batch.records(store.read(2, 0, 1_000)[0].data)] == [b"for b", b"again"]


def test_a_commit_may_have_more_fragments_than_one_statement_takes(store: Store) -> None:
    writers = [Writer(store, fragment) for fragment in range(40)]

    passed = store.commit([w.part(b"body %d" % w.fragment)[0] for w in writers])

    assert passed == set(range(40))
    assert all(body_of(store, f, Row(0, 0, 0, None, 0, 56, 6, b"")) for f in range(40))


def test_an_earlier_lease_writes_nothing_once_the_fragment_was_taken_over(
    store: Store,
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


def test_a_new_epoch_is_greater_than_any_seen(store: Store) -> None:
    assert store.acquire(1, "broker-a", 41).epoch == 42
    assert store.acquire(1, "broker-b", 7).epoch == 43
    assert store.acquire(1, "broker-b", 99).epoch == 100


def test_a_released_lease_is_over(store: Store) -> None:
    writer = Writer(store)
    writer.send(b"one")

    store.release(writer.lease)

    assert store.commit([writer.part(b"two")[0]]) == set()
    assert store.acquire(1, "broker-b", 0).head == 1


def test_releasing_a_lease_that_was_taken_over_does_not_touch_its_successor(
    store: Store,
) -> None:
    late = Writer(store)
    taken = Writer(store)

    store.release(late.lease)

    taken.send(b"still mine")


def test_a_commit_whose_answer_was_lost_can_be_repeated(store: Store) -> None:
    # given a commit with a checkpoint, and one more after it
    writer = Writer(store)
    row = writer.part(b"one")[1][0]
    first = writer.part(b"one", checkpoint=change(1, [row]))[0]
    assert store.commit([first]) == {1}
    writer.head = 1
    second = writer.part(b"two")[0]
    assert store.commit([second]) == {1}
    before = store.read(1, 0, 1_000_000), store.index.load_lane(1, 0, 0, 0, 10)

    # when both are sent again
    # then they pass, and nothing is there twice
    assert store.commit([second]) == {1}
    assert store.commit([first]) == {1}
    assert (store.read(1, 0, 1_000_000), store.index.load_lane(1, 0, 0, 0, 10)) == before
    writer.head = 2
    writer.send(b"three")


def test_other_bytes_at_a_written_offset_are_refused(store: Store) -> None:
    writer = Writer(store)
    writer.send(b"one")
    writer.head = 0

    with pytest.raises(ValueError, match="at offset 1, not at 0"):
        store.commit([writer.part(b"other")[0]])


def test_a_gap_in_the_offsets_is_refused_and_nothing_is_written(store: Store) -> None:
    a, b = Writer(store, 1), Writer(store, 2)
    b.head = 5

    with pytest.raises(ValueError, match="at offset 0, not at 5"):
        store.commit([a.part(b"fine")[0], b.part(b"gap")[0]])

    assert store.read(1, 0, 1_000) == []


def test_a_fragment_has_one_part_in_a_commit(store: Store) -> None:
    writer = Writer(store)
    part = writer.part(b"one")[0]

    with pytest.raises(ValueError, match="two parts"):
        store.commit([part, part])


@pytest.mark.parametrize("offset", [0, 4])
def test_a_checkpoint_goes_neither_back_nor_beyond_the_head(store: Store, offset: int) -> None:
    writer = Writer(store)
    writer.send(b"one", b"two")
    writer.checkpoint()

    with pytest.raises(ValueError, match=f"a checkpoint at {offset}"):
        writer.send(b"three", checkpoint=change(offset))


@pytest.mark.parametrize(("count", "data"), [(0, b"bytes"), (1, b"")])
def test_a_batch_and_its_count_belong_together(store: Store, count: int, data: bytes) -> None:
    writer = Writer(store)

    with pytest.raises(ValueError, match="records in a batch of"):
        store.commit([Part(writer.lease, 0, count, T0, data, None)])


def test_a_checkpoint_comes_with_its_batch_or_alone(store: Store) -> None:
    # given messages of which the first two are in the index
    writer = Writer(store)
    one, two = writer.send(b"one", b"two")
    writer.checkpoint([one, two], state=b"two there")
    assert store.index.load_lane(1, 0, 0, 0, 10) == [one, two]

    # when a batch comes together with a checkpoint up to before it
    (three,) = writer.send(b"three", checkpoint=change(2, [], [one], b"one gone"))

    # then index and state stand there, and the batch is the tail to replay
    lease = store.acquire(1, "broker-b", 0)
    assert (lease.checkpoint, lease.head, lease.state) == (2, 3, b"one gone")
    assert store.index.load_lane(1, 0, 0, 0, 10) == [two]
    assert [b.base for b in store.read(1, lease.checkpoint, 1_000)] == [2]
    assert body_of(store, 1, three) == b"three"


def test_the_probe_can_be_repeated(store: Store) -> None:
    store.probe(T0)
    store.probe(T0 + 1)
    store.probe(T0 + 1)


def test_an_unknown_fragment_has_an_empty_journal(store: Store) -> None:
    assert store.read(9, 0, 1_000) == []
    assert store.read_batch(9, 0) is None
    assert store.read_slice(9, 0, 0, 1) is None
    assert store.load_pinned(9, 100, 1.0, 10) == []
    assert store.tail(9) == 0
    assert store.trim(9, T0, 0, 10) == (0, 0, False)


def test_where_a_fragment_stands_is_told_without_taking_it_over(store: Store) -> None:
    assert store.position(1) is None
    writer = Writer(store)
    assert store.position(1) == FragmentPosition(0, 0, b"")
    rows = writer.send(b"a", b"b")
    assert store.position(1) == FragmentPosition(2, 0, b"")
    writer.checkpoint(rows, state=b"two")
    assert store.position(1) == FragmentPosition(2, 2, b"two")
    writer.send(b"c")
    assert store.position(1) == FragmentPosition(3, 2, b"two")
    assert writer.send(b"d")

"""What leaves a store, and what must not: trim, copy-forward and drop."""

from postbus.model.index_rows import Row
from postbus.store.ports.store import Store
from tests.contract.fragments import T0, Writer, body_of, change, dump

ALL = 1 << 60


def bases(store: Store, fragment: int = 1) -> list[int]:
    return [stored.base for stored in store.read(fragment, 0, ALL)]


def written(store: Store, count: int, size: int = 100) -> tuple[Writer, list[Row]]:
    """So many batches of one message, a second apart, all messages in the index."""
    writer = Writer(store)
    rows = [writer.send(bytes([i]) * size, at=T0 + i * 1_000)[0] for i in range(count)]
    writer.checkpoint(rows)
    return writer, rows


def test_a_batch_older_than_the_retention_is_dropped(store: Store) -> None:
    writer, rows = written(store, 5)
    writer.checkpoint([], rows)

    trimmed = store.trim(1, T0 + 3_000, ALL, 100)

    assert (trimmed.batches, trimmed.more) == (3, False)
    assert trimmed.bytes > 300
    assert bases(store) == [3, 4]
    assert store.tail(1) == 3
    assert store.read_batch(1, 0) is None
    assert body_of(store, 1, rows[0]) is None


def test_only_the_newest_bytes_are_kept(store: Store) -> None:
    writer, rows = written(store, 5)
    writer.checkpoint([], rows)
    size = len(store.read_batch(1, 0) or b"")

    store.trim(1, 0, 2 * size, 100)

    assert bases(store) == [3, 4]


def test_no_retention_drops_everything_and_the_fragment_goes_on(store: Store) -> None:
    writer, rows = written(store, 3)
    writer.checkpoint([], rows)

    assert store.trim(1, 0, 0, 100).batches == 3

    assert bases(store) == []
    assert store.tail(1) == 3
    lease = store.acquire(1, "broker-b", 0)
    assert (lease.head, lease.checkpoint) == (3, 3)
    (row,) = Writer(store).send(b"next")
    assert row.base == 3
    assert store.trim(1, 0, 0, 100).batches == 0
    assert bases(store) == [3]


def test_nothing_at_or_above_the_checkpoint_is_dropped(store: Store) -> None:
    # given two batches below the checkpoint, one that it cuts in two, and one above
    writer = Writer(store)
    for bodies in ([b"0"], [b"1"], [b"2", b"3"], [b"4"]):
        writer.send(*bodies)
    writer.send(checkpoint=change(3))

    assert store.trim(1, T0 + 1, 0, 100).batches == 2
    assert bases(store) == [2, 4]


def test_a_batch_with_a_live_body_stays(store: Store) -> None:
    # given five old batches, one of them with a message that nobody has taken
    writer, rows = written(store, 5)
    writer.checkpoint([], [rows[0], rows[1], rows[3], rows[4]])

    # when everything may go
    trimmed = store.trim(1, ALL, 0, 100)

    # then that batch stays, outside of what readers of the feed see
    assert trimmed.batches == 4
    assert bases(store) == [2]
    assert body_of(store, 1, rows[2]) == bytes([2]) * 100
    assert store.tail(1) == 5
    assert store.acquire(1, "broker-b", 0).head == 5


def test_a_pinned_batch_goes_when_its_last_body_is_let_go(store: Store) -> None:
    writer = Writer(store)
    a, b = writer.send(b"a", b"b")
    writer.checkpoint([a, b])
    assert store.trim(1, ALL, 0, 100).batches == 0

    writer.checkpoint([], [a])
    assert store.trim(1, ALL, 0, 100).batches == 0
    assert bases(store) == [0]

    writer.checkpoint([], [b])
    assert store.trim(1, ALL, 0, 100).batches == 1
    assert bases(store) == []


def test_a_moved_message_still_pins_its_batch(store: Store) -> None:
    writer = Writer(store)
    (row,) = writer.send(b"a")
    writer.checkpoint([row])
    store.trim(1, ALL, 0, 100)

    writer.checkpoint([row._replace(subqueue=1)], [row])

    assert store.trim(1, ALL, 0, 100).batches == 0
    assert bases(store) == [0]


def test_a_longer_retention_brings_back_nothing_that_was_out_of_it(store: Store) -> None:
    writer, rows = written(store, 5)
    writer.checkpoint([], rows[1:])
    store.trim(1, T0 + 3_000, ALL, 100)
    assert bases(store) == [0, 3, 4]

    writer.checkpoint([], rows[:1])
    store.trim(1, T0, ALL, 100)

    assert bases(store) == [3, 4]
    assert store.tail(1) == 3


def test_trim_works_in_slices(store: Store) -> None:
    writer, rows = written(store, 7)
    writer.checkpoint([], rows)

    slices = []
    while True:
        trimmed = store.trim(1, ALL, 0, 3)
        slices.append(trimmed.batches)
        if not trimmed.more:
            break

    assert slices == [3, 3, 1]
    assert bases(store) == []


def test_pinned_batches_do_not_keep_a_trim_from_what_is_behind_them(store: Store) -> None:
    writer, rows = written(store, 10)
    writer.checkpoint([], rows[6:])

    calls = 0
    while store.trim(1, ALL, 0, 2).more:
        calls += 1
        assert calls < 20

    assert bases(store) == [0, 1, 2, 3, 4, 5]
    # and they go in their turn, also in slices
    writer.checkpoint([], rows[:6])
    while store.trim(1, ALL, 0, 2).more:
        calls += 1
        assert calls < 40
    assert bases(store) == []


def test_reading_goes_on_behind_a_hole(store: Store) -> None:
    writer, rows = written(store, 5)
    writer.checkpoint([], rows[1:4])
    store.trim(1, T0 + 4_000, ALL, 100)

    assert [b.base for b in store.read(1, 0, ALL)] == [0, 4]
    assert [b.base for b in store.read(1, 2, ALL)] == [4]


def test_copy_forward_finds_the_few_that_hold_mostly_dead_batches(store: Store) -> None:
    # given three old batches: one all dead but one message, one all alive, one half alive
    writer = Writer(store)
    mostly_dead = writer.send(*[bytes(100)] * 10)
    alive = writer.send(*[bytes(100)] * 10)
    half = writer.send(*[bytes(100)] * 10)
    recent = writer.send(*[bytes(100)] * 10)
    writer.checkpoint([mostly_dead[4], *alive, *half[:5], recent[0]])
    below = recent[0].base

    # then only rows of batches with a small share of live bytes are offered, old ones only
    assert store.load_pinned(1, below, 0.2, 100) == [mostly_dead[4]]
    assert store.load_pinned(1, below, 0.6, 100) == [mostly_dead[4], *half[:5]]
    assert store.load_pinned(1, below, 0.6, 3) == [mostly_dead[4], *half[:2]]


def test_copy_forward_finds_a_batch_whose_live_share_is_just_the_most(store: Store) -> None:
    writer = Writer(store)
    [row] = writer.send(bytes(1_000))
    batch = store.read_batch(1, row.base)
    assert batch is not None and len(batch) % 4 == 0, "so that the share is exact"
    row = row._replace(length=len(batch) // 4)
    writer.checkpoint([row])

    assert store.load_pinned(1, writer.head, 0.25, 100) == [row]


def test_a_batch_goes_once_its_bodies_were_copied_forward(store: Store) -> None:
    # given an old batch that one message pins, already passed over by a trim
    writer = Writer(store)
    rows = writer.send(*[b"body %d" % i for i in range(10)])
    writer.checkpoint(rows)
    writer.checkpoint([], rows[1:])
    assert store.trim(1, ALL, 0, 100).batches == 0
    (pinned,) = store.load_pinned(1, store.tail(1), 0.5, 100)

    # when its body is written again and the next checkpoint points there
    (copy,) = writer.send(b"body 0")
    moved = copy._replace(number=pinned.number, data=pinned.data)
    assert store.trim(1, ALL, 0, 100).batches == 0, "the index still points to the old place"
    writer.checkpoint([moved])

    # then the old batch is dropped and the message is where it was
    assert store.trim(1, T0, ALL, 100).batches == 1
    assert bases(store) == [10]
    assert store.index.load_lane(1, 0, 0, 0, 10) == [moved]
    assert body_of(store, 1, moved) == b"body 0"


def test_a_dropped_fragment_leaves_nothing_and_others_stay(store: Store) -> None:
    # given a fragment with rows and batches between two neighbours
    for fragment in (1, 2, 3):
        writer = Writer(store, fragment)
        rows = [writer.send(b"body %d" % i)[0] for i in range(10)]
        writer.checkpoint(rows[:7])
    neighbours = dump(store, 1), dump(store, 3)

    # when it is dropped a few rows at a time
    calls = 1
    while not store.drop(2, 3):
        calls += 1
        assert calls < 20

    # then nothing of it is left, and the neighbours are as they were
    assert store.read(2, 0, ALL) == []
    assert store.index.load_lane(2, 0, 0, 0, 10) == []
    assert (dump(store, 1), dump(store, 3)) == neighbours
    assert store.drop(2, 3)


def test_a_fragment_that_is_being_dropped_takes_no_commits(store: Store) -> None:
    writer = Writer(store)
    for i in range(10):
        writer.send(b"body %d" % i)

    store.drop(1, 3)

    assert store.commit([writer.part(b"late")[0]]) == set()


def test_the_newest_time_is_known_of_all_fragments_and_after_everything_was_trimmed(
    store: Store,
) -> None:
    assert store.newest() == 0
    one, other = Writer(store, 1), Writer(store, 2)
    assert store.newest() == 0
    rows = one.send(b"one", at=T0 + 5)
    other.send(b"two", at=T0 + 3)
    assert store.newest() == T0 + 5

    one.send(at=T0 + 7, checkpoint=change(one.head, rows))
    one.send(at=T0 + 9, checkpoint=change(one.head, removed=rows))
    assert store.trim(1, T0 + 99, 0, 10).batches == 1
    assert store.read(1, 0, 1_000) == []
    assert store.newest() == T0 + 9

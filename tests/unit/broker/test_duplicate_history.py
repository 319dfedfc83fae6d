"""What an entity remembers of the ids it has seen: how long, in what, and with how much memory."""

from __future__ import annotations

from unittest import mock

import pytest

from postbus.broker import duplicate_history as module
from postbus.broker.bloom import digest_of
from postbus.broker.duplicate_history import History
from postbus.broker.ledger import Layout, Ledger
from postbus.broker.message import CorruptRow
from postbus.model.index_rows import SeenIds

# Constants are made small, and in machine code they are fixed.
pytestmark = pytest.mark.interpreted_only

T0 = 1_700_000_000_000
HOUR = 3_600_000


def maybe(history: History, digest: bytes, since: int = 0) -> list[int]:
    return [segment.number for segment in history.segments_of(digest, since)]


def checkpoint(history: History) -> SeenIds | None:
    seen = history.flush()
    history.flushed()
    return seen


def see(history: History, first: int, count: int, now: int = T0, every: int = 4_096) -> None:
    """So many ids, with a checkpoint now and then."""
    for number in range(first, first + count):
        history.note(digest_of(f"id {number}"), now)
        if number % every == every - 1:
            checkpoint(history)
    checkpoint(history)


@pytest.mark.parametrize("segment_ids", [1, 1_000])
def test_ids_of_a_checkpoint_that_fails_are_in_the_next(
    monkeypatch: pytest.MonkeyPatch, segment_ids: int
) -> None:
    """Ids that came meanwhile too, whether they began a new segment or not."""
    monkeypatch.setattr(module, "SEGMENT_IDS", segment_ids)
    history = History(HOUR)
    ids = [digest_of(f"id {n}") for n in range(6)]
    history.note(ids[0], T0)
    assert checkpoint(history) is not None
    history.note(ids[1], T0 + 1)
    history.note(ids[2], T0 + 2)
    first = history.flush()
    assert first is not None
    history.note(ids[3], T0 + 3)
    history.unflush()
    history.note(ids[4], T0 + 4)
    seen = checkpoint(history)
    assert seen is not None
    assert seen.part == first.part
    assert seen.digests == ids[1:5]
    assert history.count == 5
    assert not history.recent
    for each in ids[1:5]:
        assert any(seen.part in one.all_parts for one in history.segments_of(each, 0))
    assert not history.segments_of(ids[5], 0)


def test_ids_since_the_checkpoint_are_known_exactly_and_then_by_the_filter() -> None:
    history = History(HOUR)
    seen, other = digest_of("seen"), digest_of("other")
    history.note(seen, T0)
    assert history.recent == {seen: T0}
    assert maybe(history, seen) == []
    assert checkpoint(history) == SeenIds(1, [seen], [T0])
    assert history.recent == {}
    assert maybe(history, seen, T0 - 1) == [1]
    assert maybe(history, seen, T0) == []  # none of that segment is within the window
    assert maybe(history, other, T0 - 1) == []


def test_a_segment_ends_by_its_count_or_by_its_time() -> None:
    with mock.patch.object(module, "SEGMENT_IDS", 100):
        history = History(HOUR)
        see(history, 0, 99)
        assert [each.number for each in history.segments] == [1]
        see(history, 99, 1)
        assert [(each.number, each.count) for each in history.segments] == [(1, 100), (2, 0)]
        see(history, 100, 1)
        see(history, 101, 1, T0 + HOUR // 8)
        assert [(each.number, each.count) for each in history.segments][1:] == [(2, 2), (3, 0)]


def test_segments_grow_with_the_history_so_that_there_are_few() -> None:
    with mock.patch.object(module, "SEGMENT_IDS", 64):
        history = History(HOUR)
        see(history, 0, 20_000, every=32)
    assert history.count == 20_000
    assert len(history.segments) < 64


def test_parts_are_numbered_through_all_segments() -> None:
    with (
        mock.patch.object(module, "PART_IDS", 100),
        mock.patch.object(module, "SEGMENT_IDS", 400),
    ):
        history = History(HOUR)
        parts: list[int] = []
        for first in range(0, 800, 40):
            for number in range(first, first + 40):
                history.note(digest_of(f"id {number}"), T0 + first)
            seen = checkpoint(history)
            assert seen is not None
            parts.append(seen.part)
    assert parts == sorted(parts)
    assert [(each.number, each.parts) for each in history.segments] == [(1, 5), (6, 5), (11, 1)]
    assert [(s.number, s.parts, s.part_count) for s in restored(history).segments] == [
        (s.number, s.parts, s.part_count) for s in history.segments
    ]
    assert history.expire(T0 + HOUR + 360) == 6


def test_what_is_past_the_window_goes_by_whole_segments() -> None:
    with mock.patch.object(module, "SEGMENT_IDS", 10):
        history = History(HOUR)
        see(history, 0, 10, T0)
        see(history, 10, 10, T0 + 1_000)
        see(history, 20, 5, T0 + 2_000)
    assert history.expire(T0 + HOUR - 1) == 1
    assert history.expire(T0 + HOUR) == 2
    assert history.expire(T0 + HOUR + 1_000) == 3
    assert [each.number for each in history.segments] == [3]
    # also the one that takes new ids, when nothing has come for so long
    assert history.expire(T0 + HOUR + 2_000) == 4
    assert (history.count, history.filter_bytes) == (0, 0)


def test_a_longer_or_shorter_window_counts_at_once() -> None:
    history = History(HOUR)
    see(history, 0, 10)
    history.set_window(60_000)
    assert history.expire(T0 + 59_999) == 1
    history.set_window(2 * HOUR)
    assert history.expire(T0 + HOUR) == 1
    assert history.expire(T0 + 2 * HOUR) == 2


def test_a_small_history_takes_little_memory() -> None:
    history = History(HOUR)
    see(history, 0, 10)
    assert history.filter_bytes <= 4_096


@pytest.mark.parametrize("bytes_max", [65_536, 131_072])
def test_memory_is_the_same_for_ten_times_as_many_ids(bytes_max: int) -> None:
    """What is left of the bound is the price of sizes that are powers of two: at the default of
    8 MB less than 10 % of a process."""
    with mock.patch.object(module, "SEGMENT_IDS", bytes_max // 32):
        history = History(HOUR, bytes_max)
        see(history, 0, bytes_max // 4)
        small = history.filter_bytes
        see(history, bytes_max // 4, bytes_max * 9 // 4)
    assert bytes_max // 2 < small <= bytes_max
    assert bytes_max // 2 < history.filter_bytes <= bytes_max
    for number in range(0, bytes_max * 5 // 2, 997):
        assert maybe(history, digest_of(f"id {number}"))


def test_a_full_window_lets_new_ids_pass_without_a_read() -> None:
    history = History(HOUR, 1 << 18)
    with mock.patch.object(module, "SEGMENT_IDS", 4_096):
        see(history, 0, 65_536)
        while (segment := history.next_unread()) is not None:
            first = 0  # read again those that were made too small at first
            stored = [digest_of(f"id {first + n}") for n in range(segment.count)]
            history.read_on(segment, stored, is_last=True)
    unknown = sum(bool(maybe(history, digest_of(f"new {n}"))) for n in range(10_000))
    assert unknown < 30


def restored(history: History) -> History:
    other = History(history.window_ms)
    assert other.restore(b"...." + history.state(), 4) == 4 + len(history.state())
    return other


def test_after_a_start_every_id_may_be_known_until_the_ids_were_read() -> None:
    with mock.patch.object(module, "SEGMENT_IDS", 50):
        history = History(HOUR)
        see(history, 0, 50)
        see(history, 50, 20, T0 + 1)
        history = restored(history)
    new = digest_of("new")
    assert maybe(history, new) == [1, 2]
    ids = {1: sorted(digest_of(f"id {n}") for n in range(50))}
    ids[2] = sorted(digest_of(f"id {n}") for n in range(50, 70))
    while (segment := history.next_unread()) is not None:
        found = [each for each in ids[segment.number] if each > segment.cursor][:8]
        history.read_on(segment, found, is_last=len(found) < 8)
    assert maybe(history, new) == []
    assert all(maybe(history, each) == [1] for each in ids[1])
    assert all(maybe(history, each) == [2] for each in ids[2])


def test_ids_that_come_while_the_others_are_read_are_not_missed() -> None:
    """One is noted before the reading begins, one while it goes on; both are stored behind the
    place that was read last."""
    history = History(HOUR)
    see(history, 0, 20)
    history = restored(history)
    stored = sorted(digest_of(f"id {n}") for n in range(20))
    before, during = b"\x00" * 15 + b"\x01", b"\x00" * 15 + b"\x02"
    history.note(before, T0)
    segment = history.next_unread()
    assert segment is not None
    history.read_on(segment, stored[:10], is_last=False)
    history.note(during, T0)
    checkpoint(history)
    again = history.next_unread()
    assert again is segment and segment.cursor == stored[9]
    history.read_on(segment, stored[10:], is_last=True)
    assert history.next_unread() is None
    for digest in (before, during, *stored):
        assert maybe(history, digest) == [1]


def test_an_entity_without_detection_has_no_history_in_its_state() -> None:
    layout = Layout(0, 0)
    history = History(HOUR)
    see(history, 0, 1)
    kept = Ledger(layout, 0, 0, b"", history).make_checkpoint().state
    assert Ledger(layout, 0, 0, kept, History(HOUR)).history is not None
    with pytest.raises(CorruptRow, match="without duplicate detection"):
        Ledger(layout, 0, 0, kept)
    plain = Ledger(layout, 0, 0, b"").make_checkpoint().state
    assert Ledger(layout, 0, 0, plain).history is None


@pytest.mark.parametrize("restored", [False, True])
def test_nothing_is_put_into_a_segment_that_is_past_the_window(restored: bool) -> None:
    """Its parts may be dropped from the store at any time from then on."""
    history, of_store = History(HOUR), History(HOUR)
    see(history, 0, 5)
    of_store.restore(history.state(), 0)
    if restored:
        history, state = History(HOUR), history.state()
        history.restore(state, 0)
    at = T0 + HOUR
    below = of_store.expire(at)
    first, second = digest_of("first"), digest_of("second")
    history.note(first, at)
    history.note(second, at + HOUR)  # it stays open as long as its ids are in no part
    assert history.expire(at) == below
    seen = checkpoint(history)
    assert seen is not None
    assert seen.part == below
    assert seen.digests == [first, second]
    assert maybe(history, first, at) == [below]


def test_a_segment_within_the_window_is_gone_on_with() -> None:
    history = History(HOUR)
    see(history, 0, 1)
    history.note(digest_of("late"), T0 + HOUR - 1)
    assert [(each.number, each.count) for each in history.segments] == [(1, 2)]

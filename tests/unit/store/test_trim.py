import pytest

from postbus.store import trim
from postbus.store.trim import TrimCursor, TrimRule

T0 = 1_700_000_000_000


def test_a_batch_is_kept_while_a_crash_would_need_it() -> None:
    rule = TrimRule(checkpoint=10, tail=0, older_than=T0, bytes_max=0)

    assert not rule.keeps(5, 10, T0 - 1, 100)
    assert rule.keeps(5, 11, T0 - 1, 100)


def test_a_batch_is_kept_while_it_is_both_young_and_among_the_newest_bytes() -> None:
    rule = TrimRule(checkpoint=10, tail=0, older_than=T0, bytes_max=100)

    assert rule.keeps(5, 6, T0, 100)
    assert not rule.keeps(5, 6, T0 - 1, 100)
    assert not rule.keeps(5, 6, T0, 101)


def test_a_batch_below_the_tail_stays_out_of_retention() -> None:
    rule = TrimRule(checkpoint=10, tail=6, older_than=T0, bytes_max=100)

    assert not rule.keeps(5, 6, T0, 100)
    assert rule.keeps(6, 7, T0, 100)


def test_a_new_cursor_looks_at_everything_once() -> None:
    cursor = TrimCursor()

    assert cursor.scanned == 0
    assert cursor.candidates(10) == []


def test_only_batches_behind_the_scan_are_looked_at_again() -> None:
    cursor = TrimCursor()
    cursor.advance(100, 2)

    cursor.release([10, 100, 150])

    assert cursor.candidates(10) == [10]


def test_a_batch_is_looked_at_once_for_each_release() -> None:
    cursor = TrimCursor()
    cursor.advance(100, 2)
    cursor.release([20, 10])
    assert cursor.candidates(1) == [10]
    assert cursor.candidates(9) == [10, 20]

    cursor.looked_again([10, 20], 1)

    assert not cursor.has_candidates()
    assert cursor.pinned == 1
    cursor.release([10])
    assert cursor.candidates(9) == [10]


def test_too_many_to_remember_start_the_scan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "CANDIDATES_MAX", 3)
    cursor = TrimCursor()
    cursor.advance(100, 4)

    cursor.release([1, 2, 3])
    assert cursor.scanned == 100
    cursor.release([4])

    assert (cursor.scanned, cursor.pinned) == (0, 0)
    assert not cursor.has_candidates()

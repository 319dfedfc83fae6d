"""Keys of messages, and the fragments that they choose."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from postbus.model.partitioning import FRAGMENTS, fragment_of, key_of


@pytest.mark.parametrize(
    ("key", "index"), [("", 0), ("a", 3), ("session-1", 14), ("order-42", 14), ("é", 14), ("A", 11)]
)
def test_r_part_13_a_key_always_chooses_the_same_fragment(key: str, index: int) -> None:
    """R-PART-13: Stored messages lie there: these values never change (docs/partitioning.md)."""
    assert fragment_of(key) == index


def test_a_key_that_is_no_valid_text_chooses_a_fragment_too() -> None:
    assert 0 <= fragment_of("\ud800") < FRAGMENTS


@pytest.mark.parametrize(
    ("session_id", "partition_key", "finds_duplicates", "key"),
    [
        ("s", None, False, "s"),
        ("s", "s", True, "s"),
        ("", None, True, ""),
        (None, "p", True, "p"),
        (None, "", True, "id"),
        (None, None, True, "id"),
        (None, "", False, None),
        (None, None, False, None),
    ],
)
def test_r_part_11_session_id_before_partition_key_before_message_id(
    session_id: str | None, partition_key: str | None, finds_duplicates: bool, key: str | None
) -> None:
    """R-PART-11."""
    assert key_of(session_id, partition_key, "id", finds_duplicates) == key


def test_random_keys_are_spread_evenly() -> None:
    random_source = random.Random(1)
    keys = [f"{random_source.getrandbits(64):x}" for _ in range(100_000)]
    counts = Counter(map(fragment_of, keys))
    assert all(5_625 <= counts[index] <= 6_875 for index in range(FRAGMENTS))

"""LIKE: wildcards, escapes, and patterns that were made to take for ever."""

from __future__ import annotations

import time

import pytest

from postbus.rules.like import PATTERN_LENGTH_MAX, like_matcher


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("abc", ["abc"], ["ABC", "abcd", "xabc", ""]),
        ("abc%", ["abc", "abcd", "abc\n"], ["ab", "xabc"]),
        ("%bus%", ["bus", "omnibus", "busy bus"], ["bs", "Bus"]),
        ("%bus", ["bus", "busbus"], ["buses"]),
        ("a%b%c", ["abc", "axxbyyc", "abbcc"], ["acb", "abcx"]),
        ("_", ["a", "\n", "\U0001f600"], ["", "ab"]),
        ("a_c", ["abc", "a%c"], ["ac", "abbc"]),
        ("%_", ["a", "ab"], [""]),
        ("%", ["", "anything\nat all"], []),
        ("", [""], ["a"]),
        ("a.c*", ["a.c*"], ["abc", "a.cc"]),
        ("%%a%%", ["a", "bab"], ["b"]),
        ("%ab%ab%", ["abab", "xabyabz"], ["ab", "aab"]),
    ],
)
def test_percent_is_any_run_and_underscore_any_one(
    pattern: str, matching: list[str], others: list[str]
) -> None:
    matches = like_matcher(pattern)
    assert [text for text in matching if matches(text) is None] == []
    assert [text for text in others if matches(text) is not None] == []


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "expected"),
    [
        ("ABC\\%", "\\", "ABC%", True),
        ("ABC\\%", "\\", "ABCD", False),
        ("ABC\\\\", "\\", "ABC\\", True),
        ("a!_b", "!", "a_b", True),
        ("a!_b", "!", "axb", False),
        ("a!xb", "!", "axb", True),
        ("%%", "%", "%", True),
        ("a!", "!", "a!", False),  # nothing is escaped
        ("a!", "!", "a", False),
    ],
)
def test_an_escaped_character_stands_for_itself(
    pattern: str, escape: str, text: str, expected: bool
) -> None:
    assert (like_matcher(pattern, escape)(text) is not None) is expected


@pytest.mark.parametrize(
    "pattern",
    ["%a" * (PATTERN_LENGTH_MAX // 2), "%a_" * (PATTERN_LENGTH_MAX // 3) + "b", "%" * 1_024],
)
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    matches = like_matcher(pattern)
    started = time.monotonic()
    matches("a" * 32_768)
    matches("a" * 32_768 + "b")
    assert time.monotonic() - started < 5

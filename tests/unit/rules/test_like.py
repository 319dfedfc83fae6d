"""LIKE: wildcards, escapes, and patterns that were made to take for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.rules.like import PATTERN_LENGTH_MAX, like_pattern
from postbus.rules.work_limit import STEPS_MAX, TooMuchWork, Work


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
    made = like_pattern(pattern)
    assert [text for text in matching if not made.matches(text, Work().spend)] == []
    assert [text for text in others if made.matches(text, Work().spend)] == []


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
    assert like_pattern(pattern, escape).matches(text, Work().spend) is expected


def as_regular_expression(pattern: str) -> str:
    return "".join({"%": ".*", "_": "."}.get(each, re.escape(each)) for each in pattern)


@given(st.text("ab%_", max_size=8), st.text("ab", max_size=12))
def test_it_says_what_a_regular_expression_says(pattern: str, text: str) -> None:
    expected = re.fullmatch(as_regular_expression(pattern), text, re.DOTALL) is not None
    assert like_pattern(pattern).matches(text, Work().spend) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * (PATTERN_LENGTH_MAX // 2),
        "%a_" * (PATTERN_LENGTH_MAX // 3) + "b",
        "%" * 1_024,
        "%" + "a" * 1_000 + "b%",
        "%" + "a_" * 500 + "b%",
        "%ab_" + "a" * 1_000 + "%",
    ],
)
@pytest.mark.parametrize("text", ["a" * 32_768, "a" * 32_768 + "b", "ab" * 16_384])
def test_no_pattern_takes_for_ever(pattern: str, text: str) -> None:
    """Each place that is tried is paid for, so it ends, with an answer or without."""
    work = Work()
    try:
        like_pattern(pattern).matches(text, work.spend)
    except TooMuchWork:
        assert work.spent > STEPS_MAX
    else:
        # What is found at once is cheap however long the text is; what is searched is not.
        assert work.spent <= STEPS_MAX


def test_a_long_text_costs_more_than_a_short_one() -> None:
    costs = []
    for length in (100, 10_000, 60_000):
        work = Work()
        assert not like_pattern("%b%").matches("a" * length, work.spend)
        costs.append(work.spent)
    assert costs == sorted(costs) and costs[0] == 1 and costs[2] > 200

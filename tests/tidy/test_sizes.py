"""A file holds one idea. A long one says in `long_files.txt` why it cannot be cut."""

from __future__ import annotations

from tests.tidy.sizes import (
    LIST,
    OVER_THE_WALL,
    WALL,
    Row,
    files,
    length,
    measured,
    rewritten,
    rows,
)
from tests.tidy.tree import shown

HINT = "cut the file, or run `python -m tests.tidy.sizes` (--grow) and write the reason"


def test_a_long_source_is_listed_with_its_length() -> None:
    assert {row.path: row.lines for row in rows()} == measured(), HINT


def test_every_long_source_has_a_reason() -> None:
    assert [row.path for row in rows() if len(row.reason.split()) < 5] == []


def test_no_file_is_over_the_wall_but_those_that_are_argued() -> None:
    over = {shown(path) for path in files("src", "bench", "tests") if length(path) > WALL}
    assert over == OVER_THE_WALL, "look for the second idea in it"


def test_a_number_falls_by_itself_and_rises_only_when_told() -> None:
    before = [Row(420, "b.py", "one machine"), Row(400, "a.py", "one table"), Row(360, "c.py", "-")]
    now = {"a.py": 390, "b.py": 430, "d.py": 370}
    assert rewritten(before, now, grow=False) == [
        Row(420, "b.py", "one machine"),
        Row(390, "a.py", "one table"),
    ]
    assert rewritten(before, now, grow=True) == [
        Row(430, "b.py", "one machine"),
        Row(390, "a.py", "one table"),
        Row(370, "d.py", ""),
    ]


def test_the_list_is_as_the_command_writes_it() -> None:
    assert rows() == sorted(rows(), key=lambda row: (-row.lines, row.path)), LIST.name

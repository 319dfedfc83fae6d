"""The page about the change feed leaves out nothing that a reader may meet."""

from __future__ import annotations

import re
from pathlib import Path

from postbus.broker.record_kinds import OPERATIONS
from postbus.feed.events import COLUMNS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "feed.md"


def test_the_page_names_every_column() -> None:
    text = PAGE.read_text()
    for name in COLUMNS:
        assert f"`{name}`" in text, name


def test_the_page_lists_the_operations_of_the_table_of_record_kinds_and_no_others() -> None:
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith("| `operation` |")]
    listed = re.findall(r"`([^`]+)`", row)[1:]
    assert sorted(listed) == sorted(OPERATIONS.values())

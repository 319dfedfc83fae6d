"""The page about the change feed leaves out nothing that a reader may meet."""

from __future__ import annotations

from pathlib import Path

from postbus.feed.events import COLUMNS
from postbus.feed.operations import OPERATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "feed.md"


def test_the_page_names_every_column_and_every_operation() -> None:
    text = PAGE.read_text()
    for name in (*COLUMNS, *OPERATIONS.values()):
        assert f"`{name}`" in text, name

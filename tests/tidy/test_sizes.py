"""A file holds one idea. Past 500 lines there is a second one to look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, shown, sources

LINES_MAX = 500
# Files that are longer, with their length. A ratchet: a number here only ever goes down.
LONGER: dict[str, int] = {
    # Each is one machine whose state would be passed around if it were cut: a queue, a connection.
    # Queue was cut once: its methods in other files imported it, and it imported them.
    "src/postbus/broker/queue.py": 568,
    "src/postbus/gateway/connection.py": 607,
    # A table: every setting, declared once.
    "src/postbus/settings.py": 502,
}


def _test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def _length(path: Path) -> int:
    return len(path.read_text().splitlines())


FILES = [path for path in sources() + _test_files() if "node_modules" not in path.parts]


@pytest.mark.parametrize("path", FILES, ids=shown)
def test_a_file_is_no_longer_than_it_may_be(path: Path) -> None:
    assert _length(path) <= LONGER.get(shown(path), LINES_MAX), "look for the second idea in it"


def test_the_ratchet_is_tight() -> None:
    for name, length in LONGER.items():
        path = ROOT / name
        assert path.exists(), f"{name} is gone: take it off the list"
        assert _length(path) > LINES_MAX, f"{name} is short enough now: take it off the list"
        assert _length(path) == length, f"{name} has {_length(path)} lines: lower its number"

"""What every program of the bench does around its measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.program import alternating, begun


def test_who_goes_first_changes_by_the_round() -> None:
    assert list(alternating("ab", 3)) == [
        *((1, "a"), (1, "b")),
        *((2, "b"), (2, "a")),
        *((3, "a"), (3, "b")),
    ]


def test_a_measurement_begins_with_its_date_and_its_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = begun(tmp_path, size=64)
    assert facts["size"] == 64
    said = capsys.readouterr().out
    for told in (facts["date"], f"cores: {facts['machine']['cores']}"):
        assert told in said

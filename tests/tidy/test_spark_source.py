"""The data source: what it may import, the length of its files, and that its page is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_postbus.columns import TYPES
from pyspark_postbus.options import DECLARED
from pyspark_postbus.rows import WRITABLE
from tests.tidy.tree import ROOT, imports, shown

SOURCES = sorted((ROOT / "src" / "pyspark_postbus").rglob("*.py"))
PAGE = ROOT / "docs" / "spark.md"
# A worker has no broker: only what reads records and speaks AMQP, and commands for pipelines.
MAY_IMPORT = {
    "postbus.amqp",
    "postbus.broker",
    "postbus.client",
    "postbus.feed",
    "postbus.messages.plain_values",
    "postbus.store.batch",
}
LINES_MAX = 500


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_module_imports_nothing_of_the_server(path: Path) -> None:
    ours = {name for name in imports(path) if name.startswith("postbus.")}
    below = {"postbus.messages", "postbus.store"}  # the folders of the two single modules
    assert {
        name
        for name in ours - below
        if not any(f"{name}.".startswith(f"{room}.") for room in MAY_IMPORT)
    } == set()


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_file_is_no_longer_than_it_may_be(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX, "look for the second idea in it"


def options_table() -> str:
    """The table of options as the page has it."""
    lines = ["| option | default | for | |", "|---|---|---|---|"]
    for option in DECLARED:
        use = ", ".join(sorted(option.used_in))
        lines.append(f"| `{option.name}` | {option.default} | {use} | {option.help} |")
    return "\n".join(lines)


def test_the_page_has_all_options_as_they_are_declared() -> None:
    text = PAGE.read_text()
    found = text.partition("<!-- options -->\n")[2].partition("\n<!-- /options -->")[0]
    assert found == options_table(), f"between the marks belongs:\n{options_table()}"


def test_the_page_has_all_columns_with_their_types() -> None:
    cells = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line[:3] == "| `"]
    said = {
        name.strip(" `"): kind.strip()
        for names, kind in (each for each in cells if len(each) == 2)
        for name in names.split(",")
        if kind.strip() in {kind for kind, _ in TYPES.values()}
    }
    assert {name: said.get(name) for name in TYPES} == {
        name: kind for name, (kind, _) in TYPES.items()
    }


def test_the_page_has_all_columns_that_can_be_written() -> None:
    writing = PAGE.read_text().partition("## Writing")[2]
    assert not {name for name in WRITABLE if f"`{name}`" not in writing}

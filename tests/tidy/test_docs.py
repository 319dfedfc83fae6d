"""The pages say what is there: commands, links, settings, errors, metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from bench.record import kept, read
from postbus.cli.main import app
from tests.tidy.generated import PAGES
from tests.tidy.test_layers import ROW_OF
from tests.tidy.tree import ROOT, pages, shown

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def code_in(text: str) -> list[str]:
    """Lines of shell blocks and inline code, as typed."""
    lines = []
    for language, block in _FENCE.findall(text):
        if language in ("", "sh", "bash", "console"):
            lines += block.splitlines()
    lines += _SPAN.findall(_FENCE.sub("", text))
    return [line.strip().removeprefix("$ ") for line in lines]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands() -> dict[str, set[str]]:
    """Each `postbus` command with its flags."""
    group: Any = typer.main.get_command(app)
    return {name: _flags(command) | {"--help"} for name, command in group.commands.items()}


def _flags(command: Any) -> set[str]:
    """Those of a command, or of all in a group of them."""
    own = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    return own.union(*map(_flags, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("page", list(PAGES), ids=shown)
def test_a_page_written_from_the_code_is_current(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "run: python -m tests.tidy.generated"


@pytest.mark.parametrize("page", kept(), ids=shown)
def test_the_tables_of_a_kept_measurement_are_those_of_its_numbers(page: Path) -> None:
    assert page.read_text() == read(page).page()


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_make_targets_named_on_a_page_exist(page: Path) -> None:
    named = {
        found[1]
        for line in code_in(page.read_text())
        if (found := re.match(r"make ([a-z-]+)", line))
    }
    assert named <= make_targets()


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_postbus_commands_named_on_a_page_exist_with_their_flags(page: Path) -> None:
    known = commands()
    for line in code_in(page.read_text()):
        found = re.match(r"(?:\S*/)?postbus ([a-z]+)(.*)", line)
        serving = re.match(r"make serve ARGS='(.*)'", line)
        if found:
            assert found[1] in known, line
            flags, rest = known[found[1]], found[2]
        elif serving:
            flags, rest = known["serve"], serving[1]
        elif re.fullmatch(r"--[a-z-]+", line):
            flags, rest = set().union(*known.values()) | {"--help"}, line
        else:
            continue
        assert set(re.findall(r"--[a-z-]+", rest)) <= flags, line


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for link in _LINK.findall(text):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in {_anchor(one) for one in _HEADING.findall(target.read_text())}, link


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", pages(), ids=shown)
def test_folders_and_files_named_on_a_page_exist(page: Path) -> None:
    if page.parent == ROOT / "bench" / "results" or page.name == "CHANGELOG.md":
        return  # a diary: what was there then
    for name in _SPAN.findall(_FENCE.sub("", page.read_text())):
        if re.fullmatch(r"(src|tests|docs|requirements|examples|bench)/[\w./-]+", name):
            assert (ROOT / name).exists(), name


def test_every_page_is_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        reached.add(page)
        for link in _LINK.findall(_FENCE.sub("", page.read_text())):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                left.append(target)
    under = [ROOT / "docs", ROOT / "examples", ROOT / "bench"]
    there = {page for folder in under for page in folder.rglob("*.md")}
    assert {shown(page) for page in there - reached} == set()


def test_the_readme_names_every_page_of_docs_itself() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme, page.name


def test_the_architecture_lists_every_room_in_the_order_of_the_rooms() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("## Rooms")[2].partition("\n## ")[0]
    rooms = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(rooms) == set(ROW_OF) - {"__main__"}
    assert [ROW_OF[room] for room in rooms] == sorted(ROW_OF[room] for room in rooms)


def test_the_architecture_is_two_pages() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 160, "an idea has a page in docs/internals"
    assert max(map(len, lines)) <= 120

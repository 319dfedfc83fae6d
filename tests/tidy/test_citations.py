"""Every citation of the contract leads to a heading or a row of a page in docs/contract."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy.tree import ROOT, shown, text_files

CONTRACT = ROOT / "docs" / "contract"
# By its name, so that this file does not find itself.
SIGN = "\N{SECTION SIGN}"
# Whole numbers only: of "2.2-2.4" or "17, 18" not even the first is taken.
_SECTION = rf"{SIGN}\d++(?:\.\d++)*+(?![-\u2013]\d)"
_CITATION = re.compile(
    rf"\b(?P<page>wire|semantics [AB]) (?P<sections>{_SECTION}(?:, {_SECTION})*+)(?!, \d)"
    r"|\b(?P<requirement>R-[A-Z]++-\d\d)(?!\w|, \d|[-\u2013]\d| to \d)"
)
# What would be a citation, were it written as one.
_LOOSE = re.compile(rf"{SIGN}.{{0,8}}|\bR-[A-Z]{{2,}}.{{0,8}}")
# Sections of documents that are not ours.
_FOREIGN = re.compile(rf"\b(?:RFC \d+|XML 1\.0) {SIGN}[\d.]+")
# Where the contract gives its numbers: a heading, in the semantics with its part, or a first cell.
_HEADING = re.compile(rf"^#+ (?:([AB]) )?{SIGN}([\d.]+) .*$", re.MULTILINE)
_ROW = re.compile(r"^\| (\d+\.\d+|R-[A-Z]+-\d\d) \|", re.MULTILINE)


def numbers() -> list[str]:
    """Every place that can be cited, as a citation names it."""
    found = []
    for name in ("wire", "semantics", "requirements"):
        text = (CONTRACT / f"{name}.md").read_text()
        for part, number in _HEADING.findall(text):
            found.append(f"{name} {part} {SIGN}{number}" if part else f"{name} {SIGN}{number}")
        for row in _ROW.findall(text):
            found.append(row if row[0] == "R" else f"{name} {SIGN}{row}")
    return found


@cache
def citable() -> frozenset[str]:
    return frozenset(numbers())


def wrong(line: str) -> Iterator[str]:
    """What a line cites that is not there, or in another form."""
    line = _FOREIGN.sub("", line)
    for found in _CITATION.finditer(line):
        sections = (found["sections"] or "").split(", ")
        cited = [found["requirement"] or f"{found['page']} {section}" for section in sections]
        yield from (each for each in cited if each not in citable())
    yield from _LOOSE.findall(_CITATION.sub("", line))


def test_every_citation_leads_somewhere() -> None:
    found = []
    for path in text_files():
        text = path.read_text(errors="replace")
        if path.parent == CONTRACT:
            text = _HEADING.sub("", text)
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{shown(path)}:{number}: {each}" for each in wrong(line)]
    assert found == []


def test_each_number_of_the_contract_is_given_once() -> None:
    assert [name for name, count in Counter(numbers()).items() if count > 1] == []


@pytest.mark.parametrize(
    "line",
    [
        "the mechanisms follow at once (wire #1.2)",
        "(wire #2.2, #6.1), AMQP 2.6.7 and semantics A #1.1, #1.2, #2.",
        "R-{}-06, R-{}-07: what is seen is not lost; semantics B #11",
        "a bare carriage return (XML 1.0 #2.11), RFC 9110 #5.6.2",
    ],
)
def test_a_citation_in_the_right_form_is_found(line: str) -> None:
    assert list(wrong(line.replace("#", SIGN).replace("{}", "DLQ"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "a section that is not there: wire #1.9",
        "nor is the second: wire #1.2, #77",
        "a part of another page: wire A #1.2",
        "no page: #6.4",
        "a page that is none: design #2",
        "the words of before: wire contract #1.2",
        "a range: wire #2.2-2.4",
        "half a list: wire #10, 25",
        "a requirement that is not there: R-{}-99",
        "half a list of them: R-{}-01, 02",
        "a range of them: R-{}-01 to 03",
        "a family of them: R-{}",
    ],
)
def test_a_wrong_citation_is_found(line: str) -> None:
    assert list(wrong(line.replace("#", SIGN).replace("{}", "DLQ"))) != []

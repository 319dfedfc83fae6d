"""The page about the storage format has the numbers that the code has."""

from __future__ import annotations

import re
import struct

from postbus.broker.message import DETAILS
from postbus.broker.records import HEAD_SIZE
from postbus.broker.subqueue_numbers import OWNER_BITS
from postbus.store import batch
from postbus.store.sqlite.catalog import CATALOG
from postbus.store.sqlite.schema import OFFSET_BITS, STORE
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "storage-format.md").read_text()


def sizes(heading: str) -> dict[str, int]:
    """The fields of a table with a size, and the bytes that each row takes."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = {}
    for fields, size in re.findall(r"^\| ([^|]+) \| (\d[^|]*) \|", section, re.MULTILINE):
        numbers = [int(number) for number in re.findall(r"\d+", size)]
        times = len(fields.split(",")) if "each" in size else 1
        found[fields] = sum(numbers) * times
    return found


def test_the_formats_of_the_files_are_told() -> None:
    assert f"(format {CATALOG.version})" in PAGE and f"(format {STORE.version})" in PAGE
    assert f"shifted by {OFFSET_BITS} bits" in PAGE and f"shifted by {OWNER_BITS} bits" in PAGE


def test_the_fields_of_a_batch_are_its_header() -> None:
    assert sum(sizes("A record batch").values()) == batch.HEADER_SIZE
    assert f"| version | 4 | {batch.VERSION} |" in PAGE
    assert f"`{batch.MAGIC.decode()}`" in PAGE


def test_the_fields_of_a_record_are_its_head_and_details() -> None:
    fields = sizes("A record")
    assert fields.pop("details") == struct.calcsize(f"<{DETAILS}")
    assert sum(fields.values()) == HEAD_SIZE

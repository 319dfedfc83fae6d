"""Each kind of segment writer in turn, and a file to write into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postbus.store.log.segment_writer import SegmentWriter
from tests.contract.segment_writer.kinds import KINDS, OpenWriter


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_writer(kind: str) -> OpenWriter:
    return KINDS[kind]


@pytest.fixture
def writer(open_writer: OpenWriter) -> Iterator[SegmentWriter]:
    with closing(open_writer()) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """An empty segment, open."""
    descriptor = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)

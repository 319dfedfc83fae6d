"""R-PIPE-02: a stream restarts from its checkpoint with no event lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyspark_postbus.client import Client
from tests.support.administration import Administration
from tests.support.server import Server
from tests.support.spark import Program
from tests.support.waiting import until_blocking

Send = Callable[..., None]
PROGRAM = Path(__file__).parent / "programs" / "keep_offsets.py"
WITHIN_S = 420.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts drivers; none outlives the test."""
    started: list[Program] = []

    def start(server: Server, queue: str, *more: str) -> Program:
        folder = tmp_path / "kept"
        folder.mkdir(exist_ok=True)
        arguments = (server.connection_string, queue, str(folder), "local[2]", *more)
        started.append(Program(PROGRAM, tmp_path / "driver.log", *arguments))
        return started[-1]

    yield start
    for program in started:
        program.kill()


def kept(folder: Path) -> list[tuple[int, str]]:
    """Offset and message id of all rows in the folders of micro-batches."""
    rows: list[tuple[int, str]] = []
    for batch in (folder / "batches").glob("*"):
        for file in batch.glob("*.parquet"):
            table = pq.read_table(file).select(["offset", "messageId"])
            rows += [(row["offset"], row["messageId"]) for row in table.to_pylist()]
    return sorted(rows)


def under_way(folder: Path, least: int) -> Callable[[], bool]:
    """Whether a micro-batch of at least this number has begun to be written."""

    def ask() -> bool:
        mark = folder / "under-way"
        return mark.exists() and int(mark.read_text() or -1) >= least

    return ask


def test_a_driver_killed_within_a_batch_loses_and_doubles_nothing(
    make_server: Callable[..., Server], send: Send, run: Callable[..., Program], tmp_path: Path
) -> None:
    server = make_server().start()
    queue = Administration(server.connection_string).make_queue()
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "slow").touch()
    send(server, queue, 4_000)
    for batch in (0, 2):
        program = run(server, queue)
        until_blocking(f"batch {batch} is under way", under_way(folder, batch), WITHIN_S)
        program.kill()
    (folder / "slow").unlink()
    send(server, queue, 500, first=4_000)
    run(server, queue, "--once").wait(WITHIN_S)
    assert kept(folder) == [(number, f"id-{number}") for number in range(4_500)]
    with Client(server.connection_string) as client:
        assert client.feed(queue).fragments[0].next == 4_500


def test_a_stream_goes_on_when_the_broker_was_killed(
    make_server: Callable[..., Server], send: Send, run: Callable[..., Program], tmp_path: Path
) -> None:
    server = make_server().start()
    queue = Administration(server.connection_string).make_queue()
    folder = tmp_path / "kept"
    folder.mkdir()
    send(server, queue, 2_000)
    program = run(server, queue)
    for batch in (1, 4):
        until_blocking(f"batch {batch} is under way", under_way(folder, batch), WITHIN_S)
        server.kill()
        server.start()
        send(server, queue, 2_000, first=2_000 * (2 if batch > 1 else 1))
    whole = [(number, f"id-{number}") for number in range(6_000)]

    def read_or_ended() -> bool:
        try:
            return not program.running or len(kept(folder)) >= 6_000
        except (OSError, ValueError):
            return False  # a folder was being replaced

    until_blocking("all of it was read", read_or_ended, WITHIN_S)
    assert program.running, program.tail()
    assert kept(folder) == whole

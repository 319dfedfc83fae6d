"""`make bench` and its load generator, with Postbus alone and with little to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.brokers import Interpreted, Stub
from bench.record import read
from bench.run import Measurement
from bench.work import Case, Generator, RunFailed
from tests.tidy.tree import ROOT

ROWS = "w500,drain,q100"
LINES = ["w500", "send", "drain", "q100"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_small_run_measures_each_row_and_writes_a_file_that_can_be_read(tmp_path: Path) -> None:
    output = tmp_path / "run.md"
    said = run(
        *("bench.run", "--brokers", "postbus", "--rows", ROWS, "--rounds", "1"),
        *("--scale", "0.01", "--quiet", "0", "--folder", str(tmp_path), "--output", str(output)),
    )
    assert said.returncode == 0, said.stdout + said.stderr
    record = read(output)
    assert list(record.facts["lines"]) == LINES
    assert record.facts["rounds"] == 1
    assert {key: set(runs) for key, runs in record.results.items()} == {
        (line, "Postbus"): {1} for line in LINES
    }
    assert all(one.rate > 0 for runs in record.results.values() for one in runs.values())
    assert record.tables.summary() in said.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run.md"], "the data is gone"


def test_a_row_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    said = run("bench.run", "--rows", "w400", "--folder", str(tmp_path))
    assert said.returncode == 2
    assert "no row is called w400" in said.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Interpreted]:
    queues = ["one", *(f"many-{number}" for number in range(6))]
    with Interpreted(tmp_path / "postbus", queues, Interpreted.obtain()) as started:
        yield started


@pytest.mark.parametrize("settle", ["second", "first", "at-once"])
def test_the_generator_moves_messages_over_many_links_of_few_connections(
    broker: Interpreted, settle: str
) -> None:
    said = run(
        *("bench.load", "--port", str(broker.port), "--address", "many-#", "--count", "61"),
        *("--connections", "2", "--links", "3", "--window", "2", "--settle", settle),
        *("--size", "64", "--stall", "20"),
    )
    assert said.returncode == 0, said.stdout + said.stderr
    told = json.loads(said.stdout)
    assert (told["send"]["count"], told["receive"]["count"]) == (61, 61)
    assert (told["receive"]["settle_p50_ms"] is None) is (settle == "at-once")


def test_a_backlog_is_sent_before_it_is_received(broker: Interpreted) -> None:
    case = Case("one", "backlog", 200, 50)
    generator = Generator(None, at_once=False, limit_s=60)
    sent = generator.run(broker, case, "send")
    assert sent.send_settle_p50_ms is not None
    assert sent.receive_settle_p50_ms is None
    received = generator.run(broker, case, "receive")
    assert received.receive_settle_p50_ms is not None
    assert received.e2e_p50_ms is None


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with Stub(tmp_path / "stub") as started:
        yield started


def program(folder: Path, text: str) -> Path:
    """A neutral generator that says what it was asked and what is given."""
    path = folder / "load"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{text}\n')
    path.chmod(0o755)
    return path


SIDE = '{"op": "%s", "refused": 0, "rate": %d, "settle_p50_ms": -1, "settle_p99_ms": -1}'


def test_a_neutral_generator_is_asked_by_its_flags_and_its_slower_side_counts(
    stub: Stub, tmp_path: Path
) -> None:
    path = program(tmp_path, f"echo '{SIDE % ('send', 20)}'; echo '{SIDE % ('recv', 10)}'")
    generator = Generator(path, at_once=False, limit_s=60)
    told = generator.run(stub, Case("many", "many", 600, 5, connections=2, links=3))
    assert told.rate == 10
    assert told.send_settle_p50_ms is None
    asked = (tmp_path / "asked").read_text()
    for flags in ("-m both", "-2", "-a many-#", "-n 600", "-s 1024", "-w 5", "-c 2", "-l 3"):
        assert flags in asked


def test_work_that_failed_is_told_and_not_tried_again_on_what_it_left(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, "echo no credit >&2; exit 1")
    case = Case("one", "one by one", 10, 1)
    generator = Generator(path, at_once=False, limit_s=60)
    with pytest.raises(RunFailed, match="no credit"):
        generator.run(stub, case)
    measurement = Measurement([stub], generator, [case])
    done: list[int] = []
    measurement.rounds(3, float("inf"), 0, done.append)
    assert measurement.failures == ["stub, one by one, round 1: no credit"]
    assert measurement.results == {("one", "stub"): {}}
    assert done == [1, 2, 3]
    assert len((tmp_path / "asked").read_text().splitlines()) == 2
    assert "round 1: no credit" in capsys.readouterr().out

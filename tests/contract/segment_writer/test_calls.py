"""The scenarios of `scenarios.py`, each in a process whose calls are watched and steered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.segment_writer.kinds import KINDS
from tests.contract.segment_writer.scenarios import ENDLESS, NATIVE_ONLY, SCENARIOS
from tests.tidy.tree import ROOT

RUNS = [
    (kind, name)
    for name in SCENARIOS
    for kind in KINDS
    if name != ENDLESS and (kind == "native" or name not in NATIVE_ONLY)
]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`calls.c`, built."""
    built = tmp_path_factory.mktemp("calls") / "calls.so"
    source = Path(__file__).with_name("calls.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


def start(library: Path, kind: str, name: str, *more: str) -> subprocess.Popen[str]:
    module = "tests.contract.segment_writer.scenarios"
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", module, kind, name, *more]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("kind_of_writer", "name"), RUNS)
def test_scenario(library: Path, kind_of_writer: str, name: str) -> None:
    with start(library, kind_of_writer, name) as process:
        try:
            _, complaint = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, complaint) == (0, "")


def test_what_was_collected_is_in_the_file_after_a_kill(
    library: Path, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "segment"
    with start(library, kind, ENDLESS, str(file)) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            said = [process.stdout.readline() for _ in range(100)]
        finally:
            process.kill()
        said += process.stdout.readlines()
        assert process.stderr.read() == ""
    last = max(int(number) for number in said if number.endswith("\n"))
    assert last >= 100
    frames = b"".join(b"%8d" % number * 100 for number in range(1, last + 1))
    assert file.read_bytes()[: len(frames)] == frames

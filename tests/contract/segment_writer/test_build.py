"""The native writer is built where a C compiler is, and missed by nobody where none is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

NO_COMPILER = {"CC": "/nonexistent/cc"}


def build(folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "POSTBUS_NATIVE"}
    places = ["--build-lib", str(folder), "--build-temp", str(folder / "temporary")]
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", *places],
        cwd=ROOT,
        env=kept | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def built(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*.so")]


@pytest.mark.parametrize("variables", [{}, {"POSTBUS_NATIVE": "1"}])
def test_it_is_built_for_every_python_that_is_supported(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    assert build(tmp_path, variables).returncode == 0
    assert built(tmp_path) == ["_segment_writer.abi3.so"]


def test_a_build_without_a_compiler_goes_on_and_says_so(tmp_path: Path) -> None:
    run = build(tmp_path, NO_COMPILER)
    assert (run.returncode, built(tmp_path)) == (0, [])
    assert 'building extension "postbus.store.log._segment_writer" failed' in run.stdout


def test_a_build_that_must_have_it_fails_without_a_compiler(tmp_path: Path) -> None:
    assert build(tmp_path, NO_COMPILER | {"POSTBUS_NATIVE": "1"}).returncode != 0


def test_it_can_be_left_out(tmp_path: Path) -> None:
    run = build(tmp_path, {"POSTBUS_NATIVE": "0"})
    assert (run.returncode, run.stdout, built(tmp_path)) == (0, "", [])


def test_without_it_the_python_writer_is_chosen() -> None:
    code = """
import sys
sys.modules["postbus.store.log._segment_writer"] = None  # as if it were not there
from postbus.store.log.segment_writer import choose_writer
writer = choose_writer(7)
print(type(writer).__name__, writer.collect())
writer.close()
"""
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert (run.stdout, run.stderr) == ("PythonSegmentWriter 7\n", "")

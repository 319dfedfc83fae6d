"""The official Go SDK: each test of tests/go is run and reported by itself.

It comes through Go's module proxy; where there is no Go, or no way to the proxy, all are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golang import NoGo, build, listed, run
from tests.support.server import Server


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    # Several processes of one run have their folders side by side.
    shared = base if worker_id == "master" else base.parent
    try:
        return build(shared)
    except NoGo as reason:
        pytest.skip(f"no Go SDK: {reason}")


@pytest.mark.parametrize("name", listed())
def test_go(server: Server, program: Path, name: str) -> None:
    done = run(program, name, server)
    assert done.returncode == 0, done.stdout
    assert f"--- PASS: {name}" in done.stdout, done.stdout

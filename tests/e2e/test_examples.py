"""The programs in examples/ do what they say, in each language that is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.golang import NoGo, run_module
from tests.support.java import NoJava, class_path, run_source
from tests.support.server import Server
from tests.tidy.tree import ROOT

EXAMPLES = ROOT / "examples"
TEA = "received: two cups of tea\n"


@pytest.fixture
def bus(make_server: Callable[..., Server]) -> Server:
    """A broker with the entities that examples/README.md starts one with."""
    return make_server("--config", str(EXAMPLES / "postbus.toml")).start()


def run(server: Server, *command: str, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, **told(server), **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told(server: Server) -> dict[str, str]:
    return {"POSTBUS_CONNECTION_STRING": server.connection_string}


def python(server: Server, name: str) -> list[str]:
    return run(server, sys.executable, str(EXAMPLES / "python" / name)).splitlines()


def test_send_and_receive_in_python(bus: Server) -> None:
    assert python(bus, "send_receive.py") == TEA.splitlines()


def test_a_worker_serves_retries_and_sets_aside(bus: Server) -> None:
    lines = python(bus, "worker.py")
    assert sorted(lines) == sorted([
        "served: tea",
        *(f"failed for the {time}. time: the coffee machine is broken" for time in (1, 2, 3)),
        "dead letter: a cup of anything (NotAnOrder)",
        'dead letter: {"drink": "coffee"} (MaxDeliveryCountExceeded)',
    ])  # fmt: skip


def test_sessions_are_served_in_order(bus: Server) -> None:
    lines = python(bus, "sessions.py")
    seven = [line for line in lines if line.startswith("table 7")]
    assert [line.partition(": ")[2] for line in seven] == ["tea", "cake", "the bill", "served 3"]
    assert [line for line in lines if line.startswith("table 8")] == [
        "table 8: milk",
        "table 8: served 1",
    ]


def test_send_and_receive_in_node(bus: Server) -> None:
    node = str(Path(sys.executable).with_name("node"))
    modules = str(ROOT / "tests" / "js" / "node_modules")
    program = str(EXAMPLES / "node" / "send_receive.js")
    assert run(bus, node, program, NODE_PATH=modules) == TEA


def test_send_and_receive_in_java(
    bus: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        classes = class_path(tmp_path, download=False)
    except NoJava as reason:
        pytest.skip(f"no Java SDK: {reason}")
    for name, value in told(bus).items():
        monkeypatch.setenv(name, value)
    assert run_source(classes, EXAMPLES / "java" / "SendReceive.java") == TEA


def test_send_and_receive_in_go(bus: Server) -> None:
    try:
        said = run_module(EXAMPLES / "go", told(bus))
    except NoGo as reason:
        pytest.skip(f"no Go SDK: {reason}")
    assert said == TEA

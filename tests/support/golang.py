"""The official Go SDK: the tests in tests/go, built once for a run of pytest."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.support.carriers import local_ca
from tests.support.server import Server

MODULE = Path(__file__).parent.parent / "go"
_FETCH_WITHIN_S = 120.0
_BUILD_WITHIN_S = 300.0


class NoGo(Exception):
    """Why the Go SDK cannot be had here."""


def listed() -> list[str]:
    """The names of all tests in the module."""
    sources = [file.read_text() for file in sorted(MODULE.glob("*_test.go"))]
    return [name for text in sources for name in re.findall(r"^func (Test\w+)\(", text, re.M)]


def build(shared: Path) -> Path:
    """The tests as a program, in a folder that all processes of the run have in common."""
    if shutil.which("go") is None:
        raise NoGo("go is not installed")
    program, reason = shared / "go-conformance", shared / "no-go"
    with (shared / "go-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() and not reason.exists():
            problem = _fetch()
            if problem is None:
                _compile(program)
            else:
                reason.write_text(problem)
    if reason.exists():
        raise NoGo(reason.read_text())
    return program


def run_module(module: Path, variables: dict[str, str]) -> str:
    """Run the program of another module; returns what it prints."""
    if shutil.which("go") is None:
        raise NoGo("go is not installed")
    if (problem := _fetch(module)) is not None:
        raise NoGo(problem)
    ended = _go("run", ".", within_s=_BUILD_WITHIN_S, module=module, variables=variables)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _fetch(module: Path = MODULE) -> str | None:
    """Have the modules that a module imports, from Go's cache or its proxy; else say why not."""
    try:
        ended = _go("list", "-deps", "-test", "./...", within_s=_FETCH_WITHIN_S, module=module)
    except subprocess.TimeoutExpired:
        return f"the modules did not come within {_FETCH_WITHIN_S:.0f} s"
    lines = (ended.stderr or ended.stdout).strip().splitlines()
    return None if ended.returncode == 0 else f"the modules cannot be had: {lines[-1][:300]}"


def _compile(program: Path) -> None:
    ended = _go("test", "-c", "-o", str(program), ".", within_s=_BUILD_WITHIN_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _go(
    *arguments: str,
    within_s: float,
    module: Path = MODULE,
    variables: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=module,
        # No other Go than the one that is installed.
        env={**os.environ, "GOTOOLCHAIN": "local", **(variables or {})},
        check=False,
        capture_output=True,
        text=True,
        timeout=within_s,
    )


def run(program: Path, name: str, server: Server) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), f"-test.run=^{name}$", "-test.v", "-test.timeout=120s"],
        env={
            **os.environ,
            "POSTBUS_CONNECTION_STRING": server.connection_string,
            "SSL_CERT_FILE": str(local_ca(server)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )

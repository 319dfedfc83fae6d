"""What the README tells a newcomer to paste works as pasted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.server import Server

README = Path(__file__).resolve().parents[2] / "README.md"


def block(language: str, mark: str) -> str:
    """The one code block in this language that holds the mark."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = (one for one in blocks if mark in one)
    return str(found)


def flags(mark: str) -> list[str]:
    """The flags of the one `make serve` that holds the mark."""
    given = re.findall(r"^make serve ARGS='(.*)'$", README.read_text(), re.MULTILINE)
    (found,) = (one for one in given if mark in one)
    return shlex.split(found)


def run_snippet(server: Server, folder: Path) -> str:
    text = block("python", "ServiceBusClient")
    assert "localhost:5672" in text, "the README is about the default port"
    script = folder / "snippet.py"
    script.write_text(text.replace("localhost:5672", f"localhost:{server.port}"))
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_snippet_runs_as_pasted_and_again(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = make_server(*flags("--queue")).start()
    assert run_snippet(server, tmp_path) == "received: two cups of tea\n"
    assert run_snippet(server, tmp_path) == "received: two cups of tea\n"
    assert server.stop() == 0


def test_the_connection_string_in_the_snippet_is_the_one_that_serve_prints(
    make_server: Callable[..., Server],
) -> None:
    server = make_server().start()
    pasted = "".join(re.findall(r'^    "(.*)"$', block("python", "CONNECTION"), re.MULTILINE))
    assert server.connection_string == pasted.replace("5672", str(server.port))


def test_the_file_in_the_readme_makes_the_queue(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    path = tmp_path / "postbus.toml"
    path.write_text(block("toml", "queues.orders"))
    server = make_server("--config", str(path)).start()
    assert run_snippet(server, tmp_path) == "received: two cups of tea\n"


def test_the_snippet_touches_no_private_attribute() -> None:
    assert re.findall(r"\._\w+", block("python", "ServiceBusClient")) == []

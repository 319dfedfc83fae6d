"""The page about paired namespaces says what the code does."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from postbus.paired import SendAvailability
from tests.support.server import Server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "paired-namespaces.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_snippet_prints_what_the_page_says(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    primary = make_server("--queue", "orders", data="primary").start()
    secondary = make_server(data="secondary").start()
    script = block("python")
    for name, server in (("PRIMARY", primary), ("SECONDARY", secondary)):
        script = re.sub(
            f"^{name} = .*$", f"{name} = {server.connection_string!r}", script, flags=re.MULTILINE
        )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, block("text")), done.stderr


def test_every_option_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [field.name for field in dataclasses.fields(SendAvailability)]

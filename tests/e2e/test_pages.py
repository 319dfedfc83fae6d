"""The examples of pages with curl run as they stand, and print what the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.server import Server

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", ["rest.md", "dead-letters.md", "feed.md"])
def test_the_examples_print_what_the_page_says(server: Server, tmp_path: Path, page: str) -> None:
    blocks = _BLOCK.findall((DOCS / page).read_text())
    script = "".join(block for language, block in blocks if language == "sh")
    expected = "".join(block for language, block in blocks if language == "text")
    assert script.count("localhost:5672") == 1, "the page is about the default port"
    done = subprocess.run(
        ["bash", "-eu"],
        input=script.replace("localhost:5672", f"localhost:{server.port}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.replace("\r", "")) == (0, expected), done.stderr

"""What docs/spark.md tells a newcomer to paste works as pasted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.support.administration import administration_client
from tests.support.server import Server
from tests.support.spark import ROOT, Program

PAGE = ROOT / "docs" / "spark.md"


def test_the_quick_start_runs_as_pasted(make_server: Callable[..., Server], tmp_path: Path) -> None:
    text, _ = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    server = make_server().start()
    administration_client(server.connection_string).create_queue("orders")
    script = tmp_path / "snippet.py"
    assert "localhost:5672" in text, "the page is about the default port"
    text = text.replace("localhost:5672", f"localhost:{server.port}")
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{text}")
    log = tmp_path / "output.log"
    Program(script, log).wait(300)
    said = log.read_text()
    assert "| enqueued| 1000|" in said
    assert "events: 1000" in said
    assert "Traceback" not in said

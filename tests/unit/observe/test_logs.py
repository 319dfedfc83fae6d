"""Facts with keys, and nothing a stranger sends can forge them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from postbus.observe.logs import Valve, configure, get_logger


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_are_facts_with_keys() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    get_logger("listener").info("listening", host="127.0.0.1", port=5672)
    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "listening",
        "part": "listener",
        "host": "127.0.0.1",
        "port": 5672,
        "level": "info",
    }


def test_console_lines_are_for_people_and_without_colour_where_nobody_looks() -> None:
    out = io.StringIO()
    configure("info", "console", out)
    get_logger("listener").warning("connection refused", reason="tls")
    line = out.getvalue()
    assert "connection refused" in line
    assert "reason=tls" in line
    assert "\x1b" not in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("form", ["console", "json"])
def test_lines_below_the_level_are_not_written(form: str) -> None:
    out = io.StringIO()
    configure("warning", form, out)  # type: ignore[arg-type]
    get_logger("x").info("quiet")
    assert out.getvalue() == ""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_value_from_a_peer_can_neither_forge_a_line_nor_paint_nor_flood(form: str) -> None:
    out = io.StringIO()
    configure("info", form, out)  # type: ignore[arg-type]
    evil = "orders\n2026-01-01 [error] all lost\x1b[31m" + "x" * 100_000
    get_logger("x").info("refused", entity=evil)
    written = out.getvalue()
    assert written.count("\n") == 1
    assert "\x1b" not in written
    assert len(written) < 1_000


@pytest.mark.parametrize("form", ["console", "json"])
def test_an_exception_is_written_with_its_traceback(form: str) -> None:
    out = io.StringIO()
    configure("info", form, out)  # type: ignore[arg-type]
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("x").exception("failed")
    assert "Traceback" in out.getvalue()
    assert "ValueError: broken" in out.getvalue()


def test_what_libraries_log_comes_out_in_the_same_form() -> None:
    out = io.StringIO()
    configure("info", "json", out)
    configure("info", "json", out)
    logging.getLogger("uvicorn.error").warning("odd %s", "thing")
    logging.getLogger("asyncio").info("chatter")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["part"], line["text"]) for line in lines] == [
        ("library", "uvicorn.error", "odd thing")
    ]


def test_a_flood_of_one_event_becomes_one_line_and_a_count() -> None:
    valve = Valve(interval_ms=1_000)
    assert valve.passes("tls", 0) == 0
    assert valve.passes("silent", 0) == 0
    assert [valve.passes("tls", at) for at in (1, 500, 999)] == [None, None, None]
    assert valve.passes("tls", 1_000) == 3
    assert valve.passes("tls", 2_500) == 0

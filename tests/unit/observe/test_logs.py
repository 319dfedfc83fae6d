"""Facts with keys that nobody can forge, and ids that tie a refusal to its line (R-SETTLE-02)."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from postbus.errors import EntityNotFound
from postbus.observe.logs import TrackingIds, Valve, configure, get_logger


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


T0 = 1_591_401_661_500


def test_a_refusal_ends_with_id_entity_and_time_as_azure_writes_them() -> None:
    tracking = TrackingIds("sbemulatorns", lambda: T0, lambda: "0a1b").track("orders")
    assert tracking.describe(EntityNotFound("sb://localhost/orders")) == (
        "The messaging entity 'sb://localhost/orders' could not be found. "
        "TrackingId:0a1b_G0, SystemTracker:sbemulatorns:orders, Timestamp:2020-06-06T00:01:01"
    )


def test_without_an_entity_the_namespace_is_named() -> None:
    tracking = TrackingIds("ns", lambda: 0, lambda: "x").track()
    assert tracking.describe("No.") == (
        "No. TrackingId:x_G0, SystemTracker:ns, Timestamp:1970-01-01T00:00:00"
    )


def test_a_clients_own_words_are_quoted_back_only_so_far() -> None:
    tracking = TrackingIds("ns", lambda: 0, lambda: "x").track()
    described = tracking.describe(EntityNotFound("q" * 1_000_000))
    assert len(described) < 2_200
    assert "… TrackingId:x_G0" in described


def test_ids_are_guids_and_differ() -> None:
    ids = TrackingIds("ns", lambda: 0)
    first, second = ids.track().id, ids.track().id
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_G0", first)
    assert first != second

"""The file of a run: what is written can be read, and the tables made again from it."""

from __future__ import annotations

from pathlib import Path

from bench.record import Record, file_name, read
from bench.work import Run

FACTS = {
    "date": "2026-01-02 03:04 UTC",
    "machine": {"cores": "2"},
    "generator": "a generator",
    "scale": 1.0,
    "rounds": 2,
    "lines": {"w500": "window 500", "drain": "backlog: drain"},
    "brokers": {
        name: {
            "full_name": f"{name} 1",
            "settlement": "at once",
            "warm_up": 2_000,
            "start_s": 1.0,
            "stop_s": 0.5,
            "idle_mb": 60.0,
            "logged": ["2 times: a warning"],
        }
        for name in ("Postbus", "Artemis")
    },
    "missing": {"RabbitMQ": "it is not installed"},
    "failures": ["Artemis, backlog: drain, round 1: no progress"],
}
RUN = Run(12_345.6789, 10.00049, 1.0, 2.0, None, None, None, None, 50.0, 0.5, 0.5, 0.3)
RESULTS = {("w500", "Postbus"): {1: RUN, 2: RUN}, ("w500", "Artemis"): {2: RUN}}


def test_a_file_is_read_as_it_was_written_and_its_page_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "run.md"
    Record(FACTS, RESULTS).write(path)
    record = read(path)
    assert record.facts == FACTS
    assert record.results[("w500", "Artemis")][2].rate == 12_345.679
    assert record.results[("w500", "Artemis")][2].e2e_p50_ms is None
    assert record.page() == path.read_text()


def test_the_page_tells_what_was_left_out_failed_or_disturbed() -> None:
    page = Record(FACTS, RESULTS).page()
    assert "- RabbitMQ is not in it: it is not installed." in page
    assert "- Failed: Artemis, backlog: drain, round 1: no progress." in page
    assert "- 3 of 3 runs were disturbed" in page
    assert "no basis for a claim" in page
    assert "| cores | 2 |" in page
    assert (
        "| Artemis | Artemis 1 | at once | 2000 | 1.0 | 0.5 | 60.0 | 2 times: a warning |" in page
    )


def test_files_are_named_by_their_date_so_that_names_sort_by_age() -> None:
    assert file_name("2026-01-02 03:05 UTC") == "queues-2026-01-02-0305.md"
    assert file_name("2026-01-02 03:05 UTC") < file_name("2026-01-02 14:05 UTC")

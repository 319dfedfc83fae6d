"""The file of a run of `make bench`: written to be read, and read again for the table of the docs.

It ends with all numbers and facts. Everything above them is written from these two blocks.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bench.brokers import ROOT
from bench.report import Results, Tables, disturbed, markdown
from bench.rows import ROWS
from bench.work import QUIET_SHARE, Run

KEPT = ROOT / "bench" / "results"
_NUMBERS = [field.name for field in fields(Run)]
_FENCE = re.compile(r"^```(csv|json)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def file_name(date: str) -> str:
    """Named by its date, `2026-01-02 03:04 UTC`, so that names sort by age."""
    return f"queues-{date.removesuffix(' UTC').replace(' ', '-').replace(':', '')}.md"


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured on what, and what it gave."""

    facts: dict[str, Any]
    results: Results

    @property
    def tables(self) -> Tables:
        brokers = {name: told["settlement"] for name, told in self.facts["brokers"].items()}
        return Tables(self.results, self.facts["lines"], brokers)

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know before the numbers."""
        facts = self.facts
        disturbed_runs, runs = disturbed(self.results)
        told = [
            f"Load by {facts['generator']}; rounds: {facts['rounds']}; message counts x"
            f" {facts['scale']:g}. Values are medians (least..most).",
            f"{disturbed_runs} of {runs} runs were disturbed: more than {QUIET_SHARE:.0%} of a core"
            " was busy with something else."
            + (" Such numbers are no basis for a claim." if disturbed_runs else ""),
        ]
        told += [f"{name} is not in it: {reason}." for name, reason in facts["missing"].items()]
        return told + [f"Failed: {failure}." for failure in facts["failures"]]

    def page(self) -> str:
        facts = self.facts
        titles = {
            "full_name": "version",
            "settlement": "receivers settle",
            "warm_up": "messages to warm up",
            "start_s": "start s",
            "stop_s": "stop s",
            "idle_mb": "idle MB",
        }
        heads = ["broker", *titles.values(), "logged"]
        brokers = [
            [name, *(str(told[key]) for key in titles), _logged(told["logged"])]
            for name, told in facts["brokers"].items()
        ]
        parts = [
            f"# Queues beside peers, {facts['date']}",
            "Written by `make bench`, from the numbers and facts at the end.",
            "Durable messages of 1 KB, unless a line says otherwise; generator and brokers share"
            " the machine.",
            markdown(["machine", ""], [[name, told] for name, told in facts["machine"].items()]),
            markdown(heads, brokers),
            "\n".join(f"- {remark}" for remark in self.remarks),
            self.tables.summary(),
            *self.tables.details(),
            "## All numbers",
            f"```csv\n{_numbers(self.results)}```",
            "## All facts",
            f"```json\n{json.dumps(facts, indent=1)}\n```",
        ]
        return "\n\n".join(parts) + "\n"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The tables are made of the numbers as they are written, so that they can be made again.
        path.write_text(Record(self.facts, _results(_numbers(self.results))).page())


def read(path: Path) -> Record:
    blocks = dict(_FENCE.findall(path.read_text()))
    return Record(json.loads(blocks["json"]), _results(blocks["csv"]))


def kept() -> list[Path]:
    """The runs in bench/results, the newest first."""
    return sorted(KEPT.glob("queues-*.md"), reverse=True)


def newest_whole() -> Path:
    """The newest of them that has every row."""
    wanted = {name for row in ROWS for name, _ in row.lines.values()}
    return next(path for path in kept() if wanted <= set(read(path).facts["lines"]))


def _logged(lines: list[str]) -> str:
    """In a cell of a table, where a bar would end the cell."""
    return "; ".join(lines).replace("|", "\\|") or "nothing"


def _numbers(results: Results) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["line", "broker", "round", *_NUMBERS])
    for (line, broker), runs in results.items():
        for index, run in runs.items():
            values = (getattr(run, name) for name in _NUMBERS)
            writer.writerow(
                [line, broker, index, *("" if one is None else round(one, 3) for one in values)]
            )
    return out.getvalue()


def _results(text: str) -> Results:
    results: Results = {}
    for row in csv.DictReader(io.StringIO(text)):
        values = {name: float(row[name]) if row[name] else None for name in _NUMBERS}
        runs = results.setdefault((row["line"], row["broker"]), {})
        runs[int(row["round"])] = Run(**values)  # type: ignore[arg-type]
    return results

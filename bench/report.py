"""The tables of a measurement, in Markdown, and the file with all of its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.numbers import Spread
from bench.work import QUIET_SHARE, Case, Run

# What a broker gave in a case, one run for each round in which it did the case; None where it
# did not.
Results = dict[tuple[str, Case], list[Run | None]]
Number = Callable[[Run], float | None]


def spread_of(runs: list[Run | None], number: Number) -> Spread | None:
    values = [value for run in runs if run is not None and (value := number(run)) is not None]
    return Spread.of(values)


def ratios(ours: list[Run | None], theirs: list[Run | None]) -> Spread | None:
    """The ratio of the rates round by round, so that both sides of it had the same minute."""
    values = [
        mine.rate / other.rate
        for mine, other in zip(ours, theirs, strict=False)
        if mine is not None and other is not None and other.rate
    ]
    return Spread.of(values)


def comparison(
    titles: Sequence[tuple[str, str, int]], ours: Sequence[object], theirs: Sequence[object]
) -> list[list[str]]:
    """A line for each title, field and number of digits: what each side gave, and the ratio round
    by round."""
    lines = []
    for title, field, digits in titles:
        mine = [float(getattr(run, field)) for run in ours]
        its = [float(getattr(run, field)) for run in theirs]
        ratio = [one / other for one, other in zip(mine, its, strict=True)]
        lines.append([title, _text(mine, digits), _text(its, digits), f"**{_text(ratio, 2)}**"])
    return lines


def _text(values: Sequence[float], digits: int) -> str:
    spread = Spread.of(values)
    return "-" if spread is None else spread.text(digits)


def tables(results: Results, names: list[str]) -> str:
    """Rates with their ratios, then times, then costs."""
    work = list(dict.fromkeys(case for _, case in results))
    parts = [_rates(results, names, work)]
    parts.append(
        _table(
            "time in ms, p50 / p99",
            [
                *((f"{name}: send settled", _send_settle) for name in names),
                *((f"{name}: receive settled", _receive_settle) for name in names),
                *((f"{name}: end to end", _e2e) for name in names),
            ],
            names * 3,
            results,
            work,
        )
    )
    parts.append(
        _table(
            "cost to the broker, and who else was busy",
            [
                *((f"{name}: CPU µs per message", _cpu) for name in names),
                *((f"{name}: MB resident after it", _memory) for name in names),
                *((f"{name}: % of a core busy elsewhere", _elsewhere) for name in names),
            ],
            names * 3,
            results,
            work,
        )
    )
    return "\n\n".join(parts)


def _rates(results: Results, names: list[str], work: list[Case]) -> str:
    heads = ["messages per second", *names]
    if len(names) > 1:
        heads.append(f"{names[0]} / {names[1]}")
    rows = []
    for case in work:
        row = [case.title]
        for name in names:
            spread = spread_of(results[name, case], lambda run: run.rate)
            row.append("failed" if spread is None else spread.text(0))
        if len(names) > 1:
            ratio = ratios(results[names[0], case], results[names[1], case])
            row.append("" if ratio is None else f"**{ratio.text(2)}**")
        rows.append(row)
    return markdown(heads, rows)


def _table(
    head: str,
    columns: list[tuple[str, Callable[[list[Run | None]], str]]],
    names: list[str],
    results: Results,
    work: list[Case],
) -> str:
    heads = [head, *(title for title, _ in columns)]
    rows = [
        [
            case.title,
            *(text(results[name, case]) for name, (_, text) in zip(names, columns, strict=True)),
        ]
        for case in work
    ]
    return markdown(heads, rows)


def _pair(runs: list[Run | None], p50: Number, p99: Number) -> str:
    middle, high = spread_of(runs, p50), spread_of(runs, p99)
    if middle is None or high is None:
        return "-"
    return f"{middle.middle:.1f} / {high.middle:.1f}"


def _send_settle(runs: list[Run | None]) -> str:
    return _pair(runs, lambda run: run.send_settle_p50_ms, lambda run: run.send_settle_p99_ms)


def _receive_settle(runs: list[Run | None]) -> str:
    return _pair(runs, lambda run: run.receive_settle_p50_ms, lambda run: run.receive_settle_p99_ms)


def _e2e(runs: list[Run | None]) -> str:
    return _pair(runs, lambda run: run.e2e_p50_ms, lambda run: run.e2e_p99_ms)


def _cpu(runs: list[Run | None]) -> str:
    spread = spread_of(runs, lambda run: run.cpu_us_per_message)
    return "-" if spread is None else spread.text(0)


def _memory(runs: list[Run | None]) -> str:
    spread = spread_of(runs, lambda run: run.resident_mb)
    return "-" if spread is None else spread.text(0)


def _elsewhere(runs: list[Run | None]) -> str:
    spread = spread_of(runs, lambda run: 100 * run.elsewhere_share)
    return "-" if spread is None else spread.text(0)


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is words and whose others are numbers."""
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def disturbed(results: Results) -> tuple[int, int]:
    """How many runs had company, and how many there were."""
    runs = [run for one in results.values() for run in one if run is not None]
    return sum(run.elsewhere_share > QUIET_SHARE for run in runs), len(runs)


def write(path: Path, facts: dict[str, Any], results: Results) -> None:
    """Write all numbers of all rounds."""
    measured = [
        {
            "broker": name,
            **asdict(case),
            "rounds": [None if run is None else asdict(run) for run in runs],
        }
        for (name, case), runs in results.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "measured": measured}, indent=1) + "\n")

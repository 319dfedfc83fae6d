"""The tables of a measurement, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.numbers import Spread
from bench.work import QUIET_SHARE, Run

# What a broker gave in a line of the table, by the round.
Results = dict[tuple[str, str], dict[int, Run]]

# Title, the number or the pair of numbers it shows, digits.
_OTHERS = (
    ("send settled, ms, p50 / p99", ("send_settle_p50_ms", "send_settle_p99_ms"), 1),
    ("receive settled, ms, p50 / p99", ("receive_settle_p50_ms", "receive_settle_p99_ms"), 1),
    ("end to end, ms, p50 / p99", ("e2e_p50_ms", "e2e_p99_ms"), 1),
    ("MB resident after it", ("resident_mb",), 0),
    ("cores busy elsewhere", ("elsewhere_share",), 2),
)


def spread_of(runs: Mapping[int, Run], number: str) -> Spread | None:
    values = [getattr(run, number) for run in runs.values()]
    return Spread.of([value for value in values if value is not None])


def ratios(ours: Mapping[int, Run], theirs: Mapping[int, Run], number: str) -> Spread | None:
    """The ratio round by round, so that both sides of it had the same minute."""
    values = [
        getattr(run, number) / getattr(theirs[index], number)
        for index, run in ours.items()
        if index in theirs and getattr(theirs[index], number)
    ]
    return Spread.of(values)


class Tables:
    """The tables of one measurement, whose lines and brokers have names in this order."""

    def __init__(
        self, results: Results, lines: Mapping[str, str], brokers: Mapping[str, str]
    ) -> None:
        """`lines`: titles by name; `brokers`: how receivers settle, by name."""
        self._results = results
        self._lines = lines
        self._brokers = brokers
        ours = [name for name in brokers if name.startswith("Postbus")]
        peers = [name for name in brokers if name not in ours]
        self._pairs = [(one, other) for other in peers for one in ours]

    def summary(self) -> str:
        """Median rates, and their ratios with the spread."""
        table = self._compared("messages per second", "rate", 0, middle_only=True)
        settle = ["receivers settle", *self._brokers.values(), *("" for _ in self._pairs)]
        return markdown(table[0], [settle, *table[1:]])

    def details(self) -> list[str]:
        """All rates and costs with their spread and ratios, then times and memory."""
        tables = [
            self._compared("messages per second", "rate", 0),
            self._compared("CPU µs of the broker for a message", "cpu_us_per_message", 1),
            *(self._plain(title, numbers, digits) for title, numbers, digits in _OTHERS),
        ]
        return [markdown(table[0], table[1:]) for table in tables]

    def _compared(
        self, title: str, number: str, digits: int, middle_only: bool = False
    ) -> list[list[str]]:
        heads = [title, *self._brokers, *(f"{one} / {other}" for one, other in self._pairs)]
        rows = [heads]
        for line, told in self._lines.items():
            runs = {name: self._results.get((line, name), {}) for name in self._brokers}
            spreads = [spread_of(each, number) for each in runs.values()]
            pairs = [ratios(runs[one], runs[other], number) for one, other in self._pairs]
            rows.append(
                [
                    told,
                    *(_text(spread, digits, middle_only) for spread in spreads),
                    *("-" if pair is None else f"**{pair.text(2)}**" for pair in pairs),
                ]
            )
        return rows

    def _plain(self, title: str, numbers: Sequence[str], digits: int) -> list[list[str]]:
        rows = [[title, *self._brokers]]
        for line, told in self._lines.items():
            row = [told]
            for name in self._brokers:
                runs = self._results.get((line, name), {})
                spreads = [spread_of(runs, number) for number in numbers]
                texts = [_text(spread, digits, len(numbers) > 1) for spread in spreads]
                row.append("-" if None in spreads else " / ".join(texts))
            rows.append(row)
        return rows


def _text(spread: Spread | None, digits: int, middle_only: bool) -> str:
    if spread is None:
        return "-"
    return f"{spread.middle:,.{digits}f}" if middle_only else spread.text(digits)


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
        texts = [_text(Spread.of(values), digits, False) for values in (mine, its)]
        lines.append([title, *texts, f"**{_text(Spread.of(ratio), 2, False)}**"])
    return lines


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is words and whose others are numbers."""
    lines = [heads, ["---", *("--:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def disturbed(results: Results) -> tuple[int, int]:
    """How many runs had company, and how many there were."""
    runs = [run for one in results.values() for run in one.values()]
    return sum(run.elsewhere_share > QUIET_SHARE for run in runs), len(runs)

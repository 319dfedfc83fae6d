"""Charts as SVG text, for a page that needs nothing from anywhere else.

Colours are variables of the page's style sheet (`--s1` to `--s8`). So the same drawing is readable
on light and on dark. Each mark has a `<title>`, which browsers show under the pointer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

from pyspark_postbus.pipelines.scales import (
    linear_marks,
    log_marks,
    number_text,
    time_marks,
    time_text,
)

Values = Sequence[float | None]
"""A value for each column of time; None if there is nothing to show."""
Text = Callable[[float], str]

COLOURS: Final = 8
_WIDTH: Final = 860
_HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_ROW: Final = 24
_LABEL: Final = 260


class _Frame:
    """The area of a chart over time: from values to places."""

    def __init__(
        self, times: Sequence[datetime], width_s: int, top: float, low: float | None, text: Text
    ) -> None:
        self.start = times[0]
        self.end = times[-1] + timedelta(seconds=width_s)
        self.is_log = low is not None
        self.marks = linear_marks(top) if low is None else log_marks(low, top)
        self._text = text
        self._column = (_WIDTH - _LEFT - _RIGHT) / len(times)

    @property
    def column(self) -> float:
        return self._column

    def x(self, at: datetime) -> float:
        share = (at - self.start) / (self.end - self.start)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        least, most = self.marks[0], self.marks[-1]
        if self.is_log:
            value, least, most = (math.log10(max(one, least)) for one in (value, least, most))
        return _HEIGHT - _BOTTOM - (value - least) / (most - least) * (_HEIGHT - _TOP - _BOTTOM)

    def drawn(self) -> list[str]:
        """Lines and words around the chart."""
        parts = []
        for mark in self.marks:
            y = self.y(mark)
            parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" '
                         f'y2="{y:.1f}"/>')  # fmt: skip
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
                         f"{escape(self._text(mark))}</text>")  # fmt: skip
        marks = time_marks(self.start, self.end)
        for at in marks:
            x = self.x(at)
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEIGHT - _BOTTOM}" '
                         f'y2="{_HEIGHT - _BOTTOM + 4}"/>')  # fmt: skip
            anchor = "end" if x > _WIDTH - 40 else "middle"
            parts.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">'
                         f"{escape(time_text(at, marks))}</text>")  # fmt: skip
        return parts


def line_chart(
    label: str,
    times: Sequence[datetime],
    width_s: int,
    series: Mapping[str, Values],
    text: Text = number_text,
    log: bool = False,
) -> str:
    """Lines over time. With `log` the axis has powers of ten, for values that differ by many."""
    known = [one for values in series.values() for one in values if one is not None]
    if not times or not known:
        return _nothing(label)
    low = max(min((one for one in known if one > 0), default=1.0), 1e-3) if log else None
    frame = _Frame(times, width_s, max(known), low, text)
    parts = frame.drawn()
    middle = timedelta(seconds=width_s / 2)
    for number, (name, values) in enumerate(series.items()):
        colour = number % COLOURS + 1
        for run in _runs(times, values):
            points = [(frame.x(at + middle), frame.y(value), at, value) for at, value in run]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
            if len(points) > 1:
                parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
            for x, y, at, value in points:
                told = escape(f"{name}, {at:%Y-%m-%d %H:%M:%S}: {text(value)}")
                parts.append(f'<circle class="dot c{colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
                             f"<title>{told}</title></circle>")  # fmt: skip
    return _figure(label, parts, _HEIGHT) + legend(list(series))


def _runs(times: Sequence[datetime], values: Values) -> list[list[tuple[datetime, float]]]:
    """Stretches without a gap."""
    runs: list[list[tuple[datetime, float]]] = [[]]
    for at, value in zip(times, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def column_chart(
    label: str,
    times: Sequence[datetime],
    width_s: int,
    series: Mapping[str, Values],
    text: Text = number_text,
) -> str:
    """Columns over time, the series on top of each other."""
    sums = [sum(one or 0 for one in column) for column in zip(*series.values(), strict=True)]
    if not times or not any(sums):
        return _nothing(label)
    frame = _Frame(times, width_s, max(sums), None, text)
    parts = frame.drawn()
    width = max(1.0, frame.column - 1)
    below = [0.0] * len(times)
    for number, (name, values) in enumerate(series.items()):
        for place, (at, value) in enumerate(zip(times, values, strict=True)):
            if not value:
                continue
            bottom, top = frame.y(below[place]), frame.y(below[place] + value)
            told = escape(f"{name}, {at:%Y-%m-%d %H:%M:%S}: {text(value)}")
            parts.append(f'<rect class="bar c{number % COLOURS + 1}" x="{frame.x(at):.1f}" '
                         f'y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}">'
                         f"<title>{told}</title></rect>")  # fmt: skip
            below[place] += value
    return _figure(label, parts, _HEIGHT) + legend(list(series))


def rank_chart(label: str, rows: Sequence[tuple[str, float]], text: Text = number_text) -> str:
    """A bar beside each name, longest first as they are given."""
    top = max((value for _, value in rows), default=0)
    if not top:
        return _nothing(label)
    parts = []
    room = _WIDTH - _LABEL - 90
    for number, (name, value) in enumerate(rows):
        y = number * _ROW
        shown = name if len(name) <= 38 else f"{name[:37]}…"
        length = max(1.0, value / top * room)
        parts.append(f'<text class="name" x="{_LABEL - 8}" y="{y + 16}" text-anchor="end">'
                     f"{escape(shown)}<title>{escape(name)}</title></text>")  # fmt: skip
        parts.append(f'<rect class="bar c1" x="{_LABEL}" y="{y + 4}" width="{length:.1f}" '
                     f'height="{_ROW - 8}"/>')  # fmt: skip
        parts.append(f'<text class="tick" x="{_LABEL + length + 6:.1f}" y="{y + 16}">'
                     f"{escape(text(value))}</text>")  # fmt: skip
    return _figure(label, parts, len(rows) * _ROW + 4)


def legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><i class="c{number % COLOURS + 1}"></i>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _figure(label: str, parts: Sequence[str], height: int) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {height}">'
        f"{''.join(parts)}</svg>"
    )


def _nothing(label: str) -> str:
    return f'<p class="nothing">{escape(label)}: nothing in this time.</p>'

"""Scales of charts: the positions of the marks of an axis, and the texts beside them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

WIDTHS_S: Final = (1, 5, 10, 30, 60, 300, 900, 3_600, 21_600, 86_400, 604_800)
"""Widths that a column of time may have, in seconds."""

_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800),
)
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def width_of_column(seconds: float, columns_max: int = 120) -> int:
    """The smallest width by which the time fits into `columns_max` columns."""
    for width in WIDTHS_S:
        if seconds / width <= columns_max:
            return width
    return math.ceil(seconds / columns_max / 86_400) * 86_400


def linear_marks(top: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to `top` or a little above it."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top / count))
    for factor in (1, 2, 5, 10):
        if top / (step * factor) <= count:
            step *= factor
            break
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def log_marks(low: float, top: float) -> list[float]:
    """Powers of ten that have both between them."""
    first = math.floor(math.log10(low))
    last = max(first + 1, math.ceil(math.log10(top) - 1e-9))
    return [10.0**power for power in range(first, last + 1)]


def time_marks(start: datetime, end: datetime, count: int = 8) -> list[datetime]:
    """Round points in time between the two."""
    span = (end - start).total_seconds()
    step = next((one for one in _STEPS_S if span / one <= count), _STEPS_S[-1])
    while span / step > count:
        step *= 2
    first = math.ceil(start.timestamp() / step) * step
    marks = range(first, math.floor(end.timestamp()) + 1, step)
    return [datetime.fromtimestamp(mark, UTC) for mark in marks]


def time_text(at: datetime, marks: Sequence[datetime]) -> str:
    """As short as its neighbours allow."""
    step = marks[1] - marks[0] if len(marks) > 1 else timedelta(0)
    if step >= timedelta(days=1) or (at.hour, at.minute, at.second) == (0, 0, 0):
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < timedelta(minutes=1) else f"{at:%H:%M}"


def number_text(value: float) -> str:
    """Three digits that count: 1234567 is 1.23M."""
    for size, letter in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    if value == int(value):
        return str(int(value))
    return f"{value:.3g}"


def millis_text(value: float) -> str:
    """A span as a person says it."""
    if value < 1:
        return f"{value:.2g} ms" if value else "0"
    if value < 1_000:
        return f"{value:.3g} ms"
    seconds = value / 1_000
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7_200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3_600:.3g} h" if seconds < 172_800 else f"{seconds / 86_400:.3g} d"


def bytes_text(value: float) -> str:
    for size, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{int(value)} B"

"""The arithmetic of a measurement: percentiles, medians, spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


def percentile(ordered_us: Sequence[int], share: float) -> float | None:
    """The value in ms below which that share of the ordered samples lies."""
    if not ordered_us:
        return None
    return ordered_us[min(int(share * len(ordered_us)), len(ordered_us) - 1)] / 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """What several rounds gave: the median, and how far apart the least and the most were."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None

    def text(self, digits: int) -> str:
        middle, least, most = (
            f"{value:.{digits}f}" for value in (self.middle, self.least, self.most)
        )
        return f"{middle} ({least}..{most})"

"""What traffic would cost: billable operations by a table of prices (R-COST-01).

A table is a TOML or JSON file:

    currency = "USD"
    base_per_month = 10.0
    unit_kb = 64                 # a message counts once for each started unit of its size
    in_per_gb = 0.0
    out_per_gb = 0.0

    [[operations]]               # the first 13 million of a month are in the base price
    up_to = 13_000_000
    per_million = 0.0

    [[operations]]
    up_to = 100_000_000
    per_million = 0.80

    [[operations]]               # the last tier has no end
    per_million = 0.50

The example is of the order of what cloud providers charge; nobody's list is meant by it.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MONTH_H: Final = 730.0
_GB: Final = 1e9


class BadPrices(ValueError):
    """A table of prices that cannot be used."""


@dataclass(frozen=True)
class Tier:
    """The price of a month's operations, up to a number of them."""

    per_million: float
    up_to: float = float("inf")


@dataclass(frozen=True)
class Prices:
    """A table of prices."""

    currency: str = "USD"
    base_per_month: float = 10.0
    unit_kb: int = 64
    in_per_gb: float = 0.0
    out_per_gb: float = 0.0
    operations: tuple[Tier, ...] = (
        Tier(0.0, 13e6), Tier(0.80, 100e6), Tier(0.50, 2_500e6), Tier(0.20),
    )  # fmt: skip

    def month(self, operations: float, bytes_in: float = 0.0, bytes_out: float = 0.0) -> float:
        """The cost of a month with so much traffic."""
        cost = self.base_per_month
        cost += bytes_in / _GB * self.in_per_gb + bytes_out / _GB * self.out_per_gb
        begin = 0.0
        for tier in self.operations:
            within = max(0.0, min(operations, tier.up_to) - begin)
            cost += within / 1e6 * tier.per_million
            begin = tier.up_to
        return cost

    def at_rate(
        self, hours: float, operations: float, bytes_in: float = 0.0, bytes_out: float = 0.0
    ) -> float:
        """The cost of a month that goes on as these hours did."""
        times = MONTH_H / hours if hours > 0 else 0.0
        return self.month(operations * times, bytes_in * times, bytes_out * times)


def load_prices(path: Path) -> Prices:
    """Read a table. Raises BadPrices with the fault in it."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise BadPrices(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise BadPrices(f"{path}: not a table of prices")
    try:
        return _prices(found)
    except (TypeError, ValueError) as error:
        raise BadPrices(f"{path}: {error}") from error


def _prices(found: Mapping[str, Any]) -> Prices:
    known = {"currency", "base_per_month", "unit_kb", "in_per_gb", "out_per_gb", "operations"}
    if unknown := found.keys() - known:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = {
        name: str(value)
        if name == "currency"
        else int(value)
        if name == "unit_kb"
        else float(value)
        for name, value in found.items()
        if name != "operations"
    }
    if values.get("unit_kb", 1) < 1:
        raise ValueError("unit_kb is less than 1")
    if bad := [
        name
        for name in ("base_per_month", "in_per_gb", "out_per_gb")
        if not 0 <= values.get(name, 0.0) < float("inf")
    ]:
        raise ValueError(f"{bad[0]} is not a number from 0 on")
    if "operations" in found:
        values["operations"] = _tiers(found["operations"])
    return Prices(**values)


def _tiers(found: Any) -> tuple[Tier, ...]:
    if not isinstance(found, list) or not found:
        raise ValueError("operations is not a list of tiers")
    tiers = []
    for one in found:
        if not isinstance(one, dict) or "per_million" not in one:
            raise ValueError("a tier has no per_million")
        if unknown := one.keys() - {"up_to", "per_million"}:
            raise ValueError(f"unknown in a tier: {', '.join(sorted(unknown))}")
        tiers.append(Tier(float(one["per_million"]), float(one.get("up_to", "inf"))))
        if not (0 <= tiers[-1].per_million < float("inf") and tiers[-1].up_to > 0):
            raise ValueError("a tier has a number below 0")
    ends = [tier.up_to for tier in tiers]
    if ends != sorted(ends) or ends[-1] != float("inf") or len(set(ends)) < len(ends):
        raise ValueError("the tiers must go up, and the last one must have no `up_to`")
    return tuple(tiers)

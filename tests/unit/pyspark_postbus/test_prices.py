"""What traffic costs (R-COST-01): tiers, base price, and tables that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_postbus.pipelines.prices import BadPrices, Prices, Tier, load_prices


def test_operations_cost_what_their_tier_says() -> None:
    prices = Prices(base_per_month=10, operations=(Tier(0, 1e6), Tier(0.8, 3e6), Tier(0.5)))
    assert prices.month(0) == 10
    assert prices.month(1e6) == 10
    assert prices.month(2e6) == pytest.approx(10.8)
    assert prices.month(5e6) == pytest.approx(10 + 2 * 0.8 + 2 * 0.5)


def test_bytes_in_and_out_have_prices_of_their_own() -> None:
    prices = Prices(base_per_month=0, in_per_gb=1, out_per_gb=2, operations=(Tier(0),))
    assert prices.month(0, 3e9, 1e9) == pytest.approx(5)


def test_a_month_is_what_it_would_be_at_the_rate_of_some_hours() -> None:
    prices = Prices(base_per_month=0, operations=(Tier(1.0),))
    assert prices.at_rate(1, 1_000) == pytest.approx(0.73)
    assert prices.at_rate(0, 1_000) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prices.toml", 'currency = "EUR"\n[[operations]]\nup_to = 10\nper_million = 0\n'
         "[[operations]]\nper_million = 0.3\n"),
        ("prices.json", '{"currency": "EUR", "operations": [{"up_to": 10, "per_million": 0},'
         ' {"per_million": 0.3}]}'),
    ],
)  # fmt: skip
def test_a_table_is_read_from_toml_or_json(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    prices = load_prices(tmp_path / name)
    assert prices.currency == "EUR"
    assert prices.operations == (Tier(0, 10), Tier(0.3))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("curency = 'EUR'", "unknown: curency"),
        ("unit_kb = 0", "unit_kb is less than 1"),
        ("operations = []", "not a list of tiers"),
        ("[[operations]]\nup_to = 5\nper_million = 1", "the last one must have no `up_to`"),
        ("[[operations]]\nper_million = 1\nup_tp = 1", "unknown in a tier: up_tp"),
        ("[[operations]]\nup_to = 5", "a tier has no per_million"),
        ("operations = [5]", "a tier has no per_million"),
        ("[[operations]]\nper_million = -1", "a tier has a number below 0"),
        ("base_per_month = nan", "base_per_month is not a number from 0 on"),
        ("= 5", "Invalid"),
    ],
)
def test_a_table_that_says_something_else_is_refused(tmp_path: Path, text: str, why: str) -> None:
    place = tmp_path / "prices.toml"
    place.write_text(text)
    with pytest.raises(BadPrices, match=why):
        load_prices(place)


def test_the_example_of_the_module_is_a_table_that_can_be_read(tmp_path: Path) -> None:
    from pyspark_postbus.pipelines import prices

    assert prices.__doc__ is not None
    lines = prices.__doc__.splitlines()
    place = tmp_path / "prices.toml"
    place.write_text("\n".join(line[4:] for line in lines if line.startswith("    ")))
    assert load_prices(place).month(0) == 10

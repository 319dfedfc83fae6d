"""Medians, ratios round by round, and the tables of `make bench`."""

from __future__ import annotations

from dataclasses import replace

from bench.numbers import Spread
from bench.report import Results, Tables, disturbed, markdown, ratios, spread_of
from bench.work import Run

RUN = Run(100.0, 10.0, 1.0, 2.0, None, None, 3.0, 4.0, 50.0, 0.5, 0.5, 0.1)
BROKERS = {"Postbus compiled": "second", "Postbus": "second", "Artemis": "at once"}


def rates(*values: float) -> dict[int, Run]:
    return {index: replace(RUN, rate=value) for index, value in enumerate(values, 1)}


def cells(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()]


def test_a_spread_is_the_median_the_least_and_the_most() -> None:
    assert spread_of(rates(30, 10, 20), "rate") == Spread(20, 10, 30)
    assert spread_of(rates(1, 2), "rate") == Spread(1.5, 1, 2)
    assert spread_of({}, "rate") is None
    assert spread_of(rates(1), "receive_settle_p50_ms") is None


def test_a_ratio_is_taken_within_a_round_and_not_between_medians() -> None:
    ours, theirs = rates(10, 40, 90), rates(20, 20, 30)
    # The medians would give 40 / 20 as well, but the least and the most are of single rounds.
    assert ratios(ours, theirs, "rate") == Spread(2.0, 0.5, 3.0)


def test_a_round_that_one_side_lacks_counts_for_no_ratio() -> None:
    ours, theirs = rates(10, 20, 30), rates(5, 5, 5)
    del theirs[2]
    assert ratios(ours, theirs, "rate") == Spread(4.0, 2.0, 6.0)
    del theirs[1], theirs[3]
    assert ratios(ours, theirs, "rate") is None


def test_nothing_is_divided_by_a_cost_of_zero() -> None:
    free = {1: replace(RUN, cpu_us_per_message=0.0)}
    assert ratios({1: RUN}, free, "cpu_us_per_message") is None


def test_the_summary_has_rates_of_all_and_ratios_of_each_build_over_each_peer() -> None:
    results: Results = {
        ("w500", "Postbus compiled"): rates(3_000, 5_000),
        ("w500", "Postbus"): rates(1_000, 1_000),
        ("w500", "Artemis"): rates(2_000, 2_000),
    }
    summary = cells(Tables(results, {"w500": "window 500"}, BROKERS).summary())
    assert summary[0] == [
        "messages per second",
        *BROKERS,
        "Postbus compiled / Artemis",
        "Postbus / Artemis",
    ]
    assert summary[2][:4] == ["receivers settle", "second", "second", "at once"]
    assert summary[3] == [
        *("window 500", "4,000", "1,000", "2,000"),
        *("**2.00 (1.50..2.50)**", "**0.50 (0.50..0.50)**"),
    ]


def test_what_a_broker_did_not_do_is_a_dash_and_no_number() -> None:
    results: Results = {("w500", "Postbus"): rates(7)}
    summary = cells(Tables(results, {"w500": "window 500"}, BROKERS).summary())
    assert summary[3] == ["window 500", "-", "7", "-", "-", "-"]


def test_the_details_have_costs_with_ratios_and_times_in_pairs() -> None:
    results: Results = {("w500", name): {1: RUN} for name in BROKERS}
    rate, cpu, sent, received, e2e, memory, elsewhere = (
        cells(table)[2] for table in Tables(results, {"w500": "window 500"}, BROKERS).details()
    )
    assert rate[1] == "100 (100..100)"
    assert cpu[1:] == [*["10.0 (10.0..10.0)"] * 3, *["**1.00 (1.00..1.00)**"] * 2]
    assert (sent[1], received[1], e2e[1]) == ("1.0 / 2.0", "-", "3.0 / 4.0")
    assert (memory[1], elsewhere[1]) == ("50 (50..50)", "0.10 (0.10..0.10)")


def test_runs_that_had_company_are_counted() -> None:
    busy = replace(RUN, elsewhere_share=0.3)
    assert disturbed({("a", "b"): {1: RUN, 2: busy}, ("c", "d"): {1: busy}}) == (2, 3)


def test_a_table_has_its_numbers_on_the_right() -> None:
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | --: |\n| x | 1 |"

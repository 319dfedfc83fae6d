"""Seeded histories of the real broker: whatever happens, the promises hold.

POSTBUS_SIM_SEEDS says how many seeds to run, POSTBUS_SIM_FROM the first of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from postbus.broker.records import Kind
from tests.simulation.patches import tiny
from tests.simulation.run import Run, run_seed
from tests.simulation.simulation import Simulation

SEEDS = int(os.environ.get("POSTBUS_SIM_SEEDS", "400"))
FIRST = int(os.environ.get("POSTBUS_SIM_FROM", "0"))
AT_ONCE = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_seeds_break_no_promise(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        run_seed(seed)


def played(seed: int) -> Simulation:
    chance = random.Random(seed)
    with tiny(chance):
        simulation = Simulation(chance)
        Run(simulation).go(300)
    return simulation


def test_a_seed_always_tells_the_same_story() -> None:
    assert played(3).history.about(None) == played(3).history.about(None)
    assert played(3).history.lines == played(3).history.lines


def test_the_histories_contain_everything_that_can_happen() -> None:
    happened: Counter[str] = Counter()
    for seed in range(60):
        for _, _, text in played(seed).history.lines:
            happened[" ".join(text.split()[:2])] += 1
            happened[text.split()[0]] += 1
    verbs = ["send", "cancel", "complete", "abandon", "defer", "dead_letter", "release", "lose"]
    verbs += ["renew", "deferred", "peek", "purge", "update", "put_back"]
    expected = {kind.name for kind in Kind} | {f"decided {verb}" for verb in verbs}
    assert (expected | {"CRASH"}) - happened.keys() == set()

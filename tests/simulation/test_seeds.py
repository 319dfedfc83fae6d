"""Seeded histories of the real broker: whatever happens, the promises hold.

POSTBUS_SIM_SEEDS says how many seeds to run, POSTBUS_SIM_FROM the first of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from postbus.broker.record_kinds import RecordKind
from tests.simulation.history import History
from tests.simulation.patches import tiny
from tests.simulation.run import Run, run_seed
from tests.simulation.simulation import Simulation

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

SEEDS = int(os.environ.get("POSTBUS_SIM_SEEDS", "200"))
FIRST = int(os.environ.get("POSTBUS_SIM_FROM", "0"))
AT_ONCE = 50


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_seeds_break_no_promise(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        run_seed(seed)


def played(seed: int, on_disk: bool = False) -> History:
    chance = random.Random(seed)
    with tiny(chance):
        simulation = Simulation(chance, on_disk)
        try:
            Run(simulation).go(300)
        finally:
            simulation.close()
    return simulation.history


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_seed_always_tells_the_same_story(on_disk: bool) -> None:
    for seed in range(3):
        first, second = played(seed, on_disk), played(seed, on_disk)
        assert first.about(None) == second.about(None)
        assert first.receiver_queues == second.receiver_queues


def test_a_disk_meets_every_end_between_and_within_calls_and_while_it_is_opened() -> None:
    texts = [
        text for seed in range(12) for _, _, text in played(seed, on_disk=True).receiver_queues
    ]
    ends = {text.removeprefix("CRASH ") for text in texts if text.startswith("CRASH ")}
    assert {"killed", "power cut", "stopped"} <= ends
    assert any(", then " in end for end in ends), "none came while the store was opened"
    assert any(text.startswith("a commit was cut short") for text in texts)
    assert "a sync failed" in texts


def test_the_histories_contain_everything_that_can_happen() -> None:
    happened: Counter[str] = Counter()
    for seed in range(100):
        for _, _, text in played(seed).receiver_queues:
            happened[" ".join(text.split()[:2])] += 1
            happened[text.split()[0]] += 1
    verbs = ["send", "cancel", "complete", "abandon", "defer", "dead_letter", "release", "lose"]
    verbs += ["renew", "deferred", "peek", "purge", "update", "put_back", "resubmit"]
    of_queues = [kind for kind in RecordKind if kind <= RecordKind.COPIED] + [
        RecordKind.PUT_BACK,
        RecordKind.RESUBMITTED,
    ]
    expected = {kind.name for kind in of_queues} | {f"decided {verb}" for verb in verbs}
    assert (expected | {"CRASH"}) - happened.keys() == set()

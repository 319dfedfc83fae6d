"""Seeded histories of a topic, its subscriptions and forwarding; and faults planted in them.

POSTBUS_SIM_TOPIC_SEEDS says how many seeds to run, POSTBUS_SIM_FROM the first of them.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from postbus.broker.record_kinds import RecordKind
from tests.simulation.faults import Fault
from tests.simulation.topics.faults import TOPIC_FAULTS, find_in_topics
from tests.simulation.topics.play import run_topic_seed

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

SEEDS = int(os.environ.get("POSTBUS_SIM_TOPIC_SEEDS", "50"))
FIRST = int(os.environ.get("POSTBUS_SIM_FROM", "0"))
AT_ONCE = 40


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_topic_seeds_break_no_promise(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        run_topic_seed(seed)


def test_a_topic_seed_always_tells_the_same_story() -> None:
    for seed in (2, 3):
        assert (
            run_topic_seed(seed).history.receiver_queues
            == run_topic_seed(seed).history.receiver_queues
        )


def test_the_topic_histories_contain_everything_that_topics_and_forwarding_write() -> None:
    happened: Counter[str] = Counter()
    for seed in range(40):
        for _, _, text in run_topic_seed(seed, steps=400).history.receiver_queues:
            happened[text.split()[0]] += 1
    expected = {
        RecordKind.PUBLISHED,
        RecordKind.STAGED,
        RecordKind.DISTRIBUTED,
        RecordKind.ADVANCED,
        RecordKind.SPREAD,
    }
    expected |= {RecordKind.DIVERTED, RecordKind.FORWARDED, RecordKind.ARRIVED, RecordKind.DELETED}
    expected |= {RecordKind.RESUBMITTED, RecordKind.PUT_BACK, RecordKind.POSTED}
    expected |= {
        RecordKind.SCHEDULED,
        RecordKind.ACTIVATED,
        RecordKind.COPIED,
        RecordKind.REPLACED,
        RecordKind.DEAD_LETTERED,
    }
    assert {kind.name for kind in expected} - happened.keys() == set()


@pytest.mark.parametrize("fault", TOPIC_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_planted_in_topics_is_found(fault: Fault) -> None:
    found = find_in_topics(fault)
    assert found is not None, "200 seeds noticed nothing"
    _, violation = found
    assert violation.promise in fault.promises
    assert "seed" in violation.__notes__[0], "a failure says how to repeat it"

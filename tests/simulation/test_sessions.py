"""Seeded histories of sessions, duplicate detection and transactions; and faults planted in them.

POSTBUS_SIM_SESSION_SEEDS says how many seeds to run, POSTBUS_SIM_FROM the first of them.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest

from postbus.broker.record_kinds import RecordKind
from tests.simulation.faults import Fault
from tests.simulation.sessions.faults import SESSION_FAULTS, find_in_sessions
from tests.simulation.sessions.play import run_session_seed

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

SEEDS = int(os.environ.get("POSTBUS_SIM_SESSION_SEEDS", "40"))
FIRST = int(os.environ.get("POSTBUS_SIM_FROM", "0"))
AT_ONCE = 20


@cache
def happened(seed: int) -> Counter[str]:
    """What a seed tells, by first words; each seed is run once in a process."""
    found: Counter[str] = Counter()
    for _, _, text in run_session_seed(seed).history.receiver_queues:
        words = [word for word in text.split() if not word.isdigit()]
        found.update({words[0], " ".join(words[:3]), " ".join(words[:5])})
    return found


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_ONCE))
def test_session_seeds_break_no_promise(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, FIRST + SEEDS)):
        happened(seed)


def test_a_session_seed_always_tells_the_same_story() -> None:
    for seed in (2, 3):
        assert (
            run_session_seed(seed).history.receiver_queues
            == run_session_seed(seed).history.receiver_queues
        )


def test_the_session_histories_contain_everything_that_can_happen() -> None:
    found = sum((happened(seed) for seed in range(FIRST, FIRST + 40)), Counter())
    expected = {
        RecordKind.ENQUEUED,
        RecordKind.SCHEDULED,
        RecordKind.ACTIVATED,
        RecordKind.COMPLETED,
        RecordKind.RECEIVED,
    }
    expected |= {
        RecordKind.ABANDONED,
        RecordKind.LOCK_EXPIRED,
        RecordKind.DEFERRED,
        RecordKind.DEAD_LETTERED,
    }
    expected |= {
        RecordKind.CANCELLED,
        RecordKind.DELETED,
        RecordKind.COPIED,
        RecordKind.FORWARDED,
        RecordKind.ARRIVED,
    }
    expected |= {
        RecordKind.STATE_SET,
        RecordKind.STATE_CLEARED,
        RecordKind.DUPLICATE,
        RecordKind.POSTED,
        RecordKind.PUT_BACK,
    }
    told = {"CRASH", "guest has lost", "guest is refused: SessionCannotBeLocked"}
    told |= {"client was told: committed", "client was told: release done"}
    assert ({kind.name for kind in expected} | told) - found.keys() == set()


@pytest.mark.parametrize("fault", SESSION_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_planted_in_sessions_is_found(fault: Fault) -> None:
    found = find_in_sessions(fault)
    assert found is not None, "200 seeds noticed nothing"
    _, violation = found
    assert violation.promise in fault.promises
    assert "seed" in violation.__notes__[0], "a failure says how to repeat it"

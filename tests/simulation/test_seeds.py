"""Seeded histories of the real broker: whatever happens, the promises hold.

POSTBUS_SIM_SEEDS, POSTBUS_SIM_TOPIC_SEEDS, POSTBUS_SIM_SESSION_SEEDS and POSTBUS_SIM_MIXED_SEEDS
say how many seeds to run of each kind of world, POSTBUS_SIM_FROM the first of them.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.run import EVERYTHING, QUEUES, SESSIONS, TOPICS, run_seed

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

FIRST = int(os.environ.get("POSTBUS_SIM_FROM", "0"))
AT_ONCE = 20
WORLDS = {
    QUEUES: int(os.environ.get("POSTBUS_SIM_SEEDS", "140")),
    TOPICS: int(os.environ.get("POSTBUS_SIM_TOPIC_SEEDS", "50")),
    SESSIONS: int(os.environ.get("POSTBUS_SIM_SESSION_SEEDS", "40")),
    EVERYTHING: int(os.environ.get("POSTBUS_SIM_MIXED_SEEDS", "20")),
}


@pytest.mark.parametrize(
    ("parts", "seeds"),
    [
        pytest.param(parts, range(first, min(first + AT_ONCE, FIRST + count)), id=f"{name}-{first}")
        for name, (parts, count) in zip(
            ("queues", "topics", "sessions", "everything"), WORLDS.items(), strict=True
        )
        for first in range(FIRST, FIRST + count, AT_ONCE)
    ],
)
def test_seeds_break_no_promise(parts: tuple[str, ...], seeds: range) -> None:
    for seed in seeds:
        run_seed(seed, parts)

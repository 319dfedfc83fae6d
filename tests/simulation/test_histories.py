"""The histories are repeatable, and contain everything that can happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from postbus.broker.record_kinds import RecordKind
from tests.simulation.run import EVERYTHING, QUEUES, SESSIONS, TOPICS, run_seed

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

TOPIC_KINDS = {
    RecordKind.PUBLISHED,
    RecordKind.STAGED,
    RecordKind.DISTRIBUTED,
    RecordKind.ADVANCED,
    RecordKind.SPREAD,
    RecordKind.REPLACED,
    RecordKind.DIVERTED,
}


@cache
def texts(seed: int, parts: tuple[str, ...], on_disk: bool | None = None) -> list[str]:
    """What the lines of a history say; each is run once in a process."""
    world = run_seed(seed, parts, on_disk=on_disk)
    return [text for _, _, text in world.history.lines]


def happened(seeds: Iterable[int], parts: tuple[str, ...]) -> Counter[str]:
    """What the histories of these seeds say, by first words."""
    found: Counter[str] = Counter()
    for seed in seeds:
        for text in texts(seed, parts):
            words = [word for word in text.split() if not word.isdigit()]
            found.update(" ".join(words[:count]) for count in range(1, 5))
    return found


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_seed_always_tells_the_same_story(on_disk: bool) -> None:
    for seed in range(3):
        first, second = (run_seed(seed, EVERYTHING, on_disk=on_disk).history for _ in range(2))
        assert first.lines == second.lines
        assert first.about(None) == second.about(None)


def test_a_disk_meets_every_end_between_and_within_calls_and_while_it_is_opened() -> None:
    said = [text for seed in range(12) for text in texts(seed, QUEUES, on_disk=True)]
    ends = {text.removeprefix("CRASH ") for text in said if text.startswith("CRASH ")}
    assert {"killed", "power cut", "stopped"} <= ends
    assert any(", then " in end for end in ends), "none came while the store was opened"
    assert any(text.startswith("a commit was cut short") for text in said)
    assert "a sync failed" in said


def test_the_histories_of_queues_contain_everything_that_can_happen() -> None:
    verbs = ["schedule", "cancel", "complete", "abandon", "defer", "dead_letter", "release", "lose"]
    verbs += ["renew", "deferred", "peek", "purge", "update", "put_back", "resubmit"]
    kinds = {kind for kind in RecordKind if kind <= RecordKind.COPIED}
    kinds |= {RecordKind.PUT_BACK, RecordKind.RESUBMITTED}
    expected = {kind.name for kind in kinds} | {f"decided {verb}" for verb in verbs}
    expected |= {"CRASH", "engine forgotten:", "client was told: send"}
    assert expected - happened(range(50), QUEUES).keys() == set()


def test_the_histories_of_topics_contain_everything_that_topics_and_forwarding_write() -> None:
    kinds = TOPIC_KINDS | {RecordKind.FORWARDED, RecordKind.ARRIVED, RecordKind.DELETED}
    kinds |= {RecordKind.RESUBMITTED, RecordKind.PUT_BACK, RecordKind.POSTED, RecordKind.COPIED}
    kinds |= {RecordKind.SCHEDULED, RecordKind.ACTIVATED, RecordKind.DEAD_LETTERED}
    assert {kind.name for kind in kinds} - happened(range(40), TOPICS).keys() == set()


def test_the_histories_of_sessions_contain_everything_that_can_happen() -> None:
    other = TOPIC_KINDS | {RecordKind.RESUBMITTED, RecordKind.PINGED}
    expected = {kind.name for kind in RecordKind if kind not in other}
    expected |= {"receiver has lost", "receiver is refused: SessionCannotBeLocked"}
    expected |= {"CRASH", "client was told: committed", "client was told: release"}
    assert expected - happened(range(60), SESSIONS).keys() == set()


def test_the_histories_of_everything_contain_what_each_part_writes() -> None:
    expected = {kind.name for kind in RecordKind} - {"REPLACED", "PINGED"}  # rare; without effect
    assert expected - happened(range(16), EVERYTHING).keys() == set()

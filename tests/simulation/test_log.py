"""Seeded histories of the broker on a commit log: its disk fails as that of SQLite does.

POSTBUS_SIM_LOG_SEEDS says how many seeds to run.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from postbus.store.log.files import write_all
from postbus.store.log.recovery import Recovery
from tests.simulation.disk import LogDisk
from tests.simulation.history import Violation
from tests.simulation.promises import STAYS
from tests.simulation.run import EVERYTHING, QUEUES, SESSIONS, TOPICS, run_seed
from tests.simulation.world import World
from tests.support.fault_files import InlineWriter

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only

SEEDS = int(os.environ.get("POSTBUS_SIM_LOG_SEEDS", "24"))
AT_ONCE = 8
KINDS = (QUEUES, TOPICS, SESSIONS, EVERYTHING)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_seeds_on_a_log_break_no_promise(first: int) -> None:
    for seed in range(first, min(first + AT_ONCE, SEEDS)):
        run_seed(seed, KINDS[seed % len(KINDS)], on_disk=True, disk=LogDisk)


class _Unsynced(World):
    disk_syncs = False


class _HastyWriter(InlineWriter):
    """A planted fault: a frame counts as durable when it is written."""

    def wait(self, sequence: int) -> None:
        for _, file, position, pieces in self._queue:
            write_all(self._files, file, pieces, position)
        self._queue.clear()


class _HastyDisk(LogDisk):
    make_writer = _HastyWriter


def assert_found(**options: Any) -> None:
    def run_all() -> None:
        for seed in range(60):
            run_seed(seed, QUEUES, on_disk=True, **options)

    with pytest.raises(Violation) as found:
        run_all()
    assert found.value.promise == STAYS


def test_a_disk_that_only_says_it_synced_is_found() -> None:
    assert_found(disk=LogDisk, world_class=_Unsynced)


def test_a_log_that_does_not_sync_is_found() -> None:
    assert_found(disk=_HastyDisk)


def test_a_start_that_drops_the_last_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Recovery._take

    def forgetful(self: Recovery, scan: Any) -> None:
        del scan.frames[-1:]
        take(self, scan)

    monkeypatch.setattr(Recovery, "_take", forgetful)
    assert_found(disk=LogDisk)

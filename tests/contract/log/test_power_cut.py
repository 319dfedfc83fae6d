"""The power goes at any moment: what was answered is there, the rest wholly or not at all.

A life is recorded once, the log and its index on one disk, then cut at each of its points. Planted
faults must be found by the same checks.
"""

import copy
import random
import shutil
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from postbus.store.log.files import write_all
from postbus.store.log.recovery import Recovery
from postbus.store.log.retention import Retention
from postbus.store.log.sealing import Sealing
from postbus.store.log.store import LogStore
from postbus.store.ports.journal import Trimmed
from tests.contract.disk import disk, no_fault
from tests.contract.forgetting import Medium, forgetting_disk, put
from tests.contract.fragments import T0, Writer, change
from tests.contract.log.stories import (
    LogStory,
    PipelinedStory,
    RandomLogStory,
    is_found,
    open_log,
)
from tests.contract.sqlite.test_power_cut import Recording, every, look, record, sample
from tests.contract.stories import Story
from tests.support.fault_files import FaultFiles, InlineWriter

SHARES = 4


def assert_kept(
    story: Story,
    recording: Recording,
    points: Iterable[int],
    seed: int,
    folder: Path,
    under_way: int = 1,
) -> None:
    """Cut the power at each of the points, once, and look."""
    for point, medium in recording.media(points):
        done = recording.done_at(point)
        files = medium.survivors(random.Random(f"{seed} {point}"))
        found = look(story, files, folder)
        what = f"cut at {point} of {len(recording.changes)}, after {done} answers, seed {seed}"
        assert is_found(found, story.states, done, under_way), what


@pytest.mark.parametrize("share", range(SHARES))
def test_nothing_answered_is_lost_wherever_the_power_is_cut(tmp_path: Path, share: int) -> None:
    story = LogStory()
    recording = record(story, tmp_path / "life")
    assert len(recording.changes) > 200
    for seed in range(2):
        assert_kept(story, recording, every(recording, share, SHARES), seed, tmp_path / "cut")


@pytest.mark.parametrize("seed", range(8))
def test_nothing_answered_is_lost_in_any_history(tmp_path: Path, seed: int) -> None:
    story = RandomLogStory(seed, steps=40)
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, sample(recording, 60, seed), seed, tmp_path / "cut")


@pytest.mark.parametrize("seed", range(6))
def test_of_commits_under_way_together_the_first_ones_are_there(tmp_path: Path, seed: int) -> None:
    """Any number of them, never a later one without those before it."""
    story = PipelinedStory(seed, rounds=12, under_way=5)
    recording = record(story, tmp_path / "life")
    points = sample(recording, 80, seed)
    assert_kept(story, recording, points, seed, tmp_path / "cut", under_way=5)


def test_the_time_of_any_commit_is_known_after_a_cut(tmp_path: Path) -> None:
    """Of a commit without records, too: there is nothing of it but its checkpoint."""
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with forgetting_disk() as disk_:
            with closing(open_log(folder, disk_.name)) as store:
                writer = Writer(store)
                writer.send(b"one", at=T0 + 1)
                assert store.newest() == T0 + 1
                writer.send(at=T0 + 9, checkpoint=change(1))
                files = disk_.medium.survivors(random.Random(seed))
            shutil.rmtree(folder)
        put(files, folder)
        with disk(no_fault) as sound, closing(open_log(folder, sound.name)) as store:
            assert store.newest() == T0 + 9, f"seed {seed}"


CUT, KILL, FAILED_SYNC = "cut", "kill", "failed sync"
ENDS = (CUT, KILL, FAILED_SYNC)


def assert_found_again(
    story: Story, recording: Recording, points: Iterable[int], end: str, folder: Path
) -> None:
    """Start after a cut, a kill, or a kill after a failed sync; then cut once more. Whoever starts
    must not show to anybody what the next cut would take away."""
    for point, standing in recording.media(points):
        chance = random.Random(point)
        files = standing.survivors(chance) if end == CUT else standing.cached()
        medium = Medium(files) if end == CUT else copy.deepcopy(standing)
        if end == FAILED_SYNC:
            medium.fail_to_sync()
        put(files, folder)
        left: dict[str, bytes] = {}
        with forgetting_disk(medium) as disk_:
            shown = partial(_cut, medium, chance, left)
            found = story.look(folder, disk_.name, shown)
            shutil.rmtree(folder)
        again = look(story, left, folder)
        what = f"{end} at {point}, after {recording.done_at(point)} answers"
        assert [dump for _, dump in again] == [dump for _, dump in found], what


def _cut(medium: Medium, chance: random.Random, left: dict[str, bytes]) -> None:
    left.update(medium.survivors(chance))


STORIES = [LogStory(), RandomLogStory(99, 30)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
def test_what_a_start_has_found_is_there_after_the_next_cut(
    tmp_path: Path, story: Story, end: str
) -> None:
    recording = record(story, tmp_path / "life")
    assert_found_again(story, recording, sample(recording, 60, 1), end, tmp_path / "again")


def assert_a_loss_is_found(story: Story, folder: Path, syncs: bool = True) -> None:
    """Only where something was answered: a file damaged while it is made is no loss yet."""
    recording = record(story, folder / "life", syncs)
    points = range(recording.answers[2], len(recording.changes) + 1)

    def cut_everywhere() -> None:
        for seed in range(3):
            assert_kept(story, recording, points, seed, folder / "cut")

    with pytest.raises(AssertionError, match=r"cut at \d+|damaged|lost"):
        cut_everywhere()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
def test_a_disk_that_only_says_it_synced_is_found_out(tmp_path: Path, story: Story) -> None:
    assert_a_loss_is_found(story, tmp_path, syncs=False)


class HastyWriter(InlineWriter):
    """A planted fault: a frame counts as durable when it is written."""

    def wait(self, sequence: int) -> None:
        for _, file, position, pieces in self._queue:
            write_all(self._files, file, pieces, position)
        self._queue.clear()


def test_a_log_that_does_not_sync_its_frames_is_found_out(tmp_path: Path) -> None:
    assert_a_loss_is_found(LogStory(partial(LogStore, make_writer=HastyWriter)), tmp_path)


@pytest.mark.parametrize("end", [KILL, FAILED_SYNC])
def test_a_start_that_syncs_nothing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Neither does it seal what it found, which syncs it as well."""
    story = LogStory()
    recording = record(story, tmp_path / "life")
    monkeypatch.setattr(Recovery, "make_durable", lambda _: None)
    monkeypatch.setattr(Sealing, "seal", lambda _: None)
    with pytest.raises(AssertionError, match=f"{end} at|damaged"):
        assert_found_again(story, recording, every(recording), end, tmp_path / "again")


def test_a_start_that_syncs_without_writing_again_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync the next sync succeeds, although the disk never got the pages."""
    story = LogStory()
    recording = record(story, tmp_path / "life")
    monkeypatch.setattr(Recovery, "make_durable", lambda _: None)
    with pytest.raises(AssertionError, match=f"{FAILED_SYNC} at|damaged"):
        assert_found_again(story, recording, every(recording), FAILED_SYNC, tmp_path / "again")


def test_a_segment_that_is_let_go_before_the_index_was_synced_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trim and the checkpoint before it are lost, and the segment is gone."""
    trim = Retention.trim

    def hasty(self: Retention, *arguments: int) -> tuple[Trimmed, bool]:
        unsynced = partial(self._database.transaction, synced=False)
        with mock.patch.object(self._database, "transaction", unsynced):
            return trim(self, *arguments)

    monkeypatch.setattr(Retention, "trim", hasty)
    assert_a_loss_is_found(LogStory(), tmp_path)


def test_a_name_that_is_used_again_before_the_folder_was_synced_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that was begun under a name that the disk may forget."""
    monkeypatch.setattr(FaultFiles, "sync_names", lambda _: None)
    assert_a_loss_is_found(RandomLogStory(3, 60), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_nothing_answered_is_lost_in_many_histories(tmp_path: Path, seed: int) -> None:
    story = RandomLogStory(seed, steps=80)
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, every(recording), seed, tmp_path / "cut")

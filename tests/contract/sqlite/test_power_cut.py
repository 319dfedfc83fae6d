"""The power goes at any moment: what was answered is there, the rest wholly or not at all.

A life is recorded once, then cut at each of its points, with other remains for each seed. The same
checks must find a disk that only says it synced, and a store that does not ask for it.
"""

import copy
import random
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from postbus.errors import StoreFailed
from postbus.store.ports.journal import Part
from postbus.store.ports.namespace_data import DataDamaged, FormatUnknown
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.store import SqliteStore
from tests.contract.disk import disk, no_fault
from tests.contract.forgetting import Change, Medium, forgetting_disk, put
from tests.contract.stories import (
    CatalogStory,
    FolderStory,
    RandomStoreStory,
    StoreStory,
    Story,
)

SHARES = 4


class Recording(NamedTuple):
    changes: list[Change]
    answers: list[int]
    """How many changes there had been at each answer."""

    def done_at(self, point: int) -> int:
        return bisect_right(self.answers, point)

    def media(self, points: Iterable[int]) -> Iterator[tuple[int, Medium]]:
        """How the disk stands at each of these points; good until the next is asked for."""
        wanted = set(points)
        medium = Medium()
        for point in range(len(self.changes) + 1):
            if point:
                medium.apply(self.changes[point - 1])
            if point in wanted:
                yield point, medium


def record(story: Story, folder: Path, syncs: bool = True) -> Recording:
    folder.mkdir()
    answers: list[int] = []
    with forgetting_disk(syncs=syncs) as disk_:
        story.play(folder, disk_.name, lambda: answers.append(len(disk_.changes)))
        shutil.rmtree(folder)
        return Recording(disk_.changes, answers)


def look(story: Story, files: dict[str, bytes], folder: Path) -> Any:
    """Start where the power left things."""
    put(files, folder)
    try:
        with disk(no_fault) as sound:
            return story.look(folder, sound.name)
    except (apsw.Error, StoreFailed, FormatUnknown, DataDamaged) as error:
        raise AssertionError(f"damaged: {error}") from error
    finally:
        shutil.rmtree(folder)


def assert_kept(
    story: Story, recording: Recording, points: Iterable[int], seed: int, folder: Path
) -> int:
    """Cut the power at each of the points, once, and look. Returns the number of cuts."""
    cuts = 0
    for point, medium in recording.media(points):
        done = recording.done_at(point)
        files = medium.survivors(random.Random(f"{seed} {point}"))
        found = look(story, files, folder)
        what = f"cut at {point} of {len(recording.changes)}, after {done} answers, seed {seed}"
        assert found in story.states[done : done + 2], what
        cuts += 1
    return cuts


def every(recording: Recording, share: int = 0, shares: int = 1) -> range:
    return range(share, len(recording.changes) + 1, shares)


def sample(recording: Recording, count: int, seed: int) -> Sequence[int]:
    points = every(recording)
    return random.Random(seed).sample(points, min(count, len(points)))


@pytest.mark.parametrize("share", range(SHARES))
def test_nothing_answered_is_lost_wherever_the_power_is_cut(tmp_path: Path, share: int) -> None:
    story = StoreStory()
    recording = record(story, tmp_path / "life")
    assert len(recording.changes) > 200
    for seed in range(2):
        assert_kept(story, recording, every(recording, share, SHARES), seed, tmp_path / "cut")


@pytest.mark.parametrize("seed", range(8))
def test_nothing_answered_is_lost_in_any_history(tmp_path: Path, seed: int) -> None:
    story = RandomStoreStory(seed, steps=40)
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, sample(recording, 60, seed), seed, tmp_path / "cut")


@pytest.mark.parametrize("seed", range(4))
def test_the_catalog_keeps_what_it_has_answered(tmp_path: Path, seed: int) -> None:
    story = CatalogStory(seed, steps=40)
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, sample(recording, 60, seed), seed, tmp_path / "cut")


@pytest.mark.parametrize("seed", range(2))
def test_the_store_has_what_the_catalog_promises(tmp_path: Path, seed: int) -> None:
    story = FolderStory()
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, sample(recording, 80, seed), seed, tmp_path / "cut")


def assert_found_again(
    story: Story, recording: Recording, points: Iterable[int], killed: bool, folder: Path
) -> None:
    """Start after a kill, or after a cut; then cut once more.

    After a kill what was written is still there and still not certain. Whoever starts then must
    not show to anybody what the next cut would take away.
    """
    for point, standing in recording.media(points):
        chance = random.Random(point)
        files = standing.cached() if killed else standing.survivors(chance)
        medium = copy.deepcopy(standing) if killed else Medium(files)
        put(files, folder)
        with forgetting_disk(medium) as disk_:
            shown = partial(_cut, medium, chance, left := {})
            found = story.look(folder, disk_.name, shown)
            shutil.rmtree(folder)
        again = look(story, left, folder)
        what = f"{'kill' if killed else 'cut'} at {point}, after {recording.done_at(point)} answers"
        assert contents(again) == contents(found), what


def _cut(medium: Medium, chance: random.Random, left: dict[str, bytes]) -> None:
    left.update(medium.survivors(chance))


def contents(found: Any) -> Any:
    """Without the epochs, which rise with every look."""
    if isinstance(found, list):
        return [dump for _, dump in found]
    if isinstance(found[-1], list):
        return found[0], contents(found[1])
    return found


STORIES = [StoreStory(), RandomStoreStory(99, 30), CatalogStory(99, 30), FolderStory()]


@pytest.mark.parametrize("killed", [False, True], ids=["cut", "killed"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
def test_what_a_start_has_found_is_there_after_the_next_cut(
    tmp_path: Path, story: Story, killed: bool
) -> None:
    recording = record(story, tmp_path / "life")
    assert_found_again(story, recording, sample(recording, 40, 1), killed, tmp_path / "again")


def test_a_start_that_syncs_nothing_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start reads the log as the kernel has it; only with the next sync is that certain.
    Moving the log into the file syncs both."""
    story = CatalogStory(99, 30)
    recording = record(story, tmp_path / "life")
    monkeypatch.setattr(Database, "move_log", lambda _: None)
    with pytest.raises(AssertionError, match="kill at"):
        assert_found_again(story, recording, every(recording), True, tmp_path / "again")


def assert_a_loss_is_found(story: Story, folder: Path, syncs: bool = True) -> None:
    """Only where something was answered: a file damaged while it is made is no loss yet."""
    recording = record(story, folder / "life", syncs)
    points = range(recording.answers[2], len(recording.changes) + 1)
    with pytest.raises(AssertionError, match=r"cut at \d+|damaged"):
        assert_kept(story, recording, points, 0, folder / "cut")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
def test_a_disk_that_only_says_it_synced_is_found_out(tmp_path: Path, story: Story) -> None:
    assert_a_loss_is_found(story, tmp_path, syncs=False)


class Hasty(SqliteStore):
    """A planted fault: syncs when the log is moved into the file, not at each commit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._database.run("PRAGMA synchronous=NORMAL")


def test_a_store_that_does_not_sync_at_commit_is_found_out(tmp_path: Path) -> None:
    assert_a_loss_is_found(StoreStory(Hasty), tmp_path)


class Halves(SqliteStore):
    """A planted fault: the parts of one commit are not written together."""

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        return frozenset().union(*(super(Halves, self).commit([part]) for part in parts))


def test_a_store_that_writes_a_commit_in_two_is_found_out(tmp_path: Path) -> None:
    assert_a_loss_is_found(StoreStory(Halves), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_020))
def test_nothing_answered_is_lost_in_many_histories(tmp_path: Path, seed: int) -> None:
    story = RandomStoreStory(seed, steps=80)
    recording = record(story, tmp_path / "life")
    assert_kept(story, recording, every(recording), seed, tmp_path / "cut")

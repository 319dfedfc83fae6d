"""A copy that has its name is whole: wherever the power is cut, whatever happens while it is made.

The same checks must find the faults that are planted below.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from postbus.ops.backup import SECRETS, back_up_running
from postbus.store.ports.namespace_data import DataDamaged
from postbus.store.sqlite import files, folder, folder_backup
from postbus.store.sqlite.folder import DataFolder
from postbus.store.sqlite.folder_backup import FolderBackup
from tests.contract.forgetting import NAMES, SYNC, Change, Medium, forgetting_disk, put
from tests.contract.fragments import T0, Writer, dump
from tests.contract.sqlite.test_upgrade import contents

pytestmark = pytest.mark.usefixtures("small_limits")

MESSAGES = 10


class Inline:
    """The thread of a store, and of the catalog: between two calls the broker goes on."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile

    async def run(self, call: Callable[[], Any]) -> Any:
        result = call()
        self._meanwhile()
        return result


def filled(path: Path) -> DataFolder:
    made = DataFolder(path, T0)
    for name in ("kept", "doomed"):
        [fragment] = made.catalog.create(name, "queue", {}, T0, [0]).fragments
        writer = Writer(made.stores[0], fragment.id)
        for number in range(MESSAGES):
            rows = writer.send(b"%d" % number * 300)
        writer.checkpoint(rows)
    (path / SECRETS[0]).write_text("key")
    (path / SECRETS[1]).mkdir()
    (path / SECRETS[1] / "server.key").write_text("other key")
    return made


async def copy_of(
    made: DataFolder, target: Path, meanwhile: Callable[[], None] = lambda: None
) -> None:
    thread: Any = Inline(meanwhile)
    await back_up_running(made, thread, [thread], str(target))


# -- the power is cut --------------------------------------------------------------------------


class Copying(NamedTuple):
    """What the disk was told while a copy was made."""

    changes: list[Change]
    named_at: int
    """How many changes there had been when the copy got its name."""
    synced: set[Path]
    """Files and folders that were synced until then, below the copy's folder."""
    parent_synced: bool


async def recorded(made: DataFolder, target: Path, patch: pytest.MonkeyPatch) -> Copying:
    synced: list[tuple[int, Path]] = []
    named: list[int] = []
    rename = Path.rename
    with forgetting_disk() as disk_, patch.context() as patched:

        def sync_one(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            synced.append((len(named), path))
            content = disk_.medium.find(path.name)
            if path.name == f"{target.name}.partial":
                disk_.record(Change(NAMES, "", -1, with_folder=True))
            elif content is not None:
                disk_.record(Change(SYNC, path.name, content))

        def name_it(path: Path, to: Path) -> Path:
            named.append(len(disk_.changes))
            return rename(path, to)

        patched.setattr(os, "fsync", sync_one)
        patched.setattr(Path, "rename", name_it)
        for file in (made.catalog.file, made.stores[0].file):
            # They are open already: from now on it is for the copy alone.
            patched.setattr(file, "_vfs", disk_.name)
        await copy_of(made, target)
    partial = target.with_name(f"{target.name}.partial")
    before = {
        path.relative_to(partial) for when, path in synced if not when and path != target.parent
    }
    return Copying(disk_.changes, named[0], before, (1, target.parent) in synced)


def assert_synced(copying: Copying, target: Path) -> None:
    there = {path.relative_to(target) for path in target.rglob("*")} | {Path()}
    assert copying.synced >= there, f"not synced: {there - copying.synced}"
    assert copying.parent_synced, "the name of the copy is not synced"


def assert_whole_after_each_cut(copying: Copying, held: Any, place: Path) -> None:
    for seed in range(8):
        medium = Medium()
        for point, change in enumerate(copying.changes, 1):
            medium.apply(change)
            if point < copying.named_at:
                continue
            left = medium.survivors(random.Random(f"{seed} {point}"))
            put(left, place)
            try:
                DataFolder(place, T0).close()
                assert contents(place) == held, f"cut at {point}, seed {seed}"
            except (apsw.Error, DataDamaged, OSError) as error:
                raise AssertionError(f"cut at {point}, seed {seed}: {error}") from error
            finally:
                shutil.rmtree(place)


async def assert_durable(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    with closing(filled(tmp_path / "data")) as made:
        copying = await recorded(made, tmp_path / "copy", patch)
        held = contents(tmp_path / "data")
    assert_whole_after_each_cut(copying, held, tmp_path / "cut")
    assert_synced(copying, tmp_path / "copy")


async def test_a_copy_that_has_its_name_survives_any_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await assert_durable(tmp_path, monkeypatch)
    assert (tmp_path / "copy" / SECRETS[1] / "server.key").read_text() == "other key"


# -- the broker goes on ------------------------------------------------------------------------


def change_entities(made: DataFolder) -> None:
    """One entity comes and is used, another goes and is half dropped."""
    [late] = made.catalog.create("late", "queue", {}, T0, [0]).fragments
    Writer(made.stores[0], late.id).send(b"late")
    [doomed] = made.catalog.delete("doomed").fragments
    assert not made.stores[0].drop(doomed.id, 3)


def assert_consistent(copy: DataFolder, kept: Any) -> None:
    """Whatever a copied catalog promises, the copied store has, and nothing belongs to an entity
    that is yet to be made."""
    entities = {each.name: each.fragments[0].id for each in copy.catalog.entities()}
    assert dump(copy.stores[0], entities["kept"])[3:] == kept[3:]
    if "doomed" in entities:
        assert len(dump(copy.stores[0], entities["doomed"]).batches) == MESSAGES, "half an entity"
    [(newest,)] = copy.stores[0].file.run("SELECT max(id) FROM fragment")
    [new] = copy.catalog.create("new", "queue", {}, T0, [0]).fragments
    assert new.id > newest, "a new entity would find the messages of another"


async def assert_consistent_at(place: Path, when: int) -> int:
    """Entities change after so many steps of the copy; returns how many it had."""
    calls = 0

    def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == when:
            change_entities(made)

    with closing(filled(place / "data")) as made:
        await copy_of(made, place / "copy", meanwhile)
        [kept] = [each for each in made.catalog.entities() if each.name == "kept"]
        held = dump(made.stores[0], kept.fragments[0].id)
    with closing(DataFolder(place / "copy", T0)) as copy:
        assert_consistent(copy, held)
    return calls


async def assert_consistent_whenever(tmp_path: Path) -> None:
    steps = await assert_consistent_at(tmp_path / "0", 0)
    assert steps > 10, "the copy was made in one go"
    for when in range(1, steps + 1):
        await assert_consistent_at(tmp_path / str(when), when)


async def test_a_copy_promises_nothing_that_it_does_not_have(tmp_path: Path) -> None:
    await assert_consistent_whenever(tmp_path)


# -- planted faults ----------------------------------------------------------------------------


class CatalogFirst(FolderBackup):
    """The catalog is copied before the stores, and the folder is not synced."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._catalog.backup(str(self._partial / "catalog.db"))

    def finish(self, beside: Any = ()) -> None:
        for name in beside:
            self._add(name)
        self._partial.rename(self._target)
        files.sync(self._target.parent)


async def test_a_copy_of_the_catalog_before_the_stores_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "FolderBackup", CatalogFirst)
    with pytest.raises(AssertionError, match=r"half an entity|messages of another"):
        await assert_consistent_whenever(tmp_path)


def _nothing(*_: Any) -> None: ...


def _not_the_copy(path: Any) -> None:
    if not str(path).endswith("copy.partial"):
        files.sync(path)


def _not_beside(path: Any) -> None:
    if Path(path).name not in (*SECRETS, "server.key"):
        files.sync(path)


class NamedFirst(FolderBackup):
    def finish(self, beside: Any = ()) -> None:
        self._partial.rename(self._target)
        self._target.rename(self._partial)
        super().finish(beside)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (folder, "FolderBackup", CatalogFirst),
        (folder, "FolderBackup", NamedFirst),
        (folder_backup, "sync", _nothing),
        (folder_backup, "sync", _not_the_copy),
        (folder_backup, "sync", _not_beside),
        (files, "sync", _nothing),
    ],
    ids=[
        *("the catalog first, unsynced", "named before it is whole", "no folder synced"),
        *("the copy's folder not synced", "keys not synced", "no file synced"),
    ],
)
async def test_a_copy_that_is_not_synced_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: Any
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match=r"cut at|synced"):
        await assert_durable(tmp_path, monkeypatch)

"""A folder of the format before opens, is upgraded, and survives a cut at any moment of that."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from postbus.errors import StoreUnavailable
from postbus.ops.backup import back_up
from postbus.ops.export import ExportRefused, export_folder
from postbus.store.ports.namespace_data import DataDamaged, FormatUnknown
from postbus.store.sqlite.catalog import CATALOG, SqliteCatalog
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.folder import DataFolder
from postbus.store.sqlite.schema import STORE
from tests.contract.disk import WRITE, at, disk, no_fault, sqlite_error
from tests.contract.forgetting import Change, Medium, forgetting_disk, put
from tests.contract.stories import LATER, open_folder
from tests.support.kept_folders import NAMES, unpack

TABLES = {
    "catalog.db": ("entity", "subscription", "rule", "owner", "fragment"),
    "store-0.db": ("journal", "message", "duplicate", "fragment"),
}
each_kept = pytest.mark.parametrize("name", NAMES)


def contents(folder: Path) -> dict[str, Any]:
    """Every row of every table, by plain SQL."""
    found: dict[str, Any] = {}
    for file, tables in TABLES.items():
        with closing(apsw.Connection(str(folder / file))) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            for table in tables:
                found[f"{file} {table}"] = connection.execute(f"SELECT * FROM {table}").fetchall()
    return found


def formats(folder: Path) -> tuple[int, int]:
    found = []
    for file in TABLES:
        with closing(apsw.Connection(str(folder / file))) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            [(number,)] = connection.execute("SELECT value FROM meta WHERE key = 'format'")
            found.append(number)
    return found[0], found[1]


NOW = (CATALOG.version, STORE.version)
BEFORE = (CATALOG.version - 1, STORE.version - 1)


def test_the_formats_before_these_are_kept(tmp_path: Path) -> None:
    """Whoever raises a format first keeps a folder of the one before (tests.support)."""
    kept = [formats(unpack(name, tmp_path / name)) for name in NAMES]
    for place in (0, 1):
        assert {each[place] for each in kept} >= {NOW[place] - 1}
    assert {each[0] for each in kept} >= set(range(CATALOG.oldest, CATALOG.version))
    assert {each[1] for each in kept} >= set(range(STORE.oldest, STORE.version))


@each_kept
def test_a_kept_folder_is_upgraded_once_and_loses_nothing(tmp_path: Path, name: str) -> None:
    folder = unpack(name, tmp_path / "data")
    held, was = contents(folder), formats(folder)
    with closing(DataFolder(folder, LATER)) as opened:
        assert [each[1:] for each in opened.upgraded] == list(zip(was, NOW, strict=True))
        assert not opened.is_outdated
    assert contents(folder) == held and formats(folder) == NOW
    with closing(DataFolder(folder, LATER)) as opened:
        assert opened.upgraded == []


def recorded(name: str, folder: Path) -> tuple[dict[str, bytes], list[Change]]:
    """What is on the disk before an upgrade, and all that it changes there."""
    unpack(name, folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    with forgetting_disk(Medium(files)) as disk_:
        with open_folder(folder, LATER, disk_.name) as opened:
            assert opened.upgraded
        shutil.rmtree(folder)
        return files, disk_.changes


def survivors(
    files: dict[str, bytes], changes: list[Change], seed: int
) -> Iterator[tuple[int, dict[str, bytes]]]:
    medium = Medium(files)
    for point in range(len(changes) + 1):
        if point:
            medium.apply(changes[point - 1])
        yield point, medium.survivors(random.Random(f"{seed} {point}"))


def assert_opens_after_each_cut(name: str, place: Path) -> None:
    held = contents(unpack(name, place / "whole"))
    files, changes = recorded(name, place / "life")
    stood: set[tuple[int, int]] = set()
    for seed in range(3):
        for point, left in survivors(files, changes, seed):
            folder = place / "cut"
            put(left, folder)
            what = f"cut at {point} of {len(changes)}, seed {seed}"
            stood.add(formats(folder))
            try:
                with closing(DataFolder(folder, LATER)):
                    pass
                assert contents(folder) == held, what
            except (apsw.Error, FormatUnknown, DataDamaged) as error:
                raise AssertionError(f"{what}: {error}") from error
            assert formats(folder) == NOW
            shutil.rmtree(folder)
    assert {BEFORE, (CATALOG.version, STORE.version - 1), NOW} <= stood


@each_kept
def test_an_upgrade_that_is_cut_anywhere_goes_on_at_the_next_start(
    tmp_path: Path, name: str
) -> None:
    assert_opens_after_each_cut(name, tmp_path)


def _in_two(database: Database, folder: str) -> None:
    if database.is_outdated:
        with database.transaction():
            database.set_meta("format", database._layout.version)
        with database.transaction():
            database._layout.upgrades[database.format](database, folder)
        database.folder, database.format = folder, database._layout.version


def _stores_first(self: DataFolder) -> list[Database]:
    return [*(store.file for store in self._stores), self.catalog.file]


@pytest.mark.parametrize(
    ("owner", "method", "fault"),
    [(Database, "upgrade", _in_two), (DataFolder, "_files", _stores_first)],
    ids=["in two transactions", "the catalog last"],
)
def test_a_planted_fault_of_an_upgrade_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, fault: Any
) -> None:
    monkeypatch.setattr(owner, method, fault)
    with pytest.raises(AssertionError):
        assert_opens_after_each_cut(NAMES[-1], tmp_path)


@each_kept
def test_an_upgrade_that_finds_no_room_is_made_up_for(tmp_path: Path, name: str) -> None:
    held = contents(unpack(name, tmp_path / "whole"))
    refused = 0
    for count in range(40):
        folder = unpack(name, tmp_path / f"data-{count}")
        full = at(count, sqlite_error(apsw.SQLITE_FULL), frozenset({WRITE}))
        with disk(full) as disk_:
            try:
                with open_folder(folder, LATER, disk_.name):
                    pass
            except (StoreUnavailable, apsw.FullError):  # the latter at the close
                refused += 1
        with disk(no_fault) as sound, open_folder(folder, LATER, sound.name):
            pass
        assert contents(folder) == held and formats(folder) == NOW
    assert refused, "no write of an upgrade was hit"


@each_kept
def test_a_postbus_of_the_format_before_refuses_an_upgraded_folder(
    tmp_path: Path, name: str
) -> None:
    folder = unpack(name, tmp_path / "data")
    DataFolder(folder, LATER).close()
    for file, layout in (("catalog.db", CATALOG), ("store-0.db", STORE)):
        older = layout._replace(version=layout.version - 1, upgrades={})
        with pytest.raises(FormatUnknown, match=f"{file} has format {layout.version}; this"):
            Database(str(folder / file), older)


@each_kept
def test_a_file_of_an_unknown_format_keeps_the_others_as_they_are(
    tmp_path: Path, name: str
) -> None:
    folder = unpack(name, tmp_path / "data")
    with closing(apsw.Connection(str(folder / "store-0.db"))) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    with pytest.raises(FormatUnknown, match=r"store-0\.db has format 99"):
        DataFolder(folder, LATER)
    assert formats(folder)[0] < CATALOG.version


@each_kept
def test_a_copy_made_before_an_upgrade_is_of_the_format_before(tmp_path: Path, name: str) -> None:
    folder = unpack(name, tmp_path / "data")
    held, was = contents(folder), formats(folder)
    back_up(folder, tmp_path / "copy")
    assert formats(folder) == formats(tmp_path / "copy") == was
    with pytest.raises(ExportRefused, match="of an older format"):
        export_folder(folder, "ns", "toml", keys=False)
    assert formats(folder) == was
    DataFolder(tmp_path / "copy", LATER).close()
    assert contents(tmp_path / "copy") == held and formats(tmp_path / "copy") == NOW


def test_a_store_of_another_folder_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        DataFolder(tmp_path / name, LATER).close()
    shutil.copy(tmp_path / "one" / "store-0.db", tmp_path / "two" / "store-0.db")
    with pytest.raises(DataDamaged, match=r"store-0\.db is part of another data folder"):
        DataFolder(tmp_path / "two", LATER)


def test_a_store_that_is_added_to_an_upgraded_folder_is_part_of_it(tmp_path: Path) -> None:
    folder = unpack(NAMES[-1], tmp_path / "data")
    DataFolder(folder, LATER, store_count=2).close()
    with closing(DataFolder(folder, LATER)) as opened:
        assert len(opened.stores) == 2


def test_a_catalog_of_its_own_is_upgraded_when_it_is_opened(tmp_path: Path) -> None:
    folder = unpack(NAMES[-1], tmp_path / "data")
    with closing(SqliteCatalog(str(folder / "catalog.db"), LATER)) as catalog:
        assert catalog.file.folder and not catalog.file.is_outdated

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import apsw
import pytest

from postbus.ops.backup import copy_data
from postbus.store.ports.namespace_data import BackupFailed, DataDamaged, DataInUse, FormatUnknown
from postbus.store.sqlite.catalog import SqliteCatalog
from postbus.store.sqlite.folder import DataFolder
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0, Writer, dump


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "above" / "data"


def test_a_new_folder_is_for_its_owner_only(path: Path) -> None:
    with closing(DataFolder(path, T0)) as folder:
        assert len(folder.stores) == 1
        assert folder.catalog.namespace_created_at == T0
        assert path.stat().st_mode & 0o777 == 0o700
        modes = {file.stat().st_mode & 0o777 for file in path.iterdir()}
        assert modes == {0o600}


def test_a_folder_is_opened_again_as_it_was_left(path: Path) -> None:
    with closing(DataFolder(path, T0)) as folder:
        created = folder.catalog.create("orders", "queue", {}, T0, [0])
        Writer(folder.stores[0], created.fragments[0].id).send(b"one")

    with closing(DataFolder(path, T0 + 9)) as folder:
        assert folder.catalog.entities() == [created]
        assert dump(folder.stores[0], created.fragments[0].id).head == 1


def test_a_second_use_of_the_folder_is_refused_naming_the_process(path: Path) -> None:
    with closing(DataFolder(path, T0)):
        with pytest.raises(DataInUse, match=f"in use by process {os.getpid()}$"):
            DataFolder(path, T0)
        script = f"from postbus.store.sqlite.folder import DataFolder; DataFolder({str(path)!r}, 0)"
        other = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert f"DataInUse: {path} is in use by process {os.getpid()}" in other.stderr.decode()

    DataFolder(path, T0).close()


def test_a_lock_left_by_a_process_that_is_gone_does_not_count(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "lock").write_text("999999\n")

    DataFolder(path, T0).close()


def test_more_stores_are_added_and_never_fewer_opened(path: Path) -> None:
    DataFolder(path, T0).close()
    with closing(DataFolder(path, T0, store_count=3)) as folder:
        Writer(folder.stores[2]).send(b"one")

    with closing(DataFolder(path, T0, store_count=1)) as folder:
        assert len(folder.stores) == 3
        assert dump(folder.stores[2], 1).head == 1


def test_a_missing_store_is_not_replaced_by_an_empty_one(path: Path) -> None:
    DataFolder(path, T0).close()
    (path / "store-0.db").unlink()

    with pytest.raises(DataDamaged, match=r"store-0\.db is missing"):
        DataFolder(path, T0)
    assert not (path / "store-0.db").exists()


def test_a_missing_catalog_is_not_replaced_by_an_empty_one(path: Path) -> None:
    DataFolder(path, T0).close()
    (path / "catalog.db").unlink()

    with pytest.raises(DataDamaged, match=r"catalog\.db is missing"):
        DataFolder(path, T0)
    assert not (path / "catalog.db").exists()


def test_a_folder_cut_short_while_it_was_made_is_made_again(path: Path) -> None:
    path.mkdir(parents=True)
    SqliteCatalog(str(path / "catalog.db"), T0).close()
    (path / "store-0.db").touch()

    DataFolder(path, T0 + 1).close()


@pytest.mark.parametrize(("file", "known"), [("catalog.db", "2 to 3"), ("store-0.db", "3 to 4")])
def test_a_newer_format_is_refused_and_the_folder_is_free_again(
    path: Path, file: str, known: str
) -> None:
    with closing(DataFolder(path, T0)):
        pass
    with closing(apsw.Connection(str(path / file))) as database:
        database.execute("UPDATE meta SET value = 9 WHERE key = 'format'")

    for _ in range(2):  # a second try meets the same refusal, not a lock
        with pytest.raises(
            FormatUnknown, match=f"{file} has format 9; this Postbus reads formats {known}$"
        ):
            DataFolder(path, T0)


def test_a_copy_of_a_folder_in_use_opens_as_a_folder(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with closing(DataFolder(path, T0, store_count=2)) as folder:
        created = folder.catalog.create("orders", "queue", {"a": 1}, T0, [0, 1])
        for fragment in created.fragments:
            Writer(folder.stores[fragment.store], fragment.id).send(b"body %d" % fragment.id)

        copy_data(folder, target)

        with closing(DataFolder(target, T0 + 9)) as copy:
            assert copy.catalog.entities() == [created]
            assert len(copy.stores) == 2
            for fragment in created.fragments:
                here = dump(folder.stores[fragment.store], fragment.id)
                assert dump(copy.stores[fragment.store], fragment.id) == here
    assert target.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "copy.partial").exists()


def test_an_entity_deleted_during_a_copy_is_deleted_in_the_copy(path: Path, tmp_path: Path) -> None:
    # given a copy for which the store is half dropped already
    with closing(DataFolder(path, T0)) as folder:
        created = folder.catalog.create("orders", "queue", {}, T0, [0])
        (fragment,) = created.fragments
        writer = Writer(folder.stores[0], fragment.id)
        for i in range(10):
            writer.send(b"body %d" % i)
        backup = folder.begin_backup(tmp_path / "copy")
        folder.catalog.delete("orders")
        assert not folder.stores[0].drop(fragment.id, 3)
        assert [*backup.steps(0)] == []
        backup.finish()

    # then the copy does not promise the entity; it has the drop go on
    with closing(DataFolder(tmp_path / "copy", T0)) as copy:
        assert copy.catalog.entities() == []
        assert copy.catalog.dropped() == [fragment]
        assert copy.stores[0].drop(fragment.id, 100)


def test_an_entity_created_during_a_copy_is_empty_in_the_copy(path: Path, tmp_path: Path) -> None:
    with closing(DataFolder(path, T0)) as folder:
        backup = folder.begin_backup(tmp_path / "copy")
        assert [*backup.steps(0)] == []
        created = folder.catalog.create("orders", "queue", {}, T0, [0])
        Writer(folder.stores[0], created.fragments[0].id).send(b"too late")
        backup.finish()

    with closing(DataFolder(tmp_path / "copy", T0)) as copy:
        assert copy.catalog.entities() == [created]
        assert dump(copy.stores[0], created.fragments[0].id).head == 0


def test_a_copy_does_not_replace_what_is_there(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()

    with closing(DataFolder(path, T0)) as folder, pytest.raises(BackupFailed, match="already"):
        copy_data(folder, tmp_path / "copy")


def test_a_copy_that_fails_leaves_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: SqliteStore, _target: str) -> NoReturn:
        raise BackupFailed("no space")

    with closing(DataFolder(path, T0)) as folder:
        monkeypatch.setattr(SqliteStore, "backup_steps", full)
        with pytest.raises(BackupFailed, match="no space"):
            copy_data(folder, tmp_path / "copy")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["above"]


def test_a_copy_cut_short_earlier_is_made_again(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial" / "store-0.db").write_text("half")

    with closing(DataFolder(path, T0)) as folder:
        copy_data(folder, tmp_path / "copy")
    DataFolder(tmp_path / "copy", T0).close()


def test_a_folder_knows_the_newest_time_of_all_that_is_in_it(path: Path) -> None:
    with closing(DataFolder(path, T0, store_count=2)) as folder:
        assert folder.newest() == T0
        folder.catalog.create("orders", "queue", {}, T0 + 1, [0])
        assert folder.newest() == T0 + 1
        folder.catalog.update("orders", {}, T0 + 2)
        assert folder.newest() == T0 + 2
        Writer(folder.stores[1], 5).send(b"one", at=T0 + 3)

    with closing(DataFolder(path, T0)) as folder:
        assert folder.newest() == T0 + 3


def test_a_reserve_follows_its_setting(tmp_path: Path) -> None:
    def reserved(size: int | None) -> int:
        with closing(DataFolder(tmp_path / "data", T0, reserve_bytes=size)):
            pass
        found = tmp_path / "data" / "reserve"
        return found.stat().st_size if found.exists() else 0

    assert reserved(None) == 0
    assert reserved(1 << 20) == 1 << 20
    assert reserved(None) == 1 << 20, "a tool that opens the folder leaves it alone"
    assert reserved(1 << 19) == 1 << 19
    assert reserved(0) == 0

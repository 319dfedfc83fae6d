"""A copy of a data folder opens as a folder of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from postbus.auth.namespace_key import KEY_FILE
from postbus.ops.backup import BACKUP, BackupRefused, back_up, back_up_running
from postbus.ops.control import Control
from postbus.runtime.store_thread import StoreThread
from postbus.store.sqlite.folder import DataFolder
from postbus.tls.local_ca import make_certificate

T0 = 1_700_000_000_000


def make_folder(path: Path) -> DataFolder:
    folder = DataFolder(path, T0)
    folder.catalog.create("orders", "queue", {"max_delivery_count": 5}, T0, [0])
    key = path / KEY_FILE
    key.write_text("secret\n")
    key.chmod(0o600)
    make_certificate(path / "tls", [])
    return folder


def names_in(path: Path) -> list[str]:
    folder = DataFolder(path, T0)
    try:
        return [entity.name for entity in folder.catalog.entities()]
    finally:
        folder.close()


def check_copy(copy: Path) -> None:
    assert names_in(copy) == ["orders"]
    assert (copy / KEY_FILE).read_text() == "secret\n"
    assert (copy / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert not make_certificate(copy / "tls", []).new_certificate
    assert (copy / "tls" / "server.key").stat().st_mode & 0o777 == 0o600


def test_a_folder_at_rest_is_copied(tmp_path: Path) -> None:
    make_folder(tmp_path / "data").close()
    back_up(tmp_path / "data", tmp_path / "copy")
    check_copy(tmp_path / "copy")


def test_a_folder_in_use_is_copied_by_the_server_that_uses_it(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        folder = make_folder(tmp_path / "data")
        threads = [StoreThread("catalog", loop), StoreThread("store-0", loop)]
        copying = partial(back_up_running, folder, threads[0], threads[1:])
        control = Control(folder.folder, {BACKUP: copying})
        await control.open()
        await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy")
        with pytest.raises(BackupRefused, match="there already"):
            await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "copy")
        await control.close()
        with pytest.raises(BackupRefused, match="does not answer"):
            await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "other")
        for thread in threads:
            await thread.stop()
        folder.close()
        check_copy(tmp_path / "copy")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]

    run(story())


def test_what_is_no_data_folder_is_not_made_one(tmp_path: Path) -> None:
    for source in (tmp_path / "none", tmp_path):
        with pytest.raises(BackupRefused, match="is not a data folder"):
            back_up(source, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_there_is_left_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "data").close()
    target = tmp_path / "copy"
    target.mkdir()
    (target / "mine").write_text("x")
    with pytest.raises(BackupRefused, match="there already"):
        back_up(tmp_path / "data", target)
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_a_copy_that_cannot_be_finished_leaves_nothing(run: Any, tmp_path: Path) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        folder = make_folder(tmp_path / "data")
        threads = [StoreThread("catalog", loop), StoreThread("store-0", loop)]
        copying = asyncio.create_task(
            back_up_running(folder, threads[0], threads[1:], str(tmp_path / "copy"))
        )
        await asyncio.sleep(0)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        for thread in threads:
            await thread.stop()
        folder.close()
        assert [path.name for path in tmp_path.iterdir()] == ["data"]

    run(story())

from contextlib import closing
from pathlib import Path

import pytest

from postbus.errors import NotSupported
from postbus.settings import Settings
from postbus.store.opening import holds_data, open_at_rest, open_data
from postbus.store.ports.namespace_data import DataInUse

T0 = 1_700_000_000_000


def test_a_namespace_has_a_catalog_and_a_store_and_knows_its_time(tmp_path: Path) -> None:
    for ephemeral in (False, True):
        settings = Settings(data=tmp_path / "data", ephemeral=ephemeral)
        with closing(open_data(settings, T0)) as data:
            created = data.catalog.create("orders", "queue", {}, T0 + 5, [0])
            assert data.stores[created.fragments[0].store].position(1) is None
            assert data.newest() == T0 + 5
            assert (data.upgraded, data.is_outdated) == (type(data.upgraded)(), False)


def test_an_ephemeral_namespace_leaves_no_folder_and_cannot_be_copied(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", ephemeral=True)
    with closing(open_data(settings, T0)) as data:
        assert data.folder is None
        with pytest.raises(NotSupported, match="ephemeral"):
            data.begin_backup(tmp_path / "copy")
    assert not holds_data(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_data_at_rest_is_opened_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with closing(open_data(Settings(data=folder), T0)) as data:
        assert data.folder == folder
        assert holds_data(folder)
        with pytest.raises(DataInUse):
            open_at_rest(folder, T0)
    open_at_rest(folder, T0).close()

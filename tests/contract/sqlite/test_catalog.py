"""The catalog in its file: a new start, and a copy."""

from contextlib import closing
from pathlib import Path

from postbus.store.ports.catalog import FragmentRecord
from postbus.store.sqlite.catalog import SqliteCatalog
from tests.contract.catalog.test_entities import PLAIN
from tests.contract.fragments import T0


def test_a_new_start_finds_the_catalog_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    with closing(SqliteCatalog(path, T0)) as catalog:
        kept = catalog.create("kept", "queue", PLAIN, T0, [0])
        gone = catalog.create("gone", "queue", {}, T0, [0])
        catalog.delete("gone")
        catalog.set("key", "secret")

    with closing(SqliteCatalog(path, T0 + 9)) as catalog:
        assert catalog.namespace_created_at == T0
        assert catalog.entities() == [kept]
        assert catalog.dropped() == list(gone.fragments)
        assert catalog.get("key") == "secret"
        fresh = catalog.create("fresh", "queue", {}, T0, [0])
        assert fresh.fragments == (FragmentRecord(gone.fragments[0].id + 1, 0, 0),)


def test_a_copy_opens_as_a_catalog(tmp_path: Path) -> None:
    with closing(SqliteCatalog(str(tmp_path / "catalog.db"), T0)) as catalog:
        kept = catalog.create("kept", "queue", PLAIN, T0, [0])
        catalog.backup(str(tmp_path / "copy.db"))
        catalog.create("later", "queue", PLAIN, T0, [0])

    with closing(SqliteCatalog(str(tmp_path / "copy.db"), T0 + 9)) as copy:
        assert copy.entities() == [kept]
        assert copy.namespace_created_at == T0


def test_names_are_remembered_by_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "catalog.db")
    with closing(SqliteCatalog(path, T0)) as made:
        for name in ("a", "a/b"):
            made.create(name, "queue", PLAIN, T0, [0])
        made.delete("a")
    with closing(SqliteCatalog(path, T0)) as made:
        assert made.deleted_prefixes() == ["a"]

"""Each backend in turn: what holds for one holds for all. A new backend has its line here."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from postbus.store.log.store import LogStore
from postbus.store.memory.catalog import MemoryCatalog
from postbus.store.memory.store import MemoryStore
from postbus.store.ports.catalog import Catalog
from postbus.store.ports.store import Store
from postbus.store.sqlite.catalog import SqliteCatalog
from postbus.store.sqlite.store import SqliteStore
from tests.contract.fragments import T0


class Backend(NamedTuple):
    """How to make a new store and a new catalog in a folder."""

    store: Callable[[Path], Store]
    catalog: Callable[[Path], Catalog]


BACKENDS: Final = {
    "sqlite": Backend(
        lambda folder: SqliteStore(str(folder / "store.db")),
        lambda folder: SqliteCatalog(str(folder / "catalog.db"), T0),
    ),
    "log": Backend(
        lambda folder: LogStore(folder, segment_bytes=1 << 20),
        lambda folder: SqliteCatalog(str(folder / "catalog.db"), T0),
    ),
    "log of small segments": Backend(
        lambda folder: LogStore(folder, segment_bytes=8_192),
        lambda folder: SqliteCatalog(str(folder / "catalog.db"), T0),
    ),
    "memory": Backend(lambda folder: MemoryStore(), lambda folder: MemoryCatalog(T0)),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


@pytest.fixture
def store(backend: Backend, tmp_path: Path) -> Iterator[Store]:
    """Journal and index."""
    with closing(backend.store(tmp_path)) as made:
        yield made


@pytest.fixture
def catalog(backend: Backend, tmp_path: Path) -> Iterator[Catalog]:
    with closing(backend.catalog(tmp_path)) as made:
        yield made

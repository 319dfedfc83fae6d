from collections.abc import Iterator
from pathlib import Path

import pytest

from postbus.store.memory.store import MemoryStore
from postbus.store.ports import MessageStore
from postbus.store.sqlite.store import SqliteStore


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    """Each kind of store in turn: what holds for one holds for all."""
    made: MessageStore
    made = SqliteStore(str(tmp_path / "store.db")) if request.param == "sqlite" else MemoryStore()
    yield made
    made.close()

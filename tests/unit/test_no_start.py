"""A folder that cannot be used is refused in a line that says why."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest
from structlog.testing import capture_logs

from postbus import server
from postbus.settings import Settings
from postbus.store.sqlite.folder import DataFolder


def newer(file: Path) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("UPDATE meta SET value = 9 WHERE key = 'format'")


def no_database(file: Path) -> None:
    file.write_bytes(b"This is not a database. " * 1_000)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (newer, "store-0.db has format 9; this Postbus reads formats 3 to 4"),
        (no_database, "store-0.db failed and is stopped: file is not a database"),
    ],
)
def test_a_folder_that_cannot_be_read_is_not_started_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: object, said: str
) -> None:
    assert callable(spoil)
    DataFolder(tmp_path / "data", 0).close()
    spoil(tmp_path / "data" / "store-0.db")
    monkeypatch.setattr(server, "configure", lambda *_: None)

    with capture_logs() as lines:
        assert server.run(Settings(data=tmp_path / "data", port=0, admin_port=0)) == 1

    [line] = [line for line in lines if line["event"] == "cannot start"]
    assert line["error"].endswith(said)

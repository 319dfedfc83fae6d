import errno
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from postbus.errors import OutcomeUnknown, StoreFailed, StoreUnavailable
from postbus.store.ports.namespace_data import FormatUnknown
from postbus.store.sqlite.database import Database, Layout
from tests.contract.disk import WRITE, Operation, disk

LAYOUT = Layout("thing", 1, ("CREATE TABLE t (a INTEGER PRIMARY KEY)",))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "thing.db")


def test_a_newer_format_is_refused_by_name(path: str) -> None:
    Database(path, LAYOUT._replace(version=2)).close()

    with pytest.raises(
        FormatUnknown, match=r"thing\.db has format 2; this Postbus reads formats 1 to 1"
    ):
        Database(path, LAYOUT)


def test_a_file_of_another_kind_is_refused(path: str) -> None:
    Database(path, LAYOUT._replace(kind="other")).close()

    with pytest.raises(FormatUnknown, match="is not a Postbus thing"):
        Database(path, LAYOUT)


def test_a_foreign_sqlite_file_is_refused_and_left_alone(path: str) -> None:
    with closing(apsw.Connection(path)) as foreign:
        foreign.execute("CREATE TABLE mine (a)")

    with pytest.raises(FormatUnknown, match="is not a Postbus thing"):
        Database(path, LAYOUT)
    with closing(apsw.Connection(path)) as foreign:
        assert foreign.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]


def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"not a database" * 1_000)

    with pytest.raises(StoreFailed, match="file is not a database"):
        Database(path, LAYOUT)


def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="unable to open"):
        Database(str(tmp_path), LAYOUT)


def test_a_transaction_that_raises_leaves_nothing(path: str) -> None:
    with closing(Database(path, LAYOUT)) as database:

        def fail() -> None:
            with database.transaction():
                database.run("INSERT INTO t VALUES (1)")
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert database.run("SELECT * FROM t") == []
        with database.transaction():
            database.run("INSERT INTO t VALUES (2)")
        assert database.run("SELECT * FROM t") == [(2,)]


def test_a_fault_of_our_own_is_not_taken_for_one_of_the_disk(path: str) -> None:
    with closing(Database(path, LAYOUT)) as database:
        with pytest.raises(apsw.ConstraintError), database.transaction():
            database.run("INSERT INTO t VALUES (1), (1)")
        with pytest.raises(apsw.SQLError), database.reading():
            database.run("SELECT * FROM nowhere")

        with database.reading():
            assert database.run("SELECT * FROM t") == []


def test_a_commit_that_finds_no_room_for_the_index_of_the_log_may_be_there(path: str) -> None:
    """The index is written behind the log, which has the commit by then."""
    code = 0

    def fault(operation: Operation) -> None:
        if code and operation.kind == WRITE:
            raise apsw.exception_for(code)

    with disk(fault) as full, closing(Database(path, LAYOUT, full.name)) as database:
        full.last_errno = errno.ENOSPC
        code = apsw.SQLITE_IOERR_SHMSIZE
        with pytest.raises(OutcomeUnknown), database.transaction():
            database.run("INSERT INTO t VALUES (1)")
        with pytest.raises(OutcomeUnknown), database.writing():
            database.run("INSERT INTO t VALUES (1)")
        code = apsw.SQLITE_IOERR_WRITE
        with pytest.raises(StoreUnavailable), database.writing():
            database.run("INSERT INTO t VALUES (1)")
        code = 0
        with database.transaction():
            database.run("INSERT INTO t VALUES (1)")


def test_somebody_who_holds_the_file_makes_it_unavailable_not_broken(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postbus.store.sqlite.database.BUSY_MS", 1)
    with closing(Database(path, LAYOUT)) as database, closing(apsw.Connection(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked") as refused, database.transaction():
            pass
        assert not isinstance(refused.value, StoreFailed)
        other.execute("ROLLBACK")

        with database.transaction():
            database.run("INSERT INTO t VALUES (1)")


def test_a_scan_that_stops_early_ends_its_statement(path: str) -> None:
    with closing(Database(path, LAYOUT)) as database:
        with database.transaction():
            for i in range(10):
                database.run("INSERT INTO t VALUES (?)", (i,))

        with closing(database.scan("SELECT a FROM t ORDER BY a")) as rows:
            assert next(rows) == (0,)

        with database.transaction():  # would not commit over an unfinished statement's snapshot
            database.run("DROP TABLE t")

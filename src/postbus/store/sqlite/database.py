"""A SQLite file, opened with the settings of a file that must not lose anything.

Shared by the store and the catalog: settings, format check, transactions, and care of the
write-ahead log.
"""

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

import apsw

from postbus.errors import OutcomeUnknown, StoreFailed, StoreFull, StoreUnavailable
from postbus.store.ports.namespace_data import FormatUnknown
from postbus.store.sqlite.damage import Damaged
from postbus.store.sqlite.failures import Failures
from postbus.store.sqlite.files import copy_steps, create_private
from postbus.store.sqlite.reserve import Reserve

PAGE_SIZE: Final = 8192
"""Measured with 1 KB records. A commit of one record is within 15 % of pages of 4096; a commit of
500 is a third faster. Pages of 16384 write twice the bytes for small commits."""
WAL_PAGES_MAX: Final = 1000
"""Pages in the write-ahead log from which a commit also moves them into the file."""
WAL_BYTES_KEPT: Final = 64 << 20
"""A log that grew beyond this (a reader stood in the way) is cut back to it."""
CACHE_KIB: Final = 16_384
BUSY_MS: Final = 5_000
_INCREMENTAL: Final = 2
FREE_SHARE: Final = 12
"""1/FREE_SHARE of a file's pages may be free without being given back."""

_FOLDER: Final = "folder"

T = TypeVar("T")
Values = Sequence[Any]
Rows = list[tuple[Any, ...]]


class Layout(NamedTuple):
    """The layout of a kind of file. The version rises with every change to an existing table, and
    to the meaning of any bytes in it."""

    kind: str
    version: int
    tables: tuple[str, ...]
    upgrades: Mapping[int, "Callable[[Database, str], None]"] = {}
    """For each older version, the step that upgrades a file to the next version. It is given the id
    of the folder. Its statements must end within seconds, because they are one transaction."""

    @property
    def oldest(self) -> int:
        """The first version from which there is a way."""
        version = self.version
        while version - 1 in self.upgrades:
            version -= 1
        return version


class Database:
    """A connection with the failure rules of a durable store.

    Everything runs inside `reading`, `writing` or `transaction`, and every statement is finished
    before the next begins. An unfinished read holds a snapshot, and the log cannot be reset behind
    a snapshot.
    """

    def __init__(
        self,
        path: str,
        layout: Layout,
        vfs: str | None = None,
        wal_pages_max: int = WAL_PAGES_MAX,
        folder: str = "",
        reserve: Reserve | None = None,
    ) -> None:
        """A new file is made for the folder of this id. A file of an older format must be upgraded
        before it is used for anything but a copy."""
        self.reserve = reserve
        """The room for a write when the disk is full."""
        self.name = os.path.basename(path)
        self._path = path
        self._layout = layout
        self._vfs = vfs
        self._wal_pages = 0
        self._wal_pages_max = wal_pages_max
        self._is_synced = True
        self._failures = Failures(self.name)
        create_private(path)
        with self._failures.translated(None):
            self._connection = apsw.Connection(path, vfs=vfs)
        try:
            with self._failures.translated(self._connection):
                self._configure()
            self._prepare(layout, folder)
            self.move_log()
        except BaseException:
            self._connection.close()
            raise

    def _configure(self) -> None:
        self._connection.set_busy_timeout(BUSY_MS)
        self.run(f"PRAGMA page_size={PAGE_SIZE}")
        # Takes effect only before the first table: it decides the layout of the file. Later it
        # would be a write for nothing, for which a full disk has no room.
        if self.run("PRAGMA auto_vacuum") != [(_INCREMENTAL,)]:
            self.run("PRAGMA auto_vacuum=INCREMENTAL")
        [(mode,)] = self.run("PRAGMA journal_mode=WAL")
        if mode not in ("wal", "memory"):
            raise StoreFailed(f"{self.name}: no write-ahead log is possible there ({mode} instead)")
        # In WAL mode anything less than FULL does not sync at commit.
        self.run("PRAGMA synchronous=FULL")
        self.run(f"PRAGMA cache_size=-{CACHE_KIB}")
        self.run(f"PRAGMA journal_size_limit={WAL_BYTES_KEPT}")
        self.run("PRAGMA mmap_size=0")
        self.run("PRAGMA temp_store=MEMORY")
        # SQLite's own automatic checkpoint hides its errors, and a failed sync must not be hidden.
        self._connection.set_wal_hook(self._note_wal)

    def _prepare(self, layout: Layout, folder: str) -> None:
        with self.transaction():
            tables = self.run("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if not tables:
                self.run("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
                for statement in layout.tables:
                    self.run(statement)
                self.set_meta("kind", layout.kind)
                self.set_meta("format", layout.version)
                self.set_meta(_FOLDER, folder)
            elif ("meta",) not in tables or self.get_meta("kind") != layout.kind:
                raise FormatUnknown(f"{self._path} is not a Postbus {layout.kind}")
            found = self.get_meta("format")
            self.folder = str(self.get_meta(_FOLDER) or "")
            """The id of the data folder it is part of."""
        if not isinstance(found, int) or not layout.oldest <= found <= layout.version:
            raise FormatUnknown(
                f"{self._path} has format {found}; this Postbus reads formats {layout.oldest} to "
                f"{layout.version}"
            )
        self.format = found

    @property
    def is_outdated(self) -> bool:
        return self.format != self._layout.version

    def upgrade(self, folder: str) -> None:
        """Bring the file to the format of this Postbus, at once or not at all."""
        if not self.is_outdated:
            return
        with self.transaction():
            for version in range(self.format, self._layout.version):
                self._layout.upgrades[version](self, folder)
            self.set_meta("format", self._layout.version)
            self.folder = str(self.get_meta(_FOLDER))
        self.format = self._layout.version

    def move_log(self) -> None:
        """Move the log into the file, and sync the file; later, if there is no room.

        A start does it first. The log may have been read from memory: after a failed sync the
        kernel can hold pages for clean that the disk never got. A write behind such a page would be
        lost with it.
        """
        try:
            self.with_reserve(self._checkpoint)
        except StoreFailed:
            raise
        except StoreUnavailable:
            pass

    def with_reserve(self, write: Callable[[], T]) -> T:
        """Run the write. If it finds no room, give up some of the reserve and run it again. A
        failed write must leave nothing behind."""
        while True:
            try:
                return write()
            except StoreFull:
                if self.reserve is None or not self.reserve.give_up():
                    raise

    def _checkpoint(self) -> None:
        with self._failures.translated(self._connection):
            self._connection.wal_checkpoint()
            self._note_wal(self._connection, "main", 0)

    def run(self, statement: str, values: Values = ()) -> Rows:
        """Run a statement to its end. Prepared statements are kept by their text."""
        return self._connection.execute(statement, values).fetchall()

    def scan(self, statement: str, values: Values = ()) -> Generator[tuple[Any, ...], None, None]:
        """The rows, one at a time, for a caller that stops early; closing it ends the statement."""
        cursor = self._connection.execute(statement, values)
        try:
            yield from cursor
        finally:
            cursor.close()

    def changes(self) -> int:
        """Rows the last statement inserted, updated or deleted."""
        return self._connection.changes()

    def read_blob(
        self, table: str, column: str, rowid: int, position: int, length: int
    ) -> bytes | None:
        """Part of a blob without reading the rest; None when there is no row."""
        try:
            blob = self._connection.blob_open("main", table, column, rowid, False)
        except apsw.SQLError as error:
            if self.run(f"SELECT 1 FROM {table} WHERE rowid = ?", (rowid,)):
                raise Damaged(f"{column} of row {rowid} in {table}: {error}") from error
            return None
        try:
            if not 0 <= position <= position + length <= blob.length():
                raise ValueError(f"{position}+{length} is outside a blob of {blob.length()} bytes")
            blob.seek(position)
            return blob.read(length)
        finally:
            blob.close()

    def get_meta(self, key: str) -> Any:
        rows = self.run("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def set_meta(self, key: str, value: str | int) -> None:
        self.run("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    def stop(self, reason: str) -> None:
        """Refuse all later calls: what belongs to the file has failed."""
        if self._failures.reason is None:
            self._failures.reason = reason

    def refuse(self) -> None:
        """Raise StoreFailed if the file is stopped."""
        self._failures.refuse()

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._failures.refuse()
        with self._failures.translated(self._connection):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """For a single statement, which commits by itself."""
        self._failures.refuse()
        with self._failures.translated(self._connection):
            self._sync_commits(True)
        with self._failures.translated(self._connection, commits=True):
            yield
        self._care_for_wal()

    @contextmanager
    def transaction(self, *, synced: bool = True) -> Iterator[None]:
        """Everything inside, or nothing of it. Durable when it ends without an exception; if it is
        not synced, a power cut may take it back until the next transaction that is."""
        self._failures.refuse()
        if self.reserve is not None and not self.reserve.has_room:
            self.reserve.ease()  # leave room for writes that are not tried again
        with self._failures.translated(self._connection):
            self._sync_commits(synced)
            self.run("BEGIN IMMEDIATE")
            try:
                yield
                with self._failures.translated(self._connection, commits=True):
                    self.run("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors and not after others.
                if self._connection.in_transaction:
                    with suppress(apsw.Error):
                        self.run("ROLLBACK")
                raise
        self._care_for_wal()

    def _sync_commits(self, synced: bool) -> None:
        # In WAL mode anything less than FULL does not sync at commit.
        if synced != self._is_synced:
            self.run(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
            self._is_synced = synced

    def shrink(self, pages: int, kept: int) -> None:
        """Give up to `pages` free pages back to the file system when there are many.

        A twelfth of the file stays, and `kept` pages in any case. A journal that is trimmed as fast
        as it is written uses its free pages again, so moving pages away would be write load for
        nothing. More would take the file beyond its retention and a fifth.

        When the disk has no room, all free pages go, a few at a time: the log must have room for
        the moved pages, until they are in the file.

        Raises nothing: pages that cannot be given back now are given back later.
        """
        with suppress(StoreUnavailable, OutcomeUnknown):
            [(free,)] = self._ask("PRAGMA freelist_count")
            if self.reserve is not None and not self.reserve.has_room:
                at_once = self.reserve.step // PAGE_SIZE // 2
                for _ in range(min(pages, free) // at_once + 1):
                    with self.writing():
                        self.run(f"PRAGMA incremental_vacuum({at_once})")
                    self.with_reserve(self._checkpoint)
            elif free > kept:
                [(total,)] = self._ask("PRAGMA page_count")
                surplus = free - max(kept, total // FREE_SHARE)
                if surplus > 0:
                    with self.writing():
                        self.run(f"PRAGMA incremental_vacuum({min(pages, surplus)})")

    def _ask(self, statement: str) -> Rows:
        with self.reading():
            return self.run(statement)

    def backup_steps(self, target: str) -> Generator[None, None, None]:
        """Copy the file into `target`, a slice between two yields; other calls may come between.

        The copy is made through the writer's own connection: SQLite carries the commits of that
        connection over into the copy. Another connection would have to hold a read snapshot to the
        end, while the log grows, or start again at each commit. So would VACUUM INTO.
        """
        self._failures.refuse()
        yield from copy_steps(self._connection, target, self._vfs, self._failures.refuse)

    def close(self) -> None:
        self._connection.set_wal_hook(None)
        if self._failures.reason is not None:
            # Leave the files as they are: recovery decides which part of the log is whole.
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._connection.close()

    def _note_wal(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        if self.reserve is not None:
            self.reserve.pledge(self.name, pages * PAGE_SIZE)
        return apsw.SQLITE_OK

    def _care_for_wal(self) -> None:
        """Move the log into the file. Committed data is safe in either, so nothing is raised.
        Without space the next commit tries again; a broken file refuses the next commit."""
        if self._wal_pages < self._wal_pages_max:
            return
        with suppress(StoreUnavailable):
            self.with_reserve(self._checkpoint)


def name_folder(database: Database, folder: str) -> None:
    """An upgrade: from then on a file says which data folder it is part of."""
    database.set_meta(_FOLDER, folder)

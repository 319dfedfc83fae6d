"""The default store: journals and indexes of many fragments in one SQLite file."""

from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Final

from postbus.errors import StoreFailed, StoreFull, StoreUnavailable
from postbus.model.index_rows import Row
from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal import (
    OFFSET_MAX,
    FragmentPosition,
    Lease,
    Part,
    Trimmed,
)
from postbus.store.sqlite import batches
from postbus.store.sqlite.damage import check_blob, check_numbers
from postbus.store.sqlite.database import WAL_PAGES_MAX, Database
from postbus.store.sqlite.index import SqliteIndex
from postbus.store.sqlite.journal_reader import SqliteReader
from postbus.store.sqlite.reserve import Reserve
from postbus.store.sqlite.retention import Retention
from postbus.store.sqlite.schema import OFFSET_BITS, STORE, first_id

_PARTS_MAX: Final = 16
"""Batches in a statement. A commit of so many needs no other, and no explicit transaction."""

_ACQUIRE: Final = """
INSERT INTO fragment (id, epoch, broker, checkpoint, tail, state) VALUES (?, ?, ?, 0, 0, x'')
ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, broker = excluded.broker"""
_POSITION: Final = "SELECT epoch, checkpoint, state FROM fragment WHERE id = ?"
_RELEASE: Final = "UPDATE fragment SET epoch = epoch + 1, broker = '' WHERE id = ? AND epoch = ?"
_HEAD: Final = "SELECT epoch, checkpoint FROM fragment WHERE id = ?"
_LAST: Final = """
SELECT id, count, total FROM journal WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"""
# A single step down the tree for each fragment: a scan would read every page of the journal.
_NEWEST: Final = f"""
SELECT max((SELECT at FROM journal WHERE journal.id BETWEEN
    fragment.id << {OFFSET_BITS} AND (fragment.id << {OFFSET_BITS}) + {OFFSET_MAX}
    ORDER BY journal.id DESC LIMIT 1)) FROM fragment"""
_NEWEST_CHECKPOINT: Final = "newest checkpoint"

_BATCH: Final = "SELECT epoch, count, data FROM journal WHERE id = ?"


@cache
def _append(count: int) -> str:
    """Insert batches whose lease is in force. The fence is part of the statement.

    The fragment is read off the row id. CROSS JOIN keeps the batches on the outside: the other
    way round they would be copied into a temporary table first.
    """
    values = ",".join(["(?,?,?,?,?,?)"] * count)
    return f"""
INSERT INTO journal (id, epoch, at, count, total, data)
SELECT new.* FROM (VALUES {values}) AS new CROSS JOIN fragment
ON fragment.id = new.column1 >> 40 AND fragment.epoch = new.column2"""


class _Head:
    """The position of a fragment, for the holder of a lease."""

    __slots__ = ("checkpoint", "epoch", "offset", "written")

    def __init__(self, epoch: int, checkpoint: int, offset: int, written: int) -> None:
        self.epoch = epoch
        self.checkpoint = checkpoint
        self.offset = offset
        self.written = written
        """Bytes of all batches so far, the `total` of the last batch."""


class SqliteStore:
    """A Store in one file. See `postbus.store.ports` for what the methods promise.

    Records and checkpoint of a commit are one transaction. A commit without a checkpoint is one
    statement, unless it has very many parts.
    """

    def __init__(
        self,
        path: str,
        *,
        vfs: str | None = None,
        wal_pages_max: int = WAL_PAGES_MAX,
        folder: str = "",
        upgrade: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        """In the data folder of this id. A file of an older format is upgraded, or may only be
        copied."""
        self._path, self._vfs = path, vfs
        self._database = Database(path, STORE, vfs, wal_pages_max, folder, reserve)
        self._reserve = reserve
        if upgrade:
            self._database.upgrade(folder)
        self._readers: list[SqliteReader] = []
        self.index = SqliteIndex(self._database)
        self._retention = Retention(self._database, self.index)
        self._heads: dict[int, _Head] = {}

    @property
    def file(self) -> Database:
        return self._database

    @property
    def has_room(self) -> bool:
        return self._reserve is None or self._reserve.has_room

    @property
    def is_spent(self) -> bool:
        return self._reserve is not None and self._reserve.is_spent

    def look_for_room(self) -> bool:
        if self._reserve is None:
            return True
        # This often follows a commit, which is durable in any case: a broken file refuses the next
        # commit.
        with suppress(StoreUnavailable):
            if self._reserve.is_pledged:
                self._database.move_log()
        return self._reserve.look()

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        try:
            return self._database.with_reserve(
                partial(self._take_over, fragment, broker, seen_epoch)
            )
        except StoreFull:
            lease = None if self._reserve is None else self._as_it_stands(fragment)
            if lease is None or lease.epoch <= seen_epoch:
                raise
            return lease

    def _as_it_stands(self, fragment: int) -> Lease | None:
        """The lease with the epoch that is stored. Nobody else can hold a file with a reserve, so
        its messages can be read and delivered, although nothing can be written."""
        with self._database.reading():
            stored = self._database.run(_POSITION, (fragment,))
            if not stored:
                return None
            [(epoch, checkpoint, state)] = stored
            head = self._find_head(fragment, epoch, checkpoint)
        self._heads[fragment] = head
        return Lease(fragment, epoch, head.offset, checkpoint, state)

    def _take_over(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        first_id(fragment)
        with self._database.transaction():
            stored, checkpoint, state = 0, 0, b""
            for row in self._database.run(_POSITION, (fragment,)):
                stored, checkpoint, state = row
            check_numbers((stored, checkpoint), f"fragment {fragment}")
            check_blob(state, f"the state of fragment {fragment}")
            epoch = max(stored, seen_epoch) + 1
            self._database.run(_ACQUIRE, (fragment, epoch, broker))
            head = self._find_head(fragment, epoch, checkpoint)
        self._heads[fragment] = head
        return Lease(fragment, epoch, head.offset, checkpoint, state)

    def position(self, fragment: int) -> FragmentPosition | None:
        with self._database.reading():
            stored = self._database.run(_POSITION, (fragment,))
            if not stored:
                return None
            [(epoch, checkpoint, state)] = stored
            check_numbers((epoch, checkpoint), f"fragment {fragment}")
            check_blob(state, f"the state of fragment {fragment}")
            head = self._find_head(fragment, epoch, checkpoint)
        return FragmentPosition(head.offset, checkpoint, state)

    def release(self, lease: Lease) -> None:
        self._database.with_reserve(partial(self._give_up, lease))
        head = self._heads.get(lease.fragment)
        if head is not None and head.epoch == lease.epoch:
            del self._heads[lease.fragment]

    def _give_up(self, lease: Lease) -> None:
        with self._database.writing():
            self._database.run(_RELEASE, (lease.fragment, lease.epoch))

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        passed: set[int] = set()
        fresh: dict[int, tuple[Part, _Head]] = {}
        with self._database.reading():
            for part in parts:
                fragment = part.lease.fragment
                head = self._head_of(part.lease)
                if head is None:
                    continue
                if fragment in fresh or fragment in passed:
                    raise ValueError(f"fragment {fragment} has two parts in one commit")
                if self._is_stored(part, head):
                    passed.add(fragment)
                else:
                    rules.check(part, head.offset, head.checkpoint)
                    if head.offset + part.count > OFFSET_MAX:
                        raise ValueError(f"the journal of fragment {fragment} has no offset left")
                    fresh[fragment] = part, head
        if fresh:
            passed |= self._database.with_reserve(partial(self._write, fresh))
            size = sum([len(part.batch) for part, _ in fresh.values()])
            if self._reserve is not None and self._reserve.wrote(size):
                self.look_for_room()
        return frozenset(passed)

    def _write(self, fresh: dict[int, tuple[Part, _Head]]) -> set[int]:
        released: dict[int, list[int]] = {}
        if len(fresh) <= _PARTS_MAX and all(part.checkpoint is None for part, _ in fresh.values()):
            with self._database.writing():
                passed = self._append(list(fresh.values()))
        else:
            with self._database.transaction():
                entries = list(fresh.values())
                passed = set()
                for start in range(0, len(entries), _PARTS_MAX):
                    passed |= self._append(entries[start : start + _PARTS_MAX])
                for fragment in list(passed):
                    part = fresh[fragment][0]
                    if part.checkpoint is not None:
                        released[fragment] = self._apply_checkpoint(part)
                        # Only batches below a checkpoint are trimmed, so this is not older.
                        self._database.set_meta(_NEWEST_CHECKPOINT, part.at)
        # Only now: a transaction that failed must leave no trace here either.
        for fragment in passed:
            part, head = fresh[fragment]
            head.offset += part.count
            head.written += len(part.batch)
            if part.checkpoint is not None:
                head.checkpoint = part.checkpoint.offset
                self._retention.checkpoint_written(fragment, released[fragment])
        return passed

    def _append(self, entries: list[tuple[Part, _Head]]) -> set[int]:
        values: list[int | bytes] = []
        count = 0
        fragments = {part.lease.fragment for part, _ in entries}
        for part, head in entries:
            if part.batch:
                total = head.written + len(part.batch)
                row_id = first_id(part.lease.fragment) + part.base
                values += (row_id, part.lease.epoch, part.at, part.count, total, part.batch)
                count += 1
        if count:
            self._database.run(_append(count), values)
        if count == len(entries) and self._database.changes() == count:
            return fragments
        # Rare: a part without a batch, or somebody else has taken a fragment over.
        return {part.lease.fragment for part, _ in entries if self._is_in_force(part.lease)}

    def _is_in_force(self, lease: Lease) -> bool:
        stored = self._database.run(_HEAD, (lease.fragment,))
        return bool(stored) and stored[0][0] == lease.epoch

    def _apply_checkpoint(self, part: Part) -> list[int]:
        """Return the batches behind the trim's scan in which bodies were let go."""
        assert part.checkpoint is not None
        fragment = part.lease.fragment
        released = self._retention.released_by(fragment, part.checkpoint)
        self.index.apply(fragment, part.lease.epoch, part.checkpoint)
        return released

    def _is_stored(self, part: Part, head: _Head) -> bool:
        """Is this the repetition of a commit whose answer got lost?"""
        if not part.batch or part.base >= head.offset:
            return False
        found = self._database.run(_BATCH, (first_id(part.lease.fragment) + part.base,))
        return found == [(part.lease.epoch, part.count, part.batch)]

    def _head_of(self, lease: Lease) -> _Head | None:
        """None when the lease is no longer in force."""
        head = self._heads.get(lease.fragment)
        if head is None or head.epoch < lease.epoch:
            stored = self._database.run(_HEAD, (lease.fragment,))
            if not stored:
                return None
            head = self._find_head(lease.fragment, *stored[0])
            self._heads[lease.fragment] = head
        return head if head.epoch == lease.epoch else None

    def newest(self) -> Instant:
        with self._database.reading():
            [(written,)] = self._database.run(_NEWEST)
            found = (written, self._database.get_meta(_NEWEST_CHECKPOINT))
            instants = [0, *(instant for instant in found if instant is not None)]
            check_numbers(instants, "the time of a commit")
        return int(max(instants))

    def _find_head(self, fragment: int, epoch: int, checkpoint: int) -> _Head:
        first = first_id(fragment)
        last = self._database.run(_LAST, (first, first + OFFSET_MAX))
        if not last:
            return _Head(epoch, checkpoint, checkpoint, 0)
        [(row_id, count, total)] = last
        check_numbers((count, total), f"the last batch of fragment {fragment}")
        # The newest batches may be trimmed while an older batch is pinned.
        return _Head(epoch, checkpoint, max(checkpoint, row_id - first + count), total)

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        return self._retention.load_pinned(fragment, below, live_share_max, limit)

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        with self._database.reading():
            return batches.read(self._database, fragment, start, bytes_max)

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        with self._database.reading():
            return batches.read_whole(self._database, fragment, base)

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        with self._database.reading():
            return batches.read_slice(self._database, fragment, base, position, length)

    def tail(self, fragment: int) -> int:
        return self._retention.tail(fragment)

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        trim = partial(self._retention.trim, fragment, older_than, bytes_max, limit)
        return self._database.with_reserve(trim)

    def drop(self, fragment: int, limit: int) -> bool:
        self._heads.pop(fragment, None)
        return self._database.with_reserve(partial(self._retention.drop, fragment, limit))

    def probe(self, now: int) -> None:
        self._database.with_reserve(partial(self._write_probe, now))
        with self._database.reading():
            if self._database.get_meta("probe") != now:
                raise StoreFailed(f"{self._database.name} did not keep what was written to it")

    def _write_probe(self, now: int) -> None:
        with self._database.transaction():
            self._database.set_meta("probe", now)

    def journal_reader(self) -> SqliteReader:
        reader = SqliteReader(self._path, self._vfs)
        self._readers.append(reader)
        return reader

    def backup_steps(self, target: str) -> Generator[None, None, None]:
        return self._database.backup_steps(target)

    def close(self) -> None:
        # Before the writer, so that the last to close moves the log into the file.
        for reader in self._readers:
            reader.close()
        self._database.close()

"""Commits to a log, in two halves: what is checked and submitted, and what waits for the disk."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from postbus.errors import OutcomeUnknown, StoreUnavailable
from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.log import index_file
from postbus.store.log.commit_log import CommitLog
from postbus.store.log.failures import LogFailures
from postbus.store.log.locations import Fragment, Locations
from postbus.store.log.reading import JournalReading
from postbus.store.log.retention import Retention
from postbus.store.log.start import NEWEST_CHECKPOINT
from postbus.store.ports.journal import OFFSET_MAX, Part
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.index import SqliteIndex


class Begun(NamedTuple):
    """A commit under way."""

    sequence: int
    """Of its frame; durable from there on."""
    fragments: frozenset[int]
    """Those that passed."""
    owed: tuple[Part, ...]
    """Parts with a checkpoint that is yet to be written."""
    size: int
    """Bytes of its records; 0 when it has none."""


class Commits:
    """Leases and heads are checked in memory: nobody else can write the folder."""

    def __init__(
        self,
        database: Database,
        index: SqliteIndex,
        locations: Locations,
        log: CommitLog,
        journal: JournalReading,
        retention: Retention,
        failures: LogFailures,
        newest: Instant,
    ) -> None:
        self._database = database
        self._index = index
        self._locations = locations
        self._log = log
        self._journal = journal
        self._retention = retention
        self._failures = failures
        self.newest = newest
        """The latest time of any commit."""

    def begin(self, parts: Sequence[Part]) -> Begun:
        """The first half of a commit: check the parts and submit their frame. Raises as `commit`
        does for a part that cannot be written, and then nothing was submitted."""
        self._database.refuse()
        passed: set[int] = set()
        fresh: list[tuple[Part, Fragment]] = []
        owed: list[Part] = []
        with self._locations.lock:
            for part in parts:
                number = part.lease.fragment
                fragment = self._locations.fragments.get(number)
                if fragment is None or fragment.epoch != part.lease.epoch:
                    continue
                if number in passed:
                    raise ValueError(f"fragment {number} has two parts in one commit")
                passed.add(number)
                if self._is_stored(part, fragment):
                    checkpoint = part.checkpoint
                    if checkpoint is not None and checkpoint.offset > fragment.begun_checkpoint:
                        owed.append(part)  # it found no room the first time
                    continue
                rules.check(part, fragment.begun_head, fragment.begun_checkpoint)
                if fragment.begun_head + part.count > OFFSET_MAX:
                    raise ValueError(f"the journal of fragment {number} has no offset left")
                fresh.append((part, fragment))
            with_records = [part for part, _ in fresh if part.batch]
            if with_records:
                self._failures.making_room(partial(self._log.append, with_records))
            for part, fragment in fresh:
                fragment.begun_head += part.count
                if part.checkpoint is not None:
                    fragment.begun_checkpoint = part.checkpoint.offset
                    owed.append(part)
            # A repeated part may be under way still: it waits for all that was submitted.
            sequence = self._log.next_sequence - 1
            self.newest = max(self.newest, *(part.at for part, _ in fresh), 0)
        size = sum(len(part.batch) for part in with_records)
        return Begun(sequence, frozenset(passed), tuple(owed), size)

    def finish(self, begun: Begun) -> None:
        """The second half: wait until the frame is durable, and write the checkpoints. Commits are
        finished in the order in which they began."""
        self.wait(begun.sequence)
        if begun.owed:
            try:
                self._database.with_reserve(partial(self._write_checkpoints, begun.owed))
            except StoreUnavailable as error:
                self._take_back(begun.owed)
                if not begun.size:
                    raise
                raise OutcomeUnknown(
                    f"{self._database.name} has the records, but not the checkpoint: {error}"
                ) from error

    def _write_checkpoints(self, parts: Sequence[Part]) -> None:
        released: list[list[int]] = []
        with index_file.unsynced(self._database):
            for part in parts:
                assert part.checkpoint is not None
                number = part.lease.fragment
                released.append(self._retention.released_by(number, part.checkpoint))
                self._index.apply(number, part.lease.epoch, part.checkpoint)
            # Only batches below a checkpoint are trimmed, so this is not older.
            self._database.set_meta(NEWEST_CHECKPOINT, self.newest)
        for part, bases in zip(parts, released, strict=True):
            assert part.checkpoint is not None
            self._locations.fragments[part.lease.fragment].checkpoint = part.checkpoint.offset
            self._retention.checkpoint_written(part.lease.fragment, bases)

    def _take_back(self, parts: Sequence[Part]) -> None:
        for part in parts:
            fragment = self._locations.fragments[part.lease.fragment]
            fragment.begun_checkpoint = fragment.checkpoint

    def _is_stored(self, part: Part, fragment: Fragment) -> bool:
        """Is this the repetition of a commit whose answer got lost?"""
        if not part.batch or part.base >= fragment.begun_head:
            return False
        number = part.lease.fragment
        if self._log.is_under_way(number, part.base):
            self.settle()
        with self._failures.reading():
            return self._journal.read_batch(number, part.base) == part.batch

    def wait(self, sequence: int) -> None:
        """Until a frame is durable. OutcomeUnknown."""
        with self._failures.waiting():
            self._log.wait(sequence)

    def settle(self) -> None:
        """Wait for the commits under way, before a call that depends on where fragments stand."""
        self._database.refuse()
        self.wait(self._log.next_sequence - 1)

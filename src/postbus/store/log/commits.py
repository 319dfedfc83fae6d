"""Commits to a log, in two halves: what is checked and submitted, and what waits for the disk."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from postbus.errors import OutcomeUnknown, StoreUnavailable
from postbus.model.index_rows import Checkpoint
from postbus.model.times import Instant
from postbus.store import checks as rules
from postbus.store.log.commit_log import CommitLog
from postbus.store.log.failures import LogFailures
from postbus.store.log.locations import Fragment, Locations
from postbus.store.log.reading import JournalReading
from postbus.store.log.retention import Retention
from postbus.store.log.start import NEWEST_CHECKPOINT
from postbus.store.ports.journal import OFFSET_MAX, Part
from postbus.store.sqlite.database import Database
from postbus.store.sqlite.index import SqliteIndex

COMMIT_BYTES_MAX: Final = 3 << 30
"""A place in a segment is a number of 32 bits."""


class OwedCheckpoint(NamedTuple):
    """A checkpoint that is to be written when the records of its commit are durable."""

    part: Part
    checkpoint: Checkpoint
    refusals: int
    """Of its fragment, when the commit began."""


class Begun(NamedTuple):
    """A commit under way."""

    sequence: int
    """Of its frame; durable from there on."""
    fragments: frozenset[int]
    """Those that passed."""
    owed: tuple[OwedCheckpoint, ...]
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
        again: list[tuple[Part, Fragment]] = []
        owed: list[OwedCheckpoint] = []
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
                    if part.checkpoint is not None and fragment.unwritten == part.base:
                        again.append((part, fragment))
                    continue
                rules.check(part, fragment.begun_head, fragment.begun_checkpoint)
                if fragment.begun_head + part.count > OFFSET_MAX:
                    raise ValueError(f"the journal of fragment {number} has no offset left")
                fresh.append((part, fragment))
            with_records = [part for part, _ in fresh if part.batch]
            size = sum(len(part.batch) for part in with_records)
            if size > COMMIT_BYTES_MAX:
                raise ValueError(f"a commit of {size} bytes is too large")
            if with_records:
                self._failures.making_room(partial(self._log.append, with_records))
            for part, fragment in fresh:
                fragment.begun_head += part.count
            for part, fragment in fresh + again:
                if part.checkpoint is not None:
                    fragment.begun_checkpoint = part.checkpoint.offset
                    owed.append(OwedCheckpoint(part, part.checkpoint, fragment.refusals))
            # A repeated part may be under way still: it waits for all that was submitted.
            sequence = self._log.next_sequence - 1
            self.newest = max(self.newest, *(part.at for part, _ in fresh), 0)
        return Begun(sequence, frozenset(passed), tuple(owed), size)

    def finish(self, begun: Begun) -> None:
        """The second half: wait until the frame is durable, and write the checkpoints. Commits are
        finished in the order in which they began."""
        self.wait(begun.sequence)
        # Whoever took a fragment over since replays from the checkpoint that was there.
        owed = [each for each in begun.owed if self._is_in_force(each.part)]
        if not owed:
            return
        try:
            self._check_base(owed)
            # Without records it is all there is of the commit, and of its time.
            self._database.with_reserve(
                partial(self._write_checkpoints, owed, synced=not begun.size)
            )
        except StoreUnavailable as error:
            self._take_back(owed)
            if not begun.size:
                raise
            raise OutcomeUnknown(
                f"{self._database.name} has the records, but not the checkpoint: {error}"
            ) from error

    def _is_in_force(self, part: Part) -> bool:
        fragment = self._locations.fragments.get(part.lease.fragment)
        return fragment is not None and fragment.epoch == part.lease.epoch

    def _check_base(self, owed: Sequence[OwedCheckpoint]) -> None:
        """A checkpoint goes on from the one before it, which may have been refused meanwhile."""
        for part, _, refusals in owed:
            if self._locations.fragments[part.lease.fragment].refusals != refusals:
                raise StoreUnavailable("an earlier checkpoint was refused")

    def _write_checkpoints(self, owed: Sequence[OwedCheckpoint], synced: bool) -> None:
        released: list[list[int]] = []
        with self._database.transaction(synced=synced):
            for part, checkpoint, _ in owed:
                number = part.lease.fragment
                released.append(self._retention.released_by(number, checkpoint))
                self._index.apply(number, part.lease.epoch, checkpoint)
            # Only batches below a checkpoint are trimmed, so this is not older.
            self._database.set_meta(NEWEST_CHECKPOINT, self.newest)
        for (part, checkpoint, _), bases in zip(owed, released, strict=True):
            fragment = self._locations.fragments[part.lease.fragment]
            fragment.checkpoint = checkpoint.offset
            fragment.unwritten = None
            self._retention.checkpoint_written(part.lease.fragment, bases)

    def _take_back(self, owed: Sequence[OwedCheckpoint]) -> None:
        with self._locations.lock:
            for part, _, _ in owed:
                fragment = self._locations.fragments[part.lease.fragment]
                fragment.begun_checkpoint = fragment.checkpoint
                fragment.refusals += 1
                if part.batch:
                    fragment.unwritten = part.base

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

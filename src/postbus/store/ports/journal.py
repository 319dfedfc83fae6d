"""The port of the journals: for each fragment, the ordered record batches that are the truth.

A journal orders and keeps; it never interprets. Locks, expiry, sessions and duplicates are decided
in `postbus.broker`, so a backend stays a few hundred lines.

A commit brings records, and from time to time a checkpoint of the index (`ports.index`). The
contract leaves the backend two ways to write them:

- one transaction for both, as SQLite and PostgreSQL have it;
- records first, in a log of its own, and the checkpoint behind them at leisure.

In both cases the index is never ahead of the journal, and a crash costs replay at the most.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from postbus.model.index_rows import Checkpoint, Row
from postbus.model.times import Instant
from postbus.store.batch import StoredBatch
from postbus.store.ports.journal_reader import JournalReader

OFFSET_MAX: Final = (1 << 40) - 1
"""The last offset of a journal."""
FRAGMENT_MAX: Final = (1 << 23) - 1
"""The last id of a fragment: fragment and offset together are a key of 63 bits."""


class Lease(NamedTuple):
    """The right to write a fragment, until somebody acquires it with a higher epoch."""

    fragment: int
    epoch: int
    head: int
    """Offset of the next record to be written."""
    checkpoint: int
    """Offset the index stands at; replay starts here."""
    state: bytes
    """Engine state as of that checkpoint; empty for a new fragment."""


class FragmentPosition(NamedTuple):
    """The position of a fragment; the fields are those of a lease."""

    head: int
    checkpoint: int
    state: bytes


class Part(NamedTuple):
    """The part of one fragment in a commit."""

    lease: Lease
    base: int
    """Offset of the first record in `batch`."""
    count: int  # type: ignore[assignment]  # hides tuple.count, of no use here
    """Records in the batch."""
    at: int
    """Time of the commit, Instant."""
    batch: bytes
    """The record batch, as postbus.store.batch packs it; empty when only a checkpoint is due."""
    checkpoint: Checkpoint | None


class Trimmed(NamedTuple):
    batches: int
    bytes: int
    more: bool
    """The slice ended before the work did: call again."""


class Journal(Protocol):
    """The journals of all fragments in one store. Each call does all of its work or none.

    A call raises StoreUnavailable when it did nothing and a retry may help, and StoreFailed when
    the store can no longer be trusted. A store that has failed refuses every later call.
    """

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        """Take the fragment over, and create it when it is new. Earlier leases are fenced.

        The new epoch is greater than the stored epoch and than `seen_epoch`, and durable. If there
        is no room to write it and no other process can have the store, it is the stored epoch.
        """

    def position(self, fragment: int) -> FragmentPosition | None:
        """Where the fragment stands, without taking it over; None when it does not exist."""

    def release(self, lease: Lease) -> None:
        """Give the fragment up in order (clean stop). A lease that is over is ignored."""

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        """Write the parts; return the fragments whose records survive a crash from now on.

        A fragment that is left out was fenced: nothing of its part was written. The records of all
        parts that pass are durable together or not at all.

        The checkpoint of a part that passed is seen by the next call of the index. It may become
        durable later than its records, but never earlier. After a crash `position` may show an
        older checkpoint: all records from there on are still in the journal.

        Writing the same (epoch, base) again with the same bytes succeeds without a change, so a
        retry after a lost answer is safe.

        Raises StoreFull when there is no room and nothing is left of the reserve; OutcomeUnknown
        when the records may have been written and only a new start tells (failed sync); ValueError
        when a part does not follow on the head, or its checkpoint goes back or past its records.
        """

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        """Batches from the batch that holds offset `start` on. At least one if there is any, then
        as many as fit in `bytes_max`."""

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        """One whole batch; None when it was trimmed."""

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        """Part of one batch, without reading the rest of it; None when the batch was trimmed.
        ValueError when the slice is not within the batch."""

    def tail(self, fragment: int) -> int:
        """Offset of the oldest batch still kept within retention (head when there is none)."""

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        """Drop batches that are older than `older_than` (Instant), or beyond the newest `bytes_max`
        bytes. A call drops up to `limit` batches.

        A batch stays while a row of the index has its body there. It also stays while any of its
        records is at or above the checkpoint that a crash would leave. A longer retention brings
        nothing back.
        """

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        """Index rows whose bodies keep alive old batches (base < `below`) that are mostly dead:
        live bytes <= `live_share_max` of the batch. Copy-forward writes these bodies again.

        A search is bounded and goes on where the last one stopped, so an empty answer says nothing
        about the rest.
        """

    def drop(self, fragment: int, limit: int) -> bool:
        """Remove the fragment of a deleted entity, journal and index, `limit` rows a call. True
        when nothing is left. The first call fences every lease."""

    def newest(self) -> Instant:
        """The latest time of any commit so far, 0 before the first. It is known after trimming
        too; that of a dropped fragment may be forgotten. The clock of a new start goes on there."""

    def journal_reader(self) -> JournalReader:
        """A reader for the change feed; it is closed with the store at the latest."""

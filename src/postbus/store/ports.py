"""The durable port: journals and indexes of the fragments kept in one place.

A store orders and keeps; it never interprets. Locks, expiry, sessions and duplicates are decided
in postbus.broker, so each backend stays a few hundred lines and all of them pass
tests/contract/test_store.py unchanged.

Calls are synchronous: each store has one thread of its own (`postbus.runtime.store_thread`), and
whatever is called there happens in order.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from postbus.model.rows import Checkpoint, Row, RowKey, SeenIds
from postbus.model.times import Instant

__all__ = [
    "BatchOutline",
    "Checkpoint",
    "Extent",
    "FragmentPosition",
    "JournalReader",
    "JournalView",
    "Lease",
    "MessageStore",
    "Part",
    "Row",
    "RowKey",
    "SeenIds",
    "StoredBatch",
    "Trimmed",
]


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
    """Where a fragment stands; the fields are those of a lease."""

    head: int
    checkpoint: int
    state: bytes


class Part(NamedTuple):
    """What one fragment adds in a commit."""

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


RAW_MAX: Final = 768 * 1024
"""Bytes that are read at once to be handed on: the broker may hold two such slices for each of 64
slow readers. A batch with more is read in parts, and SQLite goes through it from the start for each
of them, which shows where its pages lie scattered: nine times the work for 24 MB. A turn writes no
more than 4 MB, unless it is one message."""


class StoredBatch(NamedTuple):
    base: int
    data: bytes


class Trimmed(NamedTuple):
    batches: int
    bytes: int
    more: bool
    """The slice ended before the work did: call again."""


class Extent(NamedTuple):
    """What the change feed of a fragment has: all that is within retention. Older batches that a
    live body holds in place are no part of it."""

    first: int
    """The oldest offset that can be read."""
    next: int
    """Offset after the newest durable record."""
    first_at: Instant | None
    """When the oldest batch was committed; None where there is no batch."""
    last_at: Instant | None
    size: int
    """Bytes of all of them."""


class BatchOutline(NamedTuple):
    """A batch without its bytes."""

    base: int
    count: int  # type: ignore[assignment]  # hides tuple.count, of no use here
    at: Instant
    size: int


class JournalView(NamedTuple):
    """A journal at one moment, and what there is to read in it from some offset on."""

    extent: Extent
    batches: list[BatchOutline]


class JournalReader(Protocol):
    """Reads journals beside whoever writes them, from a thread of its own where the store has one
    for it: no commit waits for a reader, and no call holds anything back when it is over.

    Only what is durable is seen.
    """

    own_thread: bool
    """May it be called from another thread than its store?"""

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        """The batches from the one holding offset `start` on: at least one if there is any, then
        as many as fit in `bytes_max`, `limit` at the most; none where `start` is not within the
        extent or `bytes_max` is 0."""

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        """The batches whose bases are from `first` to `last`; those of them that are still kept."""

    def read_raw(self, fragment: int, first: int, last: int) -> tuple[int, bytes | memoryview]:
        """How many batches that are, and their bytes one behind the other. Their checksums are left
        to whoever decodes them."""

    def read_part(
        self, fragment: int, base: int, position: int, size: int
    ) -> bytes | memoryview | None:
        """So many bytes of one batch, which is too large to be read at once, from a position in it
        on; None when it is not kept any more. ValueError where it has not so many."""

    def find(self, fragment: int, at: Instant) -> int:
        """The first offset of the extent that was committed at this time or later; its end where
        there is none."""

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        """When the record at this offset was committed, or the oldest one that is left behind it;
        None where there is none."""

    def close(self) -> None: ...


class MessageStore(Protocol):
    """Journals and indexes of many fragments. All or nothing for each call."""

    @property
    def has_room(self) -> bool:
        """Is there room for new messages? Where not, only a reserve is left: it is for what makes
        room, such as settlements, checkpoints, trims and drops. For any thread."""

    @property
    def is_spent(self) -> bool:
        """Is nothing left of the reserve either? Then only what somebody asks for is tried: an
        engine whose write fails has to be loaded again. For any thread."""

    def look_for_room(self) -> bool:
        """Look how much room there is, and give up of the reserve or fill it. Returns has_room."""

    def acquire(self, fragment: int, broker: str, seen_epoch: int) -> Lease:
        """Take the fragment over (creating it when new): earlier leases are fenced.

        The new epoch is greater than the stored one and than `seen_epoch`. Where there is no room
        to write it, and nobody else can have the store, it is the stored one.
        """

    def standing(self, fragment: int) -> FragmentPosition | None:
        """Where the fragment stands, without taking it over; None when there is none."""

    def commit(self, parts: Sequence[Part]) -> frozenset[int]:
        """Return the fragments whose part survives a crash; one left out was fenced.

        All parts that pass are written in one transaction. Writing the same (epoch, base) again
        with the same bytes succeeds without a change, so a retry after a lost answer is safe.
        Raises StoreUnavailable when nothing was written and a retry may help, StoreFull where there
        is no room for it and nothing is left of the reserve;
        OutcomeUnknown when it may have been written, and a new start would tell (failed sync);
        StoreFailed when the store can no longer be trusted (after a failed sync, corruption): it
        refuses everything from then on; ValueError when a part does not follow on what is stored.
        """

    def load_lane(
        self, fragment: int, subqueue: int, lane: int, start: int, limit: int
    ) -> list[Row]:
        """Rows of one lane with number >= start, in order of number."""

    def load_due(
        self, fragment: int, subqueue: int, lane: int, until: int, limit: int
    ) -> list[Row]:
        """Rows of one lane with wake_at <= until, in order of (wake_at, number)."""

    def load_group(
        self, fragment: int, subqueue: int, lane: int, group: bytes, start: int, limit: int
    ) -> list[Row]:
        """Rows of one group in one lane with number >= start, in order of number."""

    def load_groups(
        self, fragment: int, subqueue: int, lane: int, after: bytes | None, limit: int
    ) -> list[bytes]:
        """The groups that have rows in one lane, each once, in order of their bytes: those behind
        `after`, or from the first one on (None). Takes as long for a group of a million rows as
        for one of a single row."""

    def next_due(self, fragment: int, subqueue: int, lane: int, after: int) -> int | None:
        """The earliest wake_at > after in the lane."""

    def load_rows(self, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
        """The rows that exist among `keys`, in the order asked."""

    def load_pinned(
        self, fragment: int, below: int, live_share_max: float, limit: int
    ) -> list[Row]:
        """Rows whose bodies keep alive old batches (base < below) that are mostly dead:
        live bytes <= live_share_max of the batch. For copy-forward.

        A search is bounded and goes on where the last one stopped, so an empty answer says nothing
        about the rest."""

    def load_seen(
        self, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        """When each of these ids was last seen, in these parts; those that were never are not
        in it."""

    def load_seen_digests(self, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
        """The ids of a part whose digests are greater than `after`, in order."""

    def drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        """Remove the ids of all parts below one, `limit` a call; True when none is left."""

    def read(self, fragment: int, start: int, bytes_max: int) -> list[StoredBatch]:
        """Batches from the one holding offset `start` on; at least one if there is any, then as
        many as fit in `bytes_max`."""

    def read_batch(self, fragment: int, base: int) -> bytes | None:
        """One whole batch, None when trimmed."""

    def read_slice(self, fragment: int, base: int, position: int, length: int) -> bytes | None:
        """Part of one batch without reading the rest of it."""

    def tail(self, fragment: int) -> int:
        """Offset of the oldest batch still kept within retention (head when there is none)."""

    def trim(self, fragment: int, older_than: int, bytes_max: int, limit: int) -> Trimmed:
        """Drop batches below the checkpoint that hold no live body and are older than
        `older_than` (Instant) or beyond the newest `bytes_max` bytes; `limit` batches a call."""

    def drop(self, fragment: int, limit: int) -> bool:
        """Remove a deleted entity's fragment, `limit` rows a call; True when nothing is left."""

    def newest(self) -> Instant:
        """The latest time of any commit so far, 0 before the first. Known after trimming too; of
        a dropped fragment it may be forgotten. For the clock of a new start."""

    def release(self, lease: Lease) -> None:
        """Give the fragment up in order (clean stop)."""

    def probe(self, now: int) -> None:
        """Write and read back one small durable row, as health asks; raises like commit."""

    def journal_reader(self) -> JournalReader:
        """A reader of the journals beside this store; it is closed with the store at the latest."""

    def backup(self, target: str) -> None:
        """Copy the store, while in use, into a file that opens as a store of its own."""

    def close(self) -> None: ...

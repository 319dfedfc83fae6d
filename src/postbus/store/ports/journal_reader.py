"""The port of the change feed: journals, read beside the thread that writes them."""

from typing import Final, NamedTuple, Protocol

from postbus.model.times import Instant
from postbus.store.batch import StoredBatch

RAW_MAX: Final = 768 * 1024
"""Bytes that are read at once to be handed on: the broker may hold two such slices for each of 64
slow readers. A larger batch is read in parts. SQLite goes through it from the start for each part,
which shows when its pages lie scattered: nine times the work for 24 MB. A turn writes no more than
4 MB, unless it is one message."""


class Extent(NamedTuple):
    """The change feed of a fragment: all batches within retention. Older batches that a live body
    keeps in place are no part of it."""

    first: int
    """The oldest offset that can be read."""
    next: int
    """Offset after the newest durable record."""
    first_at: Instant | None
    """When the oldest batch was committed; None when there is no batch."""
    last_at: Instant | None
    size: int
    """Bytes of all these batches."""


class BatchOutline(NamedTuple):
    """A batch without its bytes."""

    base: int
    count: int  # type: ignore[assignment]  # hides tuple.count, of no use here
    at: Instant
    size: int


class JournalView(NamedTuple):
    """A journal at one moment, and the batches to read in it from an offset on."""

    extent: Extent
    batches: list[BatchOutline]


class JournalReader(Protocol):
    """Reads journals while the store writes them, from a thread of its own if the store allows it.

    No commit waits for a reader, and no call holds anything back when it is over. A reader sees
    durable records only.
    """

    own_thread: bool
    """May it be called from another thread than its store?"""

    def look(self, fragment: int, start: int, bytes_max: int, limit: int) -> JournalView:
        """The extent, and the batches from the batch that holds offset `start` on. At least one
        batch if there is any, then as many as fit in `bytes_max`, at most `limit`. No batches when
        `start` is not within the extent, or when `bytes_max` is 0."""

    def read(self, fragment: int, first: int, last: int) -> list[StoredBatch]:
        """The batches with bases from `first` to `last` that are still kept."""

    def read_raw(self, fragment: int, first: int, last: int) -> tuple[int, bytes | memoryview]:
        """The number of these batches, and their bytes in order. The reader does not check their
        checksums: the client that decodes them does."""

    def read_part(
        self, fragment: int, base: int, position: int, size: int
    ) -> bytes | memoryview | None:
        """`size` bytes from a position on, of a batch that is too large to be read at once. None
        when the batch was trimmed. ValueError when the bytes are not within the batch."""

    def find(self, fragment: int, at: Instant) -> int:
        """The first offset of the extent that was committed at this time or later. The end of the
        extent when there is none."""

    def time_of(self, fragment: int, offset: int) -> Instant | None:
        """When the record at this offset was committed, or the oldest kept record behind it; None
        when there is none."""

    def close(self) -> None: ...

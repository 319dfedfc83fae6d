"""How a message lies in a store's index: the words that engine and store share."""

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One message as the index keeps it. Only the engine knows what is in `data`."""

    subqueue: int
    lane: int
    """The state of the message, as a number; it is in one lane of one subqueue at a time."""
    number: int
    """Sequence number; unique in a lane of a subqueue."""
    wake_at: int | None
    """When the engine wants to see this row again by itself (due or expired); None for never."""
    base: int
    """Offset of the record batch that holds the body."""
    position: int
    """Where the body starts inside that batch's bytes."""
    length: int
    data: bytes
    group: bytes | None = None
    """The message's session, as bytes of UTF-8; None without one (the empty id is one)."""


class RowKey(NamedTuple):
    subqueue: int
    lane: int
    number: int


class SeenIds(NamedTuple):
    """Ids that an entity has seen, by their digests: they go into one part of its history."""

    part: int
    digests: Sequence[bytes]
    times: Sequence[int]
    """When each was seen, Instant."""


class Checkpoint(NamedTuple):
    """Brings the index from the last checkpoint's offset to `offset`.

    Rows and removals are the net change; `state` is the engine's own summary (counts, next
    number), returned verbatim when the fragment is acquired.
    """

    offset: int
    """Every record with a lower offset is reflected in index and state."""
    rows: Sequence[Row]
    removed: Sequence[RowKey]
    state: bytes
    seen: SeenIds | None = None
    """Ids seen since the last one; those that are there already get the new time."""

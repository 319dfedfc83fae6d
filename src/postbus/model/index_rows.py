"""The form of a message in a store's index: the types that engine and store share."""

from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One message in the index. Only the engine reads `data`."""

    subqueue: int
    lane: int
    """The state of the message, as a number; it is in one lane of one subqueue at a time."""
    number: int
    """Sequence number; unique in a lane of a subqueue."""
    wake_at: int | None
    """When the engine must see this row again by itself (due or expired); None for never."""
    base: int
    """Offset of the record batch that holds the body."""
    position: int
    """Where the body starts inside that batch's bytes."""
    length: int
    data: bytes
    group: bytes | None = None
    """The message's session, as bytes of UTF-8; None without a session (the empty id is a
    session)."""


class RowKey(NamedTuple):
    subqueue: int
    lane: int
    number: int


class SeenIds(NamedTuple):
    """Digests of message ids that an entity has seen, for one part of its history."""

    part: int
    digests: Sequence[bytes]
    times: Sequence[int]
    """When each was seen, Instant."""


class Checkpoint(NamedTuple):
    """Brings the index from the last checkpoint's offset to `offset`.

    Rows and removals are the net change. `state` is the engine's own summary (counts, next number).
    It comes back unchanged when the fragment is acquired.
    """

    offset: int
    """Every record with a lower offset is reflected in index and state."""
    rows: Sequence[Row]
    removed: Sequence[RowKey]
    state: bytes
    seen: SeenIds | None = None
    """Ids seen since the last checkpoint; an id that is there already gets the new time."""

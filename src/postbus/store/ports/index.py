"""The port of the index: the messages of each fragment as of its last checkpoint.

The index is derived from the journal and never ahead of it. It changes with the checkpoints that an
engine hands to `Journal.commit`, and `Journal.drop` removes it. A backend may make a checkpoint
durable later than its commit, but every call here sees the checkpoints of all commits before it.

A row is found by its key (subqueue, lane, number), by its group (a session's id), and by the time
when it wants to be looked at (`wake_at`). Every call takes time with the rows it returns, however
many rows the lane has. Lists are pages: the caller asks on behind the last row.
"""

from collections.abc import Sequence
from typing import Protocol

from postbus.model.index_rows import Row, RowKey
from postbus.model.times import Instant


class Index(Protocol):
    """The indexes of all fragments in one store. The index of an unknown fragment is empty."""

    def load_lane(
        self, fragment: int, subqueue: int, lane: int, start: int, limit: int
    ) -> list[Row]:
        """Rows of one lane with number >= start, in order of number."""

    def load_due(
        self, fragment: int, subqueue: int, lane: int, until: int, limit: int
    ) -> list[Row]:
        """Rows of one lane with wake_at <= until, in order of (wake_at, number)."""

    def next_due(self, fragment: int, subqueue: int, lane: int, after: int) -> int | None:
        """The earliest wake_at > after in the lane."""

    def load_group(
        self, fragment: int, subqueue: int, lane: int, group: bytes, start: int, limit: int
    ) -> list[Row]:
        """Rows of one group in one lane with number >= start, in order of number."""

    def load_groups(
        self, fragment: int, subqueue: int, lane: int, after: bytes | None, limit: int
    ) -> list[bytes]:
        """The groups that have rows in one lane, each once, in order of their bytes, behind `after`
        or from the first on (None). A group of a million rows takes as long as a single row."""

    def load_rows(self, fragment: int, keys: Sequence[RowKey]) -> list[Row]:
        """The rows that exist among `keys`, in the order asked."""

    def load_seen(
        self, fragment: int, parts: Sequence[int], digests: Sequence[bytes]
    ) -> dict[bytes, Instant]:
        """When each of these ids was last seen, in these parts of the duplicate history. Ids that
        were never seen are left out."""

    def load_seen_digests(self, fragment: int, part: int, after: bytes, limit: int) -> list[bytes]:
        """The ids of a part whose digests are greater than `after`, in order."""

    def drop_seen(self, fragment: int, below: int, limit: int) -> bool:
        """Remove the ids of all parts below `below`, `limit` a call; True when none is left.

        The engine has forgotten these parts and asks for none of their ids again. So a crash may
        take the removal back: it is repeated after the next start.
        """

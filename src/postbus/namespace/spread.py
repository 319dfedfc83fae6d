"""The fragments of a partitioned entity as senders see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from postbus.broker.message import Message
from postbus.errors import (
    InternalError,
    InvalidOperation,
    QuotaExceeded,
    ServiceBusError,
    StoreFailed,
    StoreUnavailable,
)
from postbus.model.partitioning import fragment_of, key_of
from postbus.runtime.loaded_fragment import LoadedFragment

DISTINCT_KEYS: Final = (
    "Batching brokered messages with distinct SessionId or PartitionKey is not supported for an "
    "entity with partitioning enabled."
)
# Azure's own words, with both of its spaces (semantics B §6).
DISTINCT_IDS: Final = (
    "Batching brokered messages with distinct SessionId, PartitionKey, or MessageId  is not "
    "supported for an entity with partitioning and duplicate detection enabled."
)


class Spread:
    """Chooses the fragment of each send."""

    __slots__ = ("_finds_duplicates", "_fragments", "_turn")

    def __init__(self, fragments: Sequence[LoadedFragment], finds_duplicates: bool) -> None:
        self._fragments = tuple(fragments)
        self._finds_duplicates = finds_duplicates
        self._turn = 0

    def key_of(self, messages: Sequence[Message]) -> str | None:
        """The key of messages that are stored together; None: the broker chooses the fragment.

        Raises InvalidOperation where they do not have the same one (semantics B §9).
        """
        finds_duplicates = self._finds_duplicates
        first = messages[0]
        key = key_of(first.session_id, first.partition_key, first.message_id, finds_duplicates)
        for each in messages[1:]:
            other = key_of(each.session_id, each.partition_key, each.message_id, finds_duplicates)
            if other != key:
                raise InvalidOperation(DISTINCT_IDS if finds_duplicates else DISTINCT_KEYS)
        return key

    def next_turn(self) -> int:
        """Count one further, over all fragments in turn."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._fragments)
        return turn

    def choose(self, key: str | None) -> LoadedFragment:
        """The fragment of a send: by its key, or in turn, passing over fragments that are full."""
        fragments = self._fragments
        if key is not None:
            return fragments[fragment_of(key)]
        for _ in fragments:
            fragment = fragments[self.next_turn()]
            if not _is_full(fragment):
                return fragment
        return fragments[self.next_turn()]  # all are full: its engine says so

    def choose_again(
        self, refused: LoadedFragment, error: ServiceBusError, tried: int
    ) -> LoadedFragment | None:
        """Another fragment for a send without a key that was refused; None where it stays refused.

        `tried` has a bit for each fragment that has refused the send. A send whose outcome is not
        known is never tried elsewhere: it may be stored already.
        """
        if isinstance(error, StoreFailed):
            return None
        store_is_out = isinstance(error, StoreUnavailable)
        if not store_is_out and not isinstance(error, (QuotaExceeded, InternalError)):
            return None
        count = len(self._fragments)
        for n in range(1, count):
            fragment = self._fragments[(refused.index + n) % count]
            if tried >> fragment.index & 1 or (store_is_out and fragment.store == refused.store):
                continue
            return fragment
        return None


def _is_full(fragment: LoadedFragment) -> bool:
    engine = fragment.engine
    return engine is not None and engine.ledger.size_bytes >= fragment.policy.size_bytes_max

"""Partitioned entities: how many fragments they have, and which of them a key chooses.

The hash is fixed for ever: stored messages lie where it put them. It is in every language's
library, so that a client can compute the fragment of a key too (docs/partitioning.md).
"""

from typing import Final
from zlib import crc32

FRAGMENTS: Final = 16
"""Fragments of a partitioned queue or topic (R-PART-02)."""


def key_of(
    session_id: str | None, partition_key: str | None, message_id: str, finds_duplicates: bool
) -> str | None:
    """The key that chooses the fragment of a message (R-PART-11); None: the broker chooses.

    The empty text is a session id, and so a key. As a partition key it is none.
    """
    if session_id is not None:
        return session_id
    if partition_key:
        return partition_key
    return message_id if finds_duplicates else None


def fragment_of(key: str) -> int:
    """The index of the fragment of a key: CRC-32 (IEEE) of the UTF-8 text, modulo 16.

    A lone surrogate has no UTF-8 form. It is encoded all the same: a client may have sent it.
    """
    return crc32(key.encode("utf-8", "surrogatepass")) % FRAGMENTS

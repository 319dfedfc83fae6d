"""Which fragment of a partitioned entity holds a message. The answer must never change."""

from typing import Final
from zlib import crc32

FRAGMENTS: Final = 16
"""Fragments of a partitioned entity (R-PART-02)."""


def key_of(
    session_id: str | None, partition_key: str | None, message_id: str, finds_duplicates: bool
) -> str | None:
    """The key of a message (R-PART-11); None if any fragment may hold it.

    The empty text is a session id, but no partition key and no message id.
    """
    if session_id is not None:
        return session_id
    return partition_key or (message_id if finds_duplicates else "") or None


def fragment_of(key: str) -> int:
    """The index of the fragment for all messages with this key (R-PART-13): the CRC-32 of its
    UTF-8 bytes, modulo 16. Every language has this function."""
    return crc32(key.encode()) % FRAGMENTS

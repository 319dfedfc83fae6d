"""Ids for rows that have none: the same when their task or their micro-batch is run again.

An id is made from the write, the partition, and the row itself. The position of a row is no part of
it: after a shuffle rows may come in another order. A row that took the id of another row would be
dropped as its duplicate. Equal rows are told apart by counting them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

_SIZE: Final = 16
_COUNT_SIZE: Final = 8


class RowIds:
    """Gives out the ids of a task."""

    def __init__(self, write: str, partition: int) -> None:
        """`write`: the streaming query and its micro-batch, or a single write of a batch."""
        self._hash = blake2b(f"{write}/{partition}/".encode(), digest_size=_SIZE)
        self._counted = Counted()

    def of(self, rows: Sequence[bytes]) -> list[str]:
        """The ids of the next rows, each an encoded message without an id."""
        digests = [self._digest(row) for row in rows]
        keys = np.frombuffer(b"".join(digests), np.uint64)[::2]
        return [
            str(UUID(bytes=self._again(digest, count) if count else digest))
            for digest, count in zip(digests, self._counted.before(keys).tolist(), strict=True)
        ]

    def _digest(self, row: bytes) -> bytes:
        made = self._hash.copy()
        made.update(row)
        return made.digest()

    def _again(self, digest: bytes, count: int) -> bytes:
        return self._digest(digest + count.to_bytes(_COUNT_SIZE, "big"))


class Counted:
    """How often each of many numbers was there before, with 8 bytes for each: a task may have many
    millions of rows."""

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []
        """Sorted, each more than twice as long as the next: looking through them stays short."""

    def before(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """For each key, how many equal keys came before it."""
        counts = np.zeros(len(keys), np.int64)
        for run in self._runs:
            counts += np.searchsorted(run, keys, "right") - np.searchsorted(run, keys, "left")
        order = np.argsort(keys, kind="stable")
        run = keys[order]
        counts[order] += np.arange(len(run)) - np.searchsorted(run, run, "left")
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)))
        self._runs.append(run)
        return counts

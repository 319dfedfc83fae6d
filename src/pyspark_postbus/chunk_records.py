"""The records in a chunk of the feed: the position of each, and its fixed part.

Python only finds where each record begins, which can be compiled (docs/compiling.md). Nothing else
is done for each record in Python.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from postbus.broker.record_kinds import MEANINGS
from postbus.broker.subqueue_numbers import KIND_MASK, OWNER_BITS
from postbus.store import batch
from pyspark_postbus.spans import Buffer, Flags, Positions, Spans

# `postbus.broker.records` and `postbus.broker.message` have the same as formats of `struct`.
RECORD: Final = np.dtype(
    [
        *(("kind", "u1"), ("flags", "u1"), ("lane", "u1"), ("from_lane", "u1")),
        *(("subqueue", "<u4"), ("from_subqueue", "<u4")),
        *(("number", "<u8"), ("from_number", "<u8"), ("delivered_at", "<i8"), ("base", "<i8")),
        *(("position", "<u4"), ("length", "<u4")),
        *(("enqueued_at", "<i8"), ("ttl", "<i8"), ("delivery_count", "<u4")),
        *(("enqueue_number", "<u8"), ("header_size", "<u4")),
        *(("id_length", "<u2"), ("session_length", "<u2"), ("extras_length", "<u4")),
    ]
)
_NO_SESSION: Final = 0xFFFF
_EXTRA_SIZE: Final = 5
PROPERTIES, REASON, DESCRIPTION, SOURCE, TRAIL, PARTITION_KEY = 1, 2, 3, 4, 5, 6
"""Tags of extras."""
ORIGIN_AT, ORIGIN_NUMBER_AT = 21, 29
"""Places in a trail (`postbus.broker.message`)."""
_KNOWN: Final[Flags] = np.isin(np.arange(256), [int(kind) for kind in MEANINGS])


def owners_of(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As `postbus.broker.subqueue_numbers.owner_of`, for each of these records."""
    owners: npt.NDArray[Any] = rows["subqueue"] >> OWNER_BITS
    return owners


def sub_queues_of(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As `postbus.broker.subqueue_numbers.kind_of`, for each of these records."""
    kinds: npt.NDArray[Any] = rows["subqueue"] & KIND_MASK
    return kinds


class DecodeFailed(Exception):
    """No broker that this version knows would have sent these bytes."""


class OtherJournal(Exception):
    """The batches are from the journal of an entity that has taken the place of the former."""


class Records:
    """Records found in a chunk, and the fixed part of each."""

    def __init__(
        self,
        buffer: Buffer,
        starts: Positions,
        ends: Positions,
        offsets: Positions,
        times: Positions,
        rows: npt.NDArray[Any],
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.ends = ends
        self.offsets = offsets
        self.times = times
        self.rows = rows
        self.id_starts = starts + RECORD.itemsize
        self.id_ends = self.id_starts + rows["id_length"]
        has_session = rows["session_length"] != _NO_SESSION
        self.has_session: Flags = has_session
        self.session_ends = self.id_ends + np.where(has_session, rows["session_length"], 0)
        self.extras_ends = self.session_ends + rows["extras_length"]
        self._extras: dict[int, Spans] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, chosen: Flags) -> Records:
        if chosen.all():
            return self
        return Records(
            self.buffer,
            self.starts[chosen],
            self.ends[chosen],
            self.offsets[chosen],
            self.times[chosen],
            self.rows[chosen],
        )

    def extras(self) -> dict[int, Spans]:
        """Fields that only few messages have, by tag."""
        if self._extras is not None:
            return self._extras
        place = self.session_ends
        found = {
            tag: Spans(place.copy(), place.copy(), np.zeros(len(self), np.bool_))
            for tag in (PROPERTIES, REASON, DESCRIPTION, SOURCE, TRAIL, PARTITION_KEY)
        }
        position = place.copy()
        rows = np.flatnonzero(position < self.extras_ends)
        while len(rows):
            here = position[rows]
            tags = self.buffer.at(here)
            start = here + _EXTRA_SIZE
            end = start + self.buffer.numbers(here + 1, "<u4")
            for tag, spans in found.items():
                of = tags == tag
                spans.starts[rows[of]] = start[of]
                spans.ends[rows[of]] = end[of]
                spans.known[rows[of]] = True
            if not np.isin(tags, list(found)).all() or (end > self.extras_ends[rows]).any():
                raise DecodeFailed("a record has extras that this version does not know")
            position[rows] = end
            rows = rows[end < self.extras_ends[rows]]
        self._extras = found
        return found


def find_records(buffer: Buffer, start: int, end: int, journal: int | None) -> Records:
    """Walk over the batches of a chunk, and over the lengths of their records."""
    data, size = buffer.data, buffer.size
    starts: list[int] = []
    batches: list[tuple[int, int, int, int]] = []
    """Of each: its first record in `starts`, where it ends, its base and its time."""
    at, after = 0, start
    while at < size:
        header, found = _batch(data, at)
        if journal is not None and header.fragment != journal:
            raise OtherJournal(f"journal {header.fragment}, not {journal}")
        # Offsets are dense: a missing batch must not pass for a batch without events.
        if header.base > after:
            raise DecodeFailed(f"the batch at offset {header.base} comes after offset {after}")
        after = header.base + header.record_count
        at += batch.HEADER_SIZE + header.length
        batches.append((len(starts), at, header.base, header.at))
        starts += found
    return _chosen(buffer, np.array(starts, np.int64), batches, start, end)


def _chosen(
    buffer: Buffer,
    starts: Positions,
    batches: list[tuple[int, int, int, int]],
    start: int,
    end: int,
) -> Records:
    """The records whose offsets are in the range."""
    firsts, edges, bases, times = np.array(batches, np.int64).reshape(-1, 4).T
    ends = np.empty_like(starts)
    # A record ends where the length of the next record begins, the last record with its batch.
    ends[:-1] = starts[1:] - batch.RECORD_PREFIX_SIZE
    counts = np.diff(firsts, append=len(starts))
    ends[firsts + counts - 1] = edges
    offsets = np.arange(len(starts)) + np.repeat(bases - firsts, counts)
    moments = np.repeat(times, counts)
    if len(offsets) and (offsets[0] < start or offsets[-1] >= end):
        inside = slice(*np.searchsorted(offsets, (start, end)).tolist())
        starts, ends, offsets, moments = (each[inside] for each in (starts, ends, offsets, moments))
    if (ends - starts < RECORD.itemsize).any():
        raise DecodeFailed("a record is shorter than a record can be")
    rows = buffer.rows(starts, RECORD)
    if not _KNOWN[rows["kind"]].all() or rows["flags"].any():
        raise DecodeFailed("a record is of a kind that this version does not know")
    return Records(buffer, starts, ends, offsets, moments, rows)


def base_of(data: bytes) -> int:
    """The offset of the first record in a chunk: it may be before the requested offset."""
    header, _ = _batch(data, 0)
    return header.base


def _batch(data: bytes, at: int) -> tuple[batch.Header, list[int]]:
    """The header of the batch at a position, its bytes checked against their sum, and where each of
    its records begins."""
    try:
        header = batch.unpack_at(data, at)
        return header, batch.starts_of(data, at, header)
    except batch.BatchCorrupt as error:
        raise DecodeFailed(str(error)) from error

"""The columns that a record says by itself, without a look into its message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from postbus.broker.message import SCHEDULED
from postbus.broker.record_kinds import OPERATIONS, RecordKind
from postbus.feed import events
from pyspark_postbus.chunk_records import (
    DESCRIPTION,
    ORIGIN_AT,
    ORIGIN_NUMBER_AT,
    REASON,
    SOURCE,
    TRAIL,
    Records,
    owners_of,
    sub_queues_of,
)
from pyspark_postbus.columns import TYPES
from pyspark_postbus.spans import Flags, numbers, texts

INSTANT_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that Python has. A message may expire later than that."""
_US_PER_MS: Final = 1_000
_REPEATED_MAX: Final = 32
"""Columns of a repeated text that are kept: an entity's names, its operations, its subqueues."""
_REPEATED_SIZE: Final = 1 << 20
"""Size of the largest, in letters, and four for each row: a larger column serves its chunk
alone."""
_EXTRAS: Final = {
    "deadLetterReason": REASON,
    "deadLetterErrorDescription": DESCRIPTION,
    "deadLetterSource": SOURCE,
}
_NAMES: Final = texts([OPERATIONS[kind] for kind in OPERATIONS])
_KINDS: Final[npt.NDArray[np.int32]] = np.full(256, -1, np.int32)
_KINDS[[int(kind) for kind in OPERATIONS]] = np.arange(len(OPERATIONS))

Column = Callable[[Records, events.JournalOrigin], pa.Array]


def _times(values: npt.NDArray[Any], known: Flags | None = None) -> pa.Array:
    kind = TYPES["timestamp"][1]
    if known is not None and not known.any():
        return pa.nulls(len(values), kind)
    return numbers(np.minimum(values, INSTANT_MAX).astype(np.int64) * _US_PER_MS, kind, known)


def _whole(values: npt.NDArray[Any]) -> pa.Array:
    return numbers(values.astype(np.int64), pa.int64())


def _looked_up(keys: npt.NDArray[Any], names: Mapping[int, str | None]) -> pa.Array:
    """A name for each number."""
    if len(keys) and (keys == keys[0]).all():
        return _repeated(names.get(int(keys[0])), len(keys))
    distinct, places = np.unique(keys, return_inverse=True)
    known = texts([names.get(int(key)) for key in distinct])
    return known.take(numbers(places.astype(np.int64), pa.int64()))


def _repeated(name: str | None, count: int) -> pa.Array:
    """The same text in every row, as in many chunks: so it is cut from a kept column."""
    kept = 1 << max(count - 1, 0).bit_length()
    if kept * (len(name or "") + 4) > _REPEATED_SIZE:
        return _many_of(name, count)
    return _many_kept(name, kept).slice(0, count)


def _many_of(name: str | None, count: int) -> pa.Array:
    return texts([name]).take(numbers(np.zeros(count, np.int32), pa.int32()))


_many_kept: Final = lru_cache(_REPEATED_MAX)(_many_of)


def _partition(found: Records, place: events.JournalOrigin) -> pa.Array:
    return numbers(np.full(len(found), place.partition, np.int32), pa.int32())


def _operation(found: Records, place: events.JournalOrigin) -> pa.Array:
    kinds = found.rows["kind"]
    if len(kinds) and (kinds == kinds[0]).all():
        return _repeated(OPERATIONS[RecordKind(kinds[0])], len(kinds))
    return _NAMES.take(numbers(_KINDS[kinds], pa.int32()))


def _subscription(found: Records, place: events.JournalOrigin) -> pa.Array:
    return _looked_up(owners_of(found.rows), dict(place.subscriptions))


def _sub_queue(found: Records, place: events.JournalOrigin) -> pa.Array:
    return _looked_up(sub_queues_of(found.rows), events.SUB_QUEUES)


def _original(found: Records, place: events.JournalOrigin) -> pa.Array:
    """`Message.first_number`: in the trail of a message that has another number now."""
    numbers_now = found.rows["number"].astype(np.int64)
    if not found.rows["extras_length"].any():
        return numbers(numbers_now, pa.int64())
    trails, buffer = found.extras()[TRAIL], found.buffer
    first = buffer.numbers(trails.starts + ORIGIN_NUMBER_AT, "<u8")
    renumbered = trails.known & (buffer.numbers(trails.starts + ORIGIN_AT, "<i8") < 0) & (first > 0)
    return numbers(np.where(renumbered, first, numbers_now), pa.int64())


def _enqueued(found: Records, place: events.JournalOrigin) -> pa.Array:
    return _times(found.rows["enqueued_at"], found.rows["lane"] != SCHEDULED)


def _scheduled(found: Records, place: events.JournalOrigin) -> pa.Array:
    return _times(found.rows["enqueued_at"], found.rows["lane"] == SCHEDULED)


def _expires(found: Records, place: events.JournalOrigin) -> pa.Array:
    ttl = found.rows["ttl"]
    known = ttl >= 0
    if not known.any():
        return pa.nulls(len(ttl), TYPES["expiresAt"][1])
    # Not their sum first: it may have more than 64 bits.
    span = np.clip(ttl, 0, INSTANT_MAX)
    return _times(np.minimum(found.rows["enqueued_at"], INSTANT_MAX) + span, known)


def _ttl(found: Records, place: events.JournalOrigin) -> pa.Array:
    ttl = found.rows["ttl"]
    return numbers(ttl, pa.int64(), ttl >= 0)


def _session(found: Records, place: events.JournalOrigin) -> pa.Array:
    if not found.has_session.any():
        return pa.nulls(len(found), pa.string())
    column = found.buffer.column
    return column(found.id_ends, found.session_ends, found.has_session, pa.string())


def _extra(tag: int) -> Column:
    def column(found: Records, place: events.JournalOrigin) -> pa.Array:
        if not found.rows["extras_length"].any():
            return pa.nulls(len(found), pa.string())
        spans = found.extras()[tag]
        return found.buffer.column(*spans, pa.string())

    return column


OF_RECORD: Final[dict[str, Column]] = {
    "entity": lambda found, place: _repeated(place.entity, len(found)),
    "subscription": _subscription,
    "subQueue": _sub_queue,
    "partition": _partition,
    "offset": lambda found, place: numbers(found.offsets, pa.int64()),
    "timestamp": lambda found, place: _times(found.times),
    "operation": _operation,
    "sequenceNumber": lambda found, place: _whole(found.rows["number"]),
    "originalSequenceNumber": _original,
    "enqueuedTime": _enqueued,
    "messageId": lambda found, place: found.buffer.column(
        found.id_starts, found.id_ends, found.id_ends > found.id_starts, pa.string()
    ),
    "sessionId": _session,
    "timeToLive": _ttl,
    "scheduledEnqueueTime": _scheduled,
    "expiresAt": _expires,
    "deliveryCount": lambda found, place: numbers(
        found.rows["delivery_count"].astype(np.int32), pa.int32()
    ),
    **{name: _extra(tag) for name, tag in _EXTRAS.items()},
    "deliveredTime": lambda found, place: _times(
        found.rows["delivered_at"], found.rows["delivered_at"] != 0
    ),
    "bodySize": lambda found, place: _whole(found.rows["length"]),
}

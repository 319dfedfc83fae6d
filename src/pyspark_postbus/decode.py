"""Record batches as the broker stores them, made into Arrow: only the columns that are asked for.

`postbus.feed.events` says what each column means, one record after the other; this does the same
for a chunk of records at once, and leaves to it the few that are written in an unusual way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from postbus.broker.message import KIND_MASK, OWNER_BITS, SCHEDULED, STATE
from postbus.broker.records import BRINGS_BODY, Kind
from postbus.feed import events
from postbus.feed.operations import HOUSEKEEPING, OPERATIONS
from postbus.store import batch
from pyspark_postbus.columns import OF_SECTIONS, TYPES, arrow_schema
from pyspark_postbus.sections import FIELDS, Messages, Spans
from pyspark_postbus.spans import Buffer, Flags, Positions, merged, numbers, texts

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
_PROPERTIES, _REASON, _DESCRIPTION, _SOURCE, _TRAIL = 1, 2, 3, 4, 5
_EXTRAS: Final = {
    "deadLetterReason": _REASON,
    "deadLetterErrorDescription": _DESCRIPTION,
    "deadLetterSource": _SOURCE,
}
_TRAIL_SIZE: Final = 41
"""One that is longer brings sections in place of the message's own."""

INSTANT_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: what Python's times can be. A message may expire later than that."""
_US_PER_MS: Final = 1_000
_NAMES: Final = texts([OPERATIONS[kind] for kind in OPERATIONS])
_KINDS: Final[npt.NDArray[np.int32]] = np.full(256, -1, np.int32)
_KINDS[[int(kind) for kind in OPERATIONS]] = np.arange(len(OPERATIONS))
_BRINGS: Final[Flags] = np.isin(np.arange(256), [int(kind) for kind in BRINGS_BODY])
_KNOWN: Final[Flags] = np.isin(np.arange(256), [int(kind) for kind in [*OPERATIONS, *HOUSEKEEPING]])
_SUB_QUEUES: Final = [events.SUB_QUEUES.get(kind) for kind in range(KIND_MASK + 1)]


class DecodeFailed(Exception):
    """The bytes are not what a broker that this version knows would have sent."""


class OtherJournal(Exception):
    """The batches are from the journal of an entity that has taken the place of the former."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a journal are rows; None takes all."""

    operations: frozenset[str] | None = None
    owners: frozenset[int] | None = None
    """Subscriptions by their numbers; 0 is the queue or topic itself."""
    sub_queues: frozenset[int] | None = None

    def of(self, rows: npt.NDArray[Any]) -> Flags:
        """Which of these records; housekeeping is never one."""
        wanted = OPERATIONS if self.operations is None else _kinds_of(self.operations)
        taken: Flags = np.isin(np.arange(256), [int(kind) for kind in wanted])[rows["kind"]]
        subqueue = rows["subqueue"]
        if self.owners is not None:
            taken &= np.isin(subqueue >> OWNER_BITS, list(self.owners))
        if self.sub_queues is not None:
            taken &= np.isin(subqueue & KIND_MASK, list(self.sub_queues))
        return taken


def _kinds_of(operations: Iterable[str]) -> list[Kind]:
    by_name = {name: kind for kind, name in OPERATIONS.items()}
    return [by_name[name] for name in operations if name in by_name]


class Decoder:
    """Makes record batches of one fragment into Arrow."""

    def __init__(
        self,
        place: events.Place,
        columns: tuple[str, ...],
        selection: Selection | None = None,
        journal: int | None = None,
    ) -> None:
        """With `journal`, the id that every batch must have."""
        self._place = place
        self._journal = journal
        self._columns = columns
        self._selection = selection or Selection()
        self.schema: pa.Schema = arrow_schema(columns)

    def decode(self, data: bytes, start: int, end: int) -> pa.RecordBatch:
        """The rows of the records from offset `start` to before `end` in a chunk. Raises
        OtherJournal."""
        buffer = Buffer(data)
        found = _found(buffer, start, end, self._journal)
        chosen = self._selection.of(found.rows)
        return self._table(found.where(chosen))

    def _table(self, found: _Records) -> pa.RecordBatch:
        rare = _Rare(found, self._place)
        sections: dict[str, pa.Array] = {}
        wanted = OF_SECTIONS.intersection(self._columns)
        if wanted:
            sections = _of_sections(found, frozenset(wanted), rare)
        arrays = [
            sections[name] if name in sections else _OF_RECORD[name](found, self._place)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Records:
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

    def where(self, chosen: Flags) -> _Records:
        if chosen.all():
            return self
        return _Records(
            self.buffer,
            self.starts[chosen],
            self.ends[chosen],
            self.offsets[chosen],
            self.times[chosen],
            self.rows[chosen],
        )

    def extras(self) -> dict[int, Spans]:
        """What only few messages have, by its tag."""
        if self._extras is not None:
            return self._extras
        place = self.session_ends
        found = {
            tag: Spans(place.copy(), place.copy(), np.zeros(len(self), np.bool_))
            for tag in (_PROPERTIES, _REASON, _DESCRIPTION, _SOURCE, _TRAIL)
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


def _found(buffer: Buffer, start: int, end: int, journal: int | None) -> _Records:
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
        # Offsets are dense: a batch that is missing must not pass for one without events.
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
) -> _Records:
    """The records whose offsets are in the range."""
    firsts, edges, bases, times = np.array(batches, np.int64).reshape(-1, 4).T
    ends = np.empty_like(starts)
    # A record ends where the length of the next one begins, and the last one with its batch.
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
    return _Records(buffer, starts, ends, offsets, moments, rows)


def base_of(data: bytes) -> int:
    """The offset of the first record in a chunk: it may be before the one that was asked for."""
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


# -- what the record itself says -------------------------------------------------------------

Column = Callable[[_Records, events.Place], pa.Array]


def _times(values: npt.NDArray[Any], known: Flags | None = None) -> pa.Array:
    kind = TYPES["timestamp"][1]
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
    return texts([name]).take(numbers(np.zeros(count, np.int32), pa.int32()))


def _partition(found: _Records, place: events.Place) -> pa.Array:
    return numbers(np.full(len(found), place.partition, np.int32), pa.int32())


def _operation(found: _Records, place: events.Place) -> pa.Array:
    kinds = found.rows["kind"]
    if len(kinds) and (kinds == kinds[0]).all():
        return _repeated(OPERATIONS[Kind(kinds[0])], len(kinds))
    return _NAMES.take(numbers(_KINDS[kinds], pa.int32()))


def _subscription(found: _Records, place: events.Place) -> pa.Array:
    return _looked_up(found.rows["subqueue"] >> OWNER_BITS, dict(place.subscriptions))


def _sub_queue(found: _Records, place: events.Place) -> pa.Array:
    return _looked_up(found.rows["subqueue"] & KIND_MASK, dict(enumerate(_SUB_QUEUES)))


def _enqueued(found: _Records, place: events.Place) -> pa.Array:
    return _times(found.rows["enqueued_at"], found.rows["lane"] != SCHEDULED)


def _scheduled(found: _Records, place: events.Place) -> pa.Array:
    return _times(found.rows["enqueued_at"], found.rows["lane"] == SCHEDULED)


def _expires(found: _Records, place: events.Place) -> pa.Array:
    ttl = found.rows["ttl"]
    # Not their sum first: it may have more than 64 bits.
    span = np.clip(ttl, 0, INSTANT_MAX)
    return _times(np.minimum(found.rows["enqueued_at"], INSTANT_MAX) + span, ttl >= 0)


def _ttl(found: _Records, place: events.Place) -> pa.Array:
    ttl = found.rows["ttl"]
    return numbers(ttl, pa.int64(), ttl >= 0)


def _session(found: _Records, place: events.Place) -> pa.Array:
    column = found.buffer.column
    return column(found.id_ends, found.session_ends, found.has_session, pa.string())


def _extra(tag: int) -> Column:
    def column(found: _Records, place: events.Place) -> pa.Array:
        if not found.rows["extras_length"].any():
            return pa.nulls(len(found), pa.string())
        spans = found.extras()[tag]
        return found.buffer.column(*spans, pa.string())

    return column


_OF_RECORD: Final[dict[str, Column]] = {
    "entity": lambda found, place: _repeated(place.entity, len(found)),
    "subscription": _subscription,
    "subQueue": _sub_queue,
    "partition": _partition,
    "offset": lambda found, place: numbers(found.offsets, pa.int64()),
    "timestamp": lambda found, place: _times(found.times),
    "operation": _operation,
    "sequenceNumber": lambda found, place: _whole(found.rows["number"]),
    "enqueuedTime": _enqueued,
    "messageId": lambda found, place: found.buffer.column(
        found.id_starts, found.id_ends, None, pa.string()
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


# -- what only the message says --------------------------------------------------------------


class _Rare:
    """Records that are read plainly, each once."""

    def __init__(self, found: _Records, place: events.Place) -> None:
        self._found = found
        self._place = place

    def values(self, rows: Positions) -> list[events.Event]:
        """All columns of these rows."""
        found = self._found
        return [self._event(found, row) for row in rows.tolist()]

    def _event(self, found: _Records, row: int) -> events.Event:
        data = found.buffer.data[found.starts[row] : found.ends[row]]
        event = events.event(
            self._place, int(found.offsets[row]), int(found.times[row]), bytes(data)
        )
        assert event is not None, "housekeeping was left out before"
        return event


def _of_sections(found: _Records, wanted: frozenset[str], rare: _Rare) -> dict[str, pa.Array]:
    """The columns of the messages' own sections; null for records that bring no message."""
    brings = _BRINGS[found.rows["kind"]]
    is_state = found.rows["lane"] == STATE
    bringing = np.flatnonzero(brings & ~is_state)
    messages = Messages(found.buffer, found.extras_ends[bringing], found.ends[bringing])
    messages.odd |= _replaced(found)[bringing]
    spans = messages.properties(wanted) if wanted & FIELDS.keys() else {}
    if "partitionKey" in wanted:
        messages.annotations()
    body = messages.body() if "body" in wanted else None
    maps = None
    if "properties" in wanted:
        maps = messages.application_properties(TYPES["properties"][1])
    columns: dict[str, pa.Array] = {}
    place = _spread(found, bringing)
    for name, each in spans.items():
        columns[name] = found.buffer.column(*place(each), pa.string())
    if "partitionKey" in wanted:
        columns["partitionKey"] = pa.nulls(len(found), pa.string())
    if body is not None:
        columns["body"] = found.buffer.column(*_with_states(found, place(body)), pa.binary())
    if maps is not None:
        columns["properties"] = _maps_spread(maps, bringing, len(found))
    odd = bringing[messages.odd]
    if "message" in wanted:
        columns["message"] = _whole_messages(found, bringing, place)
    if len(odd):
        plain = rare.values(odd)
        for name, column in columns.items():
            if name == "message":
                continue
            values = pa.array([_arrow_value(event[name]) for event in plain], TYPES[name][1])
            columns[name] = merged(column, values, odd)
    return columns


def _whole_messages(
    found: _Records, bringing: Positions, place: Callable[[Spans], Spans]
) -> pa.Array:
    """Messages as they are stored, but for those of which a section has been changed since."""
    every = np.ones(len(bringing), np.bool_)
    spans = Spans(found.extras_ends[bringing], found.ends[bringing], every)
    column = found.buffer.column(*place(spans), pa.binary())
    changed = bringing[_replaced(found)[bringing]]
    if not len(changed):
        return column
    data = (found.buffer.data[found.starts[row] : found.ends[row]] for row in changed.tolist())
    wholes = [events.whole_message(bytes(record)) for record in data]
    return merged(column, pa.array(wholes, pa.binary()), changed)


def _arrow_value(value: events.Value) -> object:
    return list(value.items()) if isinstance(value, dict) else value


def _replaced(found: _Records) -> Flags:
    """Messages of which somebody has changed a section: it lies elsewhere in the record."""
    if not found.rows["extras_length"].any():
        return np.zeros(len(found), np.bool_)
    extras = found.extras()
    trail = extras[_TRAIL]
    changed: Flags = extras[_PROPERTIES].known | (trail.ends - trail.starts > _TRAIL_SIZE)
    return changed


def _spread(found: _Records, rows: Positions) -> Callable[[Spans], Spans]:
    """Spans of some rows as those of all: the others have none, at their end."""

    def spread(spans: Spans) -> Spans:
        if len(rows) == len(found):
            return spans
        starts, ends = found.ends.copy(), found.ends.copy()
        known = np.zeros(len(found), np.bool_)
        starts[rows], ends[rows], known[rows] = spans
        return Spans(starts, ends, known)

    return spread


def _with_states(found: _Records, spans: Spans) -> Spans:
    """The state of a session is no message: all that follows the record's head is its body."""
    states = _BRINGS[found.rows["kind"]] & (found.rows["lane"] == STATE)
    if not states.any():
        return spans
    return Spans(
        np.where(states, found.extras_ends, spans.starts),
        np.where(states, found.ends, spans.ends),
        spans.known | states,
    )


def _maps_spread(maps: pa.Array, rows: Positions, count: int) -> pa.Array:
    if len(rows) == count:
        return maps
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return maps.take(numbers(np.maximum(places, 0), pa.int64(), places >= 0))

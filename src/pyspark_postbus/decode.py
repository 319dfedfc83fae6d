"""Record batches as the broker stores them, made into Arrow: only the requested columns.

`postbus.feed.events` defines the meaning of each column, record by record. This module does the
same for a chunk of records at once, and leaves the few records in an unusual form to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from postbus.broker.message import STATE
from postbus.broker.record_kinds import BRINGS_BODY, OPERATIONS, RecordKind
from postbus.feed import events
from pyspark_postbus.chunk_records import (
    PROPERTIES,
    TRAIL,
    Records,
    find_records,
    owners_of,
    sub_queues_of,
)
from pyspark_postbus.columns import OF_SECTIONS, TYPES, arrow_schema
from pyspark_postbus.record_columns import OF_RECORD
from pyspark_postbus.sections import FIELDS, Messages
from pyspark_postbus.spans import Buffer, Flags, Positions, Spans, merged, numbers

_TRAIL_SIZE: Final = 41
"""A longer trail brings sections in place of the message's own."""
_BRINGS: Final[Flags] = np.isin(np.arange(256), [int(kind) for kind in BRINGS_BODY])


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a journal are rows; None takes all."""

    operations: frozenset[str] | None = None
    owners: frozenset[int] | None = None
    """Subscriptions by their numbers; 0 is the queue or topic itself."""
    sub_queues: frozenset[int] | None = None

    def of(self, rows: npt.NDArray[Any]) -> Flags:
        """Flags the chosen records; housekeeping is never chosen."""
        wanted = OPERATIONS if self.operations is None else _kinds_of(self.operations)
        taken: Flags = np.isin(np.arange(256), [int(kind) for kind in wanted])[rows["kind"]]
        if self.owners is not None:
            taken &= np.isin(owners_of(rows), list(self.owners))
        if self.sub_queues is not None:
            taken &= np.isin(sub_queues_of(rows), list(self.sub_queues))
        return taken


def _kinds_of(operations: Iterable[str]) -> list[RecordKind]:
    by_name = {name: kind for kind, name in OPERATIONS.items()}
    return [by_name[name] for name in operations if name in by_name]


class Decoder:
    """Makes record batches of one fragment into Arrow."""

    def __init__(
        self,
        place: events.JournalOrigin,
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
        found = find_records(Buffer(data), start, end, self._journal)
        found = found.where(self._selection.of(found.rows))
        sections: dict[str, pa.Array] = {}
        wanted = OF_SECTIONS.intersection(self._columns)
        if wanted:
            sections = _of_sections(found, frozenset(wanted), _Rare(found, self._place))
        arrays = [
            sections[name] if name in sections else OF_RECORD[name](found, self._place)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Rare:
    """Records that are read plainly, each once."""

    def __init__(self, found: Records, place: events.JournalOrigin) -> None:
        self._found = found
        self._place = place

    def values(self, rows: Positions) -> list[events.Event]:
        """All columns of these rows."""
        found = self._found
        return [self._event(found, row) for row in rows.tolist()]

    def _event(self, found: Records, row: int) -> events.Event:
        data = found.buffer.data[found.starts[row] : found.ends[row]]
        event = events.event(
            self._place, int(found.offsets[row]), int(found.times[row]), bytes(data)
        )
        assert event is not None, "housekeeping was left out before"
        return event


def _of_sections(found: Records, wanted: frozenset[str], rare: _Rare) -> dict[str, pa.Array]:
    """The columns of the messages' own sections; null for records that bring no message."""
    brings = _BRINGS[found.rows["kind"]]
    is_state = found.rows["lane"] == STATE
    bringing = np.flatnonzero(brings & ~is_state)
    messages = Messages(found.buffer, found.extras_ends[bringing], found.ends[bringing])
    messages.odd |= _replaced(found)[bringing]
    spans = messages.properties(wanted) if wanted & FIELDS.keys() else {}
    if "partitionKey" in wanted:
        spans["partitionKey"] = messages.partition_keys()
    body = messages.body() if "body" in wanted else None
    maps = None
    if "properties" in wanted:
        maps = messages.application_properties(TYPES["properties"][1])
    columns: dict[str, pa.Array] = {}
    place = _spread(found, bringing)
    for name, each in spans.items():
        columns[name] = found.buffer.column(*place(each), pa.string())
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
    found: Records, bringing: Positions, place: Callable[[Spans], Spans]
) -> pa.Array:
    """Messages as they are stored, except for messages with a section that has changed since."""
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


def _replaced(found: Records) -> Flags:
    """Messages with a changed section: it lies elsewhere in the record."""
    if not found.rows["extras_length"].any():
        return np.zeros(len(found), np.bool_)
    extras = found.extras()
    trail = extras[TRAIL]
    changed: Flags = extras[PROPERTIES].known | (trail.ends - trail.starts > _TRAIL_SIZE)
    return changed


def _spread(found: Records, rows: Positions) -> Callable[[Spans], Spans]:
    """Spans of some rows as spans of all rows: the other rows get empty spans, at their end."""

    def spread(spans: Spans) -> Spans:
        if len(rows) == len(found):
            return spans
        starts, ends = found.ends.copy(), found.ends.copy()
        known = np.zeros(len(found), np.bool_)
        starts[rows], ends[rows], known[rows] = spans
        return Spans(starts, ends, known)

    return spread


def _with_states(found: Records, spans: Spans) -> Spans:
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

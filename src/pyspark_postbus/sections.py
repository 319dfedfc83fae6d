"""The sections of many messages at once: the position of each field, found column by column.

Nearly all messages are written in the same few ways: sections that begin `00 53`, properties of
simple types, a body of one data section. Any other message is marked as odd, and the caller reads
it plainly; this module never guesses (AMQP 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_postbus.property_texts import NULL, SYMBOLS, TEXTS, Values, text_column
from pyspark_postbus.spans import Buffer, Flags, Positions, Spans, numbers

_BEGIN: Final = 0x0053_00
"""Every section: a descriptor, a small ulong, and then which section it is."""
_HEADER: Final = 0x70
_SECTION_COUNT: Final = 5
"""Sections before the body: header, two of annotations, properties, application properties."""
_PROPERTIES: Final = 3
_DATA: Final = 0x75
_VALUE: Final = 0x77

# Constructors: the first byte that each section may have, and the width of its size.
_LIST0, _LIST8, _LIST32 = 0x45, 0xC0, 0xD0
_MAP8, _MAP32 = 0xC1, 0xD1
_TEXT8, _TEXT32 = TEXTS

FIELDS: Final = {"to": 2, "subject": 3, "replyTo": 4, "correlationId": 5, "contentType": 6}
"""The properties that are columns, by their place in the list (AMQP 3.2.4)."""
_SYMBOLS: Final = frozenset({"contentType"})
PARTITION_KEY: Final = b"x-opt-partition-key"

# How many bytes follow a constructor; -1: one byte says, -2: four bytes say; -3: not known here.
_WIDTHS: Final[npt.NDArray[np.int64]] = np.full(256, -3, np.int64)
for _code, _width in (
    *((0x40, 0), (0x41, 0), (0x42, 0), (0x43, 0), (0x44, 0)),
    *((0x50, 1), (0x51, 1), (0x52, 1), (0x53, 1), (0x54, 1), (0x55, 1), (0x56, 1)),
    *((0x60, 2), (0x61, 2), (0x70, 4), (0x71, 4), (0x72, 4), (0x73, 4), (0x74, 4)),
    *((0x80, 8), (0x81, 8), (0x82, 8), (0x83, 8), (0x84, 8), (0x94, 16), (0x98, 16)),
    *((0xA0, -1), (0xA1, -1), (0xA3, -1), (0xB0, -2), (0xB1, -2), (0xB3, -2)),
):
    _WIDTHS[_code] = _width


class Messages:
    """Messages in one buffer, each from a start to an end, in order."""

    def __init__(self, buffer: Buffer, starts: Positions, ends: Positions) -> None:
        self._buffer = buffer
        self._ends = ends
        self.odd: Flags = np.zeros(len(starts), np.bool_)
        """Messages that must be read plainly. Grows as more is asked for."""
        self._starts: list[Positions] = []
        """Where each section starts; an absent section starts where the next section does."""
        position = starts
        for rank in range(_SECTION_COUNT):
            self._starts.append(position)
            position = self._past(position, rank)
        self._body = position

    def _past(self, position: Positions, rank: int) -> Positions:
        """Where the next section starts."""
        buffer = self._buffer
        # The first four bytes of a section at once.
        begin = buffer.numbers(position, ">u4")
        is_list = rank in (0, _PROPERTIES)
        usual = (_BEGIN | _HEADER + rank) << 8 | (_LIST8 if is_list else _MAP8)
        if (begin == usual).all():
            # All written by the same application. The code below has the same result, step by step.
            after = position + 5 + buffer.at(position + 4)
            if (after <= self._ends).all():
                return after
        found = begin >> 8 == _BEGIN | _HEADER + rank
        found &= position < self._ends
        if not found.any():
            return position
        constructor = begin & 0xFF
        short = constructor == (_LIST8 if is_list else _MAP8)
        long = constructor == (_LIST32 if is_list else _MAP32)
        empty = (constructor == _LIST0) & is_list
        size = np.where(short, 5 + buffer.at(position + 4).astype(np.int64), 4)
        if long.any():
            size = np.where(long, 8 + buffer.numbers(position + 4, ">u4"), size)
        after = position + size
        self.odd |= found & (~(short | long | empty) | (after > self._ends))
        return np.where(found & (after <= self._ends), after, position)

    def body(self) -> Spans:
        """The bytes of each body: a data section, or a value that is text or bytes."""
        buffer, position = self._buffer, self._body
        begin = buffer.numbers(position, ">u4")
        if (begin == (_BEGIN | _DATA) << 8 | 0xB0).all():
            # All of them long, and nothing behind: likewise.
            start = position + 8
            end = start + buffer.numbers(position + 4, ">u4")
            if (end == self._ends).all():
                return Spans(start, end, np.ones(len(position), np.bool_))
        there = position < self._ends
        plain = begin >> 16 == _BEGIN >> 8
        code, constructor = begin >> 8 & 0xFF, begin & 0xFF
        short = (constructor == 0xA0) | ((constructor == _TEXT8) & (code == _VALUE))
        long = (constructor == 0xB0) | ((constructor == _TEXT32) & (code == _VALUE))
        plain &= ((code == _DATA) | (code == _VALUE)) & (short | long)
        start = position + np.where(long, 8, 5)
        size = np.where(
            long, buffer.numbers(position + 4, ">u4"), buffer.at(position + 4).astype(np.int64)
        )
        # Several sections, and a footer, are for the plain way.
        plain &= start + size == self._ends
        fits = there & plain
        # A value with the type of a text may be no text: nobody has looked into bodies.
        said = np.flatnonzero(fits & np.isin(constructor, TEXTS))
        if len(said) and not buffer.are_texts(start[said], (start + size)[said]):
            plain[said] = False
        self.odd |= there & ~plain
        return Spans(
            np.where(fits, start, position),
            np.where(fits, start + size, position),
            np.ones(len(position), np.bool_),
        )

    def heads(self) -> Positions:
        """Where the body of each message begins, if it is a single data section in its shortest
        form with at least one byte. Otherwise, where the message ends."""
        buffer, position = self._buffer, self._body
        begin = buffer.numbers(position, ">u4")
        short = begin == (_BEGIN | _DATA) << 8 | 0xA0
        long = begin == (_BEGIN | _DATA) << 8 | 0xB0
        size = buffer.numbers(position + 4, ">u4")
        long &= size > 0xFF
        few = buffer.at(position + 4).astype(np.int64)
        short &= few > 0
        end = position + np.where(long, 8 + size, 5 + few)
        plain = (short | long) & (end == self._ends) & ~self.odd
        return np.where(plain, position, self._ends)

    def partition_keys(self) -> Spans:
        """The only annotation that is a column; it is a text, or its message is odd."""
        section, end = self._starts[2], self._starts[_PROPERTIES]
        # Messages without a key have a place in the order, too.
        found = Spans(end.copy(), end.copy(), np.zeros(len(end), np.bool_))
        for rows, key, value in self._walked(section, end, self._pairs(section, end)):
            here = key.symbols() & (key.ends - key.starts == len(PARTITION_KEY))
            at = np.flatnonzero(here)
            letters = self._buffer.bytes[key.starts[at][:, None] + np.arange(len(PARTITION_KEY))]
            at = at[(letters == np.frombuffer(PARTITION_KEY, np.uint8)).all(axis=1)]
            is_text = value.texts()[at]
            self.odd[rows[~key.symbols()]] = True
            self.odd[rows[at[~is_text]]] = True
            at = at[is_text]
            found.starts[rows[at]], found.ends[rows[at]] = value.starts[at], value.ends[at]
            found.known[rows[at]] = True
        return found

    def properties(self, wanted: frozenset[str]) -> dict[str, Spans]:
        """The wanted fields of FIELDS."""
        buffer = self._buffer
        section, end = self._starts[_PROPERTIES], self._starts[_PROPERTIES + 1]
        constructor = buffer.at(section + 3)
        there = (section < end) & (constructor != _LIST0)
        long = there & (constructor == _LIST32)
        count = np.where(there, buffer.at(section + 5).astype(np.int64), 0)
        if long.any():
            count = np.where(long, buffer.numbers(section + 8, ">u4"), count)
        position = np.where(there, section + np.where(long, 12, 6), section)
        found: dict[str, Spans] = {}
        names = {place: name for name, place in FIELDS.items() if name in wanted}
        for place in range(max(names, default=-1) + 1):
            has = there & (count > place)
            position, spans = self._field(position, end, has, names.get(place))
            if place in names:
                found[names[place]] = spans
        return found

    def _field(
        self, position: Positions, end: Positions, has: Flags, name: str | None
    ) -> tuple[Positions, Spans]:
        """A field of the properties: the position of the next field, and the span of its text."""
        value = _values(self._buffer, position, end)
        after = np.where(has, value.ends, position)
        known = has & (value.constructors != NULL)
        self.odd |= has & ~value.whole
        if name is not None:
            is_text = value.symbols() if name in _SYMBOLS else value.texts()
            self.odd |= known & ~is_text
            known &= is_text
        return after, Spans(np.where(known, value.starts, after), after, known)

    def application_properties(self, kind: pa.MapType) -> pa.Array:
        """The map of each message; empty where there is none."""
        keys: list[_Values] = []
        values: list[_Values] = []
        there = self._starts[4] < self._body
        pairs = self._pairs(self._starts[4], self._body)
        for rows, key, value in self._walked(self._starts[4], self._body, pairs):
            self.odd[rows[~(key.texts() & value.whole)]] = True
            keys.append(key)
            values.append(value)
        counts = np.where(there & ~self.odd, pairs, 0)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        if not offsets[-1]:
            none = pa.nulls(0, pa.string())
            return pa.MapArray.from_arrays(numbers(offsets, pa.int32()), none, none, type=kind)
        key_of, value_of = _joined(keys), _joined(values)
        # The pairs of a message follow each other in the buffer, and so do messages. Pairs of a
        # message that turned out odd half-way are left out.
        owner = np.searchsorted(self._ends, key_of.starts, side="right")
        kept = np.flatnonzero(~self.odd[owner])
        order = kept[np.argsort(key_of.starts[kept], kind="stable")]
        return pa.MapArray.from_arrays(
            numbers(offsets, pa.int32()),
            self._buffer.column(key_of.starts[order], key_of.ends[order], None, pa.string()),
            text_column(self._buffer, value_of.of(order)),
            type=kind,
        )

    def _pairs(self, section: Positions, end: Positions) -> Positions:
        """How many pairs the map in each section has; an uneven map is odd."""
        there = section < end
        count = np.where(there, self._buffer.at(section + 5).astype(np.int64), 0)
        long = there & (self._buffer.at(section + 3) == _MAP32)
        if long.any():
            count = np.where(long, self._buffer.numbers(section + 8, ">u4"), count)
        self.odd |= there & (count % 2 == 1)
        return count // 2

    def _walked(
        self, section: Positions, end: Positions, pairs: Positions
    ) -> Iterator[tuple[Positions, _Values, _Values]]:
        """The first pair of all maps, then the second, and so on: which messages have it, key and
        value. A message that is found to be odd is left at that."""
        buffer = self._buffer
        position = section + np.where(buffer.at(section + 3) == _MAP32, 12, 6)
        rows = np.flatnonzero((pairs > 0) & ~self.odd)
        done = 0
        while len(rows):
            key = _values(buffer, position[rows], end[rows])
            value = _values(buffer, key.ends, end[rows])
            self.odd[rows[~(key.whole & value.whole)]] = True
            yield rows, key, value
            position[rows] = value.ends
            done += 1
            rows = rows[~self.odd[rows] & (pairs[rows] > done)]


class _Values(NamedTuple):
    """An encoded value at each of many positions."""

    positions: Positions
    starts: Positions
    """Starts of the bytes, past constructor and size."""
    ends: Positions
    constructors: npt.NDArray[np.uint8]
    whole: Flags
    """Whether it was understood, and ends where it must. If not, it is taken to be nothing."""

    def texts(self) -> Flags:
        return np.isin(self.constructors, TEXTS)

    def symbols(self) -> Flags:
        return np.isin(self.constructors, SYMBOLS)


def _values(buffer: Buffer, position: Positions, end: Positions) -> _Values:
    constructor = buffer.at(position)
    width = _WIDTHS[constructor]
    short, long = width == -1, width == -2
    start = position + 1 + np.where(short, 1, np.where(long, 4, 0))
    size = np.where(short, buffer.at(position + 1).astype(np.int64), np.maximum(width, 0))
    if long.any():
        size = np.where(long, buffer.numbers(position + 1, ">u4"), size)
    after = start + size
    whole = (width != -3) & (after <= end)
    starts, ends = np.where(whole, start, position), np.where(whole, after, position)
    return _Values(position, starts, ends, constructor, whole)


def _joined(values: list[_Values]) -> Values:
    columns = zip(*(each[:4] for each in values), strict=True)
    return Values(*(np.concatenate(column) for column in columns))

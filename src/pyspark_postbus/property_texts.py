"""Values of any simple type as texts, many at once, type by type.

`postbus.messages.plain_values.property_text` says the same of each value.

Types that SDKs send most (numbers, booleans, times, UUIDs) become texts without Python for each
value, except fractions. Bytes, decimals and the like are read value by value, but not their
message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from postbus.amqp.codec import decode
from postbus.messages.plain_values import property_text
from pyspark_postbus.record_columns import INSTANT_MAX
from pyspark_postbus.spans import Buffer, Flags, Positions, numbers, texts

NULL: Final = 0x40
TEXTS: Final = (0xA1, 0xB1)
SYMBOLS: Final = (0xA3, 0xB3)
_WHOLE: Final = {
    0x43: None, 0x44: None,
    0x50: "u1", 0x51: "i1", 0x52: "u1", 0x53: "u1", 0x54: "i1", 0x55: "i1",
    0x60: ">u2", 0x61: ">i2", 0x70: ">u4", 0x71: ">i4", 0x81: ">i8",
}  # fmt: skip
"""Numbers that 64 bits with a sign can hold; None is zero."""
_ULONG, _FLOAT, _DOUBLE, _TIMESTAMP, _UUID = 0x80, 0x72, 0x82, 0x83, 0x98
_YEAR_1: Final = -62_135_596_800_000
"""The first instant that has a date."""
_TRUE, _FALSE, _BOOLEAN = 0x41, 0x42, 0x56
_UUID_PARTS: Final = (4, 2, 2, 2, 6)
_HEX: Final = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)


class Values(NamedTuple):
    """Encoded values in a buffer, in order."""

    places: Positions
    """Positions of the constructors."""
    starts: Positions
    """Of their bytes, past constructor and size."""
    ends: Positions
    constructors: npt.NDArray[np.uint8]

    def of(self, chosen: Flags | Positions) -> Values:
        return Values(
            self.places[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.constructors[chosen],
        )


def text_column(buffer: Buffer, values: Values) -> pa.Array:
    """A text for each value; null for null."""
    codes = values.constructors
    is_text = np.isin(codes, (*TEXTS, *SYMBOLS))
    column = buffer.column(values.starts, values.ends, is_text, pa.string())
    left = ~is_text & (codes != NULL)
    if not left.any():
        return column
    parts, order = [column], np.arange(len(codes), dtype=np.int64)
    size = len(column)
    for chosen, made in _converted(buffer, values, left):
        order[chosen] = size + np.arange(len(made))
        parts.append(made)
        size += len(made)
    return pa.concat_arrays(parts).take(numbers(order, pa.int64()))


def _converted(
    buffer: Buffer, values: Values, left: Flags
) -> list[tuple[Flags | Positions, pa.Array]]:
    """The values that are left, each type by itself: which they are, and their texts."""
    codes, found = values.constructors, []
    for wanted, convert in (
        (np.isin(codes, list(_WHOLE)), _whole),
        (codes == _ULONG, _ulong),
        (_is_boolean(buffer, values), _boolean),
        (codes == _UUID, _uuid),
        (np.isin(codes, (_FLOAT, _DOUBLE)), _fraction),
        (_has_year(buffer, values), _time),
    ):
        chosen = wanted & left
        if chosen.any():
            found.append((chosen, convert(buffer, values.of(chosen))))
            left = left & ~chosen
    if left.any():
        found.append((left, _one_by_one(buffer, values.of(left))))
    return found


def _whole(buffer: Buffer, values: Values) -> pa.Array:
    read = np.zeros(len(values.starts), np.int64)
    for code, kind in _WHOLE.items():
        chosen = values.constructors == code
        if kind is not None and chosen.any():
            read[chosen] = buffer.numbers(values.starts[chosen], kind)
    return pc.cast(numbers(read, pa.int64()), pa.string())


def _ulong(buffer: Buffer, values: Values) -> pa.Array:
    read = buffer.numbers(values.starts, ">u8").view(np.uint64)
    return pc.cast(numbers(read, pa.uint64()), pa.string())


def _is_boolean(buffer: Buffer, values: Values) -> Flags:
    codes = values.constructors
    found: Flags = np.isin(codes, (_TRUE, _FALSE))
    found |= (codes == _BOOLEAN) & (buffer.at(values.starts) <= 1)
    return found


def _boolean(buffer: Buffer, values: Values) -> pa.Array:
    codes = values.constructors
    is_true = (codes == _TRUE) | ((codes == _BOOLEAN) & (buffer.at(values.starts) == 1))
    places = is_true.astype(np.int32)
    return texts(["false", "true"]).take(numbers(places, pa.int32()))


def _fraction(buffer: Buffer, values: Values) -> pa.Array:
    read = buffer.numbers(values.starts, ">i8").view(np.float64)
    short = values.constructors == _FLOAT
    if short.any():
        bits = buffer.numbers(values.starts[short], ">i4").astype(np.int32)
        read[short] = bits.view(np.float32)
    return texts([json.dumps(each) for each in read.tolist()])


def _has_year(buffer: Buffer, values: Values) -> Flags:
    """Times that can be written as a date: others are numbers."""
    found: Flags = values.constructors == _TIMESTAMP
    if found.any():
        read = buffer.numbers(values.starts[found], ">i8")
        found[found] = (read >= _YEAR_1) & (read <= INSTANT_MAX)
    return found


def _time(buffer: Buffer, values: Values) -> pa.Array:
    read = buffer.numbers(values.starts, ">i8").astype("datetime64[ms]")
    letters = np.datetime_as_string(read, unit="ms").astype("S23").view(np.uint8).reshape(-1, 23)
    return _alike(np.pad(letters, ((0, 0), (0, 1)), constant_values=ord("Z")))


def _uuid(buffer: Buffer, values: Values) -> pa.Array:
    read = buffer.bytes[values.starts[:, None] + np.arange(16)]
    letters = _HEX[read].reshape(-1, 32)
    edges = np.cumsum(_UUID_PARTS[:-1]) * 2
    return _alike(np.insert(letters, edges, ord("-"), axis=1))


def _alike(letters: npt.NDArray[np.uint8]) -> pa.Array:
    """Texts of the same length, a text in each line."""
    count, width = letters.shape
    edges = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(np.ascontiguousarray(letters))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(edges), data])


def _one_by_one(buffer: Buffer, values: Values) -> pa.Array:
    spans: Sequence[tuple[int, int]] = np.stack((values.places, values.ends), 1).tolist()
    return texts([property_text(decode(bytes(buffer.data[at:end]), 0)[0]) for at, end in spans])

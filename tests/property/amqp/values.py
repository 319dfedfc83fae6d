"""Strategies for AMQP values, and the other ways their bytes could have been written."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from postbus.amqp.codec import encode
from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float32,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def _unsigned(bits: int) -> SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def _signed(bits: int) -> SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


texts = st.text(st.characters(codec="utf-8"), max_size=300)
symbols = st.text(st.characters(codec="ascii"), max_size=300).map(Symbol)
uints = _unsigned(32)

_by_constructor: dict[int, SearchStrategy[Any]] = {
    0x40: st.none(),
    0x50: _unsigned(8).map(UByte),
    0x51: _signed(8).map(Byte),
    0x52: _unsigned(8).map(UInt),
    0x53: _unsigned(8).map(ULong),
    0x54: _signed(8).map(Int),
    0x55: _signed(8),
    0x56: st.booleans(),
    0x60: _unsigned(16).map(UShort),
    0x61: _signed(16).map(Short),
    0x70: uints.map(UInt),
    0x71: _signed(32).map(Int),
    0x72: st.floats(width=32, allow_nan=False).map(Float32),
    0x73: st.characters(codec="utf-8").map(Char),
    0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x80: _unsigned(64).map(ULong),
    0x81: _signed(64),
    0x82: st.floats(allow_nan=False),
    0x83: _signed(64).map(Timestamp),
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128),
    0x98: st.uuids(),
    0xB0: st.binary(max_size=300),
    0xB1: texts,
    0xB3: symbols,
}

scalars = st.one_of(*_by_constructor.values())


def _arrays(items: SearchStrategy[Any]) -> SearchStrategy[AmqpArray]:
    descriptors = st.lists(st.one_of(symbols, _unsigned(64).map(ULong)), max_size=2).map(tuple)
    of_scalars = st.sampled_from(sorted(_by_constructor)).flatmap(
        lambda code: st.builds(
            AmqpArray, st.just(code), st.lists(_by_constructor[code], max_size=8), descriptors
        )
    )
    of_lists = st.builds(
        AmqpArray, st.just(0xD0), st.lists(st.lists(items, max_size=3), max_size=3), descriptors
    )
    return of_scalars | of_lists


values: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(scalars, inner, max_size=5)
        | st.builds(Described, symbols | _unsigned(64).map(ULong), inner)
        | _arrays(inner)
    ),
    max_leaves=20,
)

maps = st.dictionaries(symbols, values, max_size=3)


def same(left: object, right: object) -> bool:
    """Whether two values are equal and of the same types throughout."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, Described) and isinstance(right, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, AmqpArray) and isinstance(right, AmqpArray):
        return (
            left.code == right.code
            and same(left.items, right.items)
            and same(list(left.descriptors), list(right.descriptors))
        )
    return left == right


def compound(code: int, items: list[bytes], wide: bool) -> bytes:
    """A list or map of encoded items in its small form, unless it must or shall be wide."""
    data = b"".join(items)
    if wide or len(data) > 254 or len(items) > 255:
        return struct.pack(">BII", code + 0x10, len(data) + 4, len(items)) + data
    return bytes((code, len(data) + 1, len(items))) + data


@st.composite
def spellings(draw: st.DrawFn, value: object) -> bytes:
    """Any of the encodings the standard has for a value; how deep it goes is drawn too."""
    shortest = encode(value)
    if not draw(st.booleans()):
        return shortest
    wide = draw(st.booleans())
    if isinstance(value, bool):
        return bytes((0x56, value))
    if isinstance(value, UInt):
        return struct.pack(">BI", 0x70, value)
    if isinstance(value, ULong):
        return struct.pack(">BQ", 0x80, value)
    if type(value) is Int:
        return struct.pack(">Bi", 0x71, value)
    if type(value) is int:
        return struct.pack(">Bq", 0x81, value)
    if type(value) in (bytes, str, Symbol) and shortest[0] & 0x10 == 0:
        return bytes((shortest[0] + 0x10, 0, 0, 0)) + shortest[1:]
    if isinstance(value, list):
        return compound(0xC0, [draw(spellings(item)) for item in value], wide)
    if isinstance(value, dict):
        parts = [draw(spellings(part)) for entry in value.items() for part in entry]
        return compound(0xC1, parts, wide)
    if isinstance(value, Described):
        return b"\x00" + draw(spellings(value.descriptor)) + draw(spellings(value.value))
    return shortest


@st.composite
def damaged(draw: st.DrawFn, sound: SearchStrategy[bytes]) -> bytes:
    """Sound bytes with a few of them changed, left out or put in, and perhaps cut short."""
    data = bytearray(draw(sound))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(("change", "insert", "delete", "cut"))):
            case "change":
                data[position : position + 1] = draw(st.binary(min_size=1, max_size=1))
            case "insert":
                data[position:position] = draw(st.binary(min_size=1, max_size=3))
            case "delete":
                del data[position : position + 1]
            case _:
                del data[position:]
    return bytes(data)

"""Inputs made from other inputs: bytes changed, pieces exchanged, AMQP values grown anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from postbus.amqp.codec import decode, encode
from postbus.amqp.codec.types import (
    AmqpArray,
    Char,
    Decimal64,
    Described,
    Float32,
    Int,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

LENGTH_MAX = 20_000
Mutator = Callable[[bytes, random.Random], bytes]

_NUMBERS = (0, 1, 2, 4, 127, 128, 255, 256, 65_535, 65_536, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)
_BYTES = b"\x00\x01\x40\x41\x45\x53\x70\x7f\x80\x83\x98\xa0\xa1\xa3\xb1\xc0\xc1\xd0\xd1\xe0\xf0\xff"


def mutate_bytes(
    data: bytes, chance: random.Random, others: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """A few changes that know nothing of what the bytes mean."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        place = chance.randint(0, len(out))
        length = chance.choice((1, 1, 2, 4, 8, 30))
        match chance.randrange(9):
            case 0:
                out[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                out[place : place + 1] = bytes([chance.choice(_BYTES)])
            case 2:
                del out[place : place + length]
            case 3:
                out[place:place] = out[place : place + length]
            case 4:
                out[place:place] = chance.choice(words) if words else chance.randbytes(length)
            case 5:
                word = chance.choice(words) if words else chance.randbytes(length)
                out[place : place + len(word)] = word
            case 6:
                number = chance.choice(_NUMBERS).to_bytes(8, "big")[-chance.choice((1, 2, 4, 8)) :]
                out[place : place + len(number)] = number
            case 7 if others:
                other = chance.choice(others)
                start = chance.randint(0, len(other))
                end = start + chance.choice((4, 20, 1_000))
                out[place : place + chance.choice((0, length))] = other[start:end]
            case _:
                start = chance.randint(0, len(out))
                out[place:place] = out[start : start + length] * chance.choice((1, 1, 2, 50))
    return bytes(out[:LENGTH_MAX])


def after(skipped: int, mutator: Mutator) -> Mutator:
    """Leaves the first bytes, which are for the target itself, as they are."""
    return lambda data, chance: data[:skipped] + mutator(data[skipped:], chance)


def mutate_values(data: bytes, chance: random.Random) -> bytes:
    """Take AMQP values apart, change one somewhere inside, and write all with the right sizes."""
    values: list[Any] = []
    offset = 0
    try:
        while offset < len(data):
            value, offset = decode(data, offset)
            values.append(value)
    except Exception:
        if not values:
            return data
    if chance.random() < 0.1:
        chance.shuffle(values)
    try:
        return b"".join(map(encode, _changed(values, chance, 0))) + data[offset:]
    except Exception:  # a tree that has no encoding: a key that is a list, a number out of range
        return data


def mutate_frames(data: bytes, chance: random.Random) -> bytes:
    """For frames as `run_frames` reads them: some left out, doubled, exchanged, or one changed."""
    frames: list[tuple[int, bytes]] = []
    offset = 0
    while offset + 2 <= len(data):
        size = 2 * data[offset + 1]
        frames.append((data[offset], data[offset + 2 : offset + 2 + size]))
        offset += 2 + size
    if not frames:
        return data
    place, other = chance.randrange(len(frames)), chance.randrange(len(frames))
    choice, body = frames[place]
    match chance.randrange(7):
        case 0:
            del frames[place]
        case 1:
            frames.insert(other, frames[place])
        case 2:
            frames[place], frames[other] = frames[other], frames[place]
        case 3:
            frames[place] = chance.randrange(256), body
        case _:
            frames[place] = choice, mutate_values(body, chance)
    out = b""
    for choice, body in frames[:40]:
        even = body[:508] + b"\x40" * (len(body) % 2)
        out += bytes((choice, len(even) // 2)) + even
    return out


def _changed(value: Any, chance: random.Random, depth: int) -> Any:
    if depth > 0 and chance.random() < 0.2:
        return any_value(chance, 2)
    match value:
        case Described():
            if chance.random() < 0.1:
                return Described(any_value(chance, 0), value.value)
            return Described(value.descriptor, _changed(value.value, chance, depth + 1))
        case list() if value:
            items = list(value)
            place = chance.randrange(len(items))
            match chance.randrange(6):
                case 0:
                    del items[place]
                case 1:
                    items.insert(place, items[chance.randrange(len(items))])
                case _:
                    items[place] = _changed(items[place], chance, depth + 1)
            return items
        case dict() if value:
            entries = list(value.items())
            place = chance.randrange(len(entries))
            key, held = entries[place]
            match chance.randrange(6):
                case 0:
                    del entries[place]
                case 1:
                    entries[place] = any_value(chance, 0), held
                case _:
                    entries[place] = key, _changed(held, chance, depth + 1)
            return dict(entries)
        case AmqpArray() if value.items and chance.random() < 0.5:
            return AmqpArray(value.code, value.items * chance.choice((0, 2, 3)))
    return any_value(chance, 1)


def any_value(chance: random.Random, depth: int) -> Any:
    number = chance.choice(_NUMBERS)
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: number,
        lambda: -number,
        lambda: Int(number & 0x7FFFFFFF),
        lambda: UByte(number & 0xFF),
        lambda: UShort(number & 0xFFFF),
        lambda: UInt(number & 0xFFFFFFFF),
        lambda: ULong(number),
        lambda: Timestamp(chance.choice((number, -number))),
        lambda: Float32(1.5),
        lambda: chance.choice((0.0, float("nan"), float("inf"))),
        lambda: Char("\U0001f600"),
        lambda: Decimal64(bytes(8)),
        lambda: UUID(bytes=chance.randbytes(16)),
        lambda: chance.choice(("", "text", "é" * 70_000 if chance.random() < 0.02 else "é\x00")),
        lambda: Symbol(chance.choice(("", "x-opt-scheduled-enqueue-time", "x-opt-lock-token"))),
        lambda: chance.randbytes(chance.choice((0, 1, 40, 300))),
        lambda: AmqpArray(0x81, [number] * chance.choice((0, 1, 5))),
    ]
    if depth > 0:
        kinds += [
            lambda: [any_value(chance, depth - 1) for _ in range(chance.randrange(4))],
            lambda: {str(i): any_value(chance, depth - 1) for i in range(chance.randrange(4))},
            lambda: Described(ULong(chance.choice((0x24, 0x70, 0x75, 0x77, 99))), number),
        ]
    return chance.choice(kinds)()

"""Every AMQP type by its bytes, and every way bytes can fail to be one."""

from __future__ import annotations

import struct
import tracemalloc
from uuid import UUID

import pytest

from postbus.amqp.codec import (
    NESTING_MAX,
    ZERO_WIDTH_ITEMS_MAX,
    decode,
    encode,
    has_more_values,
    skip,
)
from postbus.amqp.codec.skipping import DESCRIPTORS_MAX
from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Encodable,
    Float32,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from postbus.amqp.faults import DecodeError

A_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")

SHORTEST = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(255), "50 ff"),
    (UShort(258), "60 0102"),
    (UInt(0), "43"),
    (UInt(255), "52 ff"),
    (UInt(256), "70 00000100"),
    (ULong(0), "44"),
    (ULong(255), "53 ff"),
    (ULong(0x137000000C), "80 000000137000000c"),
    (Byte(-1), "51 ff"),
    (Short(-2), "61 fffe"),
    (Int(-128), "54 80"),
    (Int(127), "54 7f"),
    (Int(128), "71 00000080"),
    (-128, "55 80"),
    (127, "55 7f"),
    (128, "81 0000000000000080"),
    (-129, "81 ffffffffffffff7f"),
    (Float32(1.5), "72 3fc00000"),
    (1.5, "82 3ff8000000000000"),
    (Decimal32(b"abcd"), "74 61626364"),
    (Decimal64(b"abcdefgh"), "84 6162636465666768"),
    (Decimal128(b"0123456789abcdef"), "94 30313233343536373839616263646566"),
    (Char("é"), "73 000000e9"),
    (Timestamp(-1), "83 ffffffffffffffff"),
    (A_UUID, "98 00112233445566778899aabbccddeeff"),
    (b"ab", "a0 02 6162"),
    ("é", "a1 02 c3a9"),
    (Symbol("ab"), "a3 02 6162"),
    ([], "45"),
    ([None, True], "c0 03 02 40 41"),
    ({}, "c1 01 00"),
    ({Symbol("k"): 1}, "c1 06 02 a3 01 6b 55 01"),
    (AmqpArray(0xA3, [Symbol("a"), Symbol("bc")]), "e0 07 02 a3 01 61 02 6263"),
    (AmqpArray(0x70, []), "e0 02 00 70"),
    (AmqpArray(0x41, [True, True]), "e0 02 02 41"),
    (AmqpArray(0x50, [UByte(7)], (Symbol("a:b"),)), "e0 09 01 00 a3 03 613a62 50 07"),
    (Described(ULong(0x24), []), "00 53 24 45"),
    (Described(Symbol("a"), Described(ULong(1), None)), "00 a3 01 61 00 53 01 40"),
]


@pytest.mark.parametrize(("value", "wire"), SHORTEST, ids=lambda part: repr(part)[:40])
def test_a_value_is_written_in_its_shortest_form_and_read_back(value: object, wire: str) -> None:
    data = bytes.fromhex(wire)
    assert encode(value) == data
    assert decode(data) == (value, len(data))
    assert type(decode(data)[0]) is type(value)
    assert skip(data) == len(data)


LONGER = [
    ("56 01", True),
    ("56 00", False),
    ("70 00000001", UInt(1)),
    ("80 0000000000000001", ULong(1)),
    ("71 ffffffff", Int(-1)),
    ("81 ffffffffffffffff", -1),
    ("b0 00000002 6162", b"ab"),
    ("b1 00000002 c3a9", "é"),
    ("b3 00000002 6162", Symbol("ab")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000006 00000002 40 41", [None, True]),
    ("d1 00000009 00000002 a3 01 6b 55 01", {Symbol("k"): 1}),
    ("f0 00000007 00000002 55 ff 01", AmqpArray(0x55, [-1, 1])),
]


@pytest.mark.parametrize(("wire", "value"), LONGER)
def test_a_longer_form_of_a_value_reads_the_same(wire: str, value: object) -> None:
    data = bytes.fromhex(wire)
    assert decode(data) == (value, len(data))
    assert type(decode(data)[0]) is type(value)
    assert skip(data) == len(data)


@pytest.mark.parametrize("size", [255, 256])
@pytest.mark.parametrize("make", [lambda n: b"x" * n, lambda n: "x" * n, lambda n: [None] * n])
def test_a_value_takes_the_wide_form_when_it_outgrows_the_small_one(size, make) -> None:  # type: ignore[no-untyped-def]
    value = make(size)
    data = encode(value)
    assert decode(data) == (value, len(data))


def test_a_long_by_name_is_written_as_a_plain_int_is() -> None:
    assert encode(Long(5)) == encode(5)
    assert encode(Long(1 << 40)) == encode(1 << 40)


@pytest.mark.parametrize(
    "array",
    [
        AmqpArray(0x40, [None] * ZERO_WIDTH_ITEMS_MAX),
        AmqpArray(0x42, [False]),
        AmqpArray(0x43, [UInt(0)]),
        AmqpArray(0x44, [ULong(0)]),
        AmqpArray(0x45, [[], []]),
        AmqpArray(0x50, [UByte(1)]),
        AmqpArray(0x51, [Byte(-1)]),
        AmqpArray(0x52, [UInt(1)]),
        AmqpArray(0x53, [ULong(1)]),
        AmqpArray(0x54, [Int(-1)]),
        AmqpArray(0x55, [-1]),
        AmqpArray(0x56, [True, False]),
        AmqpArray(0x60, [UShort(1)]),
        AmqpArray(0x61, [Short(-1)]),
        AmqpArray(0x70, [UInt(1), UInt(2)]),
        AmqpArray(0x71, [Int(1)]),
        AmqpArray(0x72, [Float32(0.5)]),
        AmqpArray(0x73, [Char("x")]),
        AmqpArray(0x74, [Decimal32(b"abcd")]),
        AmqpArray(0x80, [ULong(1)]),
        AmqpArray(0x81, list(range(300))),
        AmqpArray(0x82, [0.5]),
        AmqpArray(0x83, [Timestamp(1)]),
        AmqpArray(0x84, [Decimal64(b"abcdefgh")]),
        AmqpArray(0x94, [Decimal128(b"0123456789abcdef")]),
        AmqpArray(0x98, [A_UUID, A_UUID]),
        AmqpArray(0xA0, [b"", b"a"]),
        AmqpArray(0xA1, ["é"]),
        AmqpArray(0xA3, [Symbol("s")]),
        AmqpArray(0xB0, [b"a" * 300]),
        AmqpArray(0xB1, ["a" * 300]),
        AmqpArray(0xB3, [Symbol("a" * 300)]),
        AmqpArray(0xC0, [[1], [None, []]]),
        AmqpArray(0xC1, [{"a": 1}, {}]),
        AmqpArray(0xD0, [[1], [None] * 300]),
        AmqpArray(0xD1, [{"a": 1}]),
        AmqpArray(0xE0, [AmqpArray(0x50, [UByte(1)])]),
        AmqpArray(0xF0, [AmqpArray(0x50, [UByte(1)] * 300)]),
        AmqpArray(0xC0, [[1]], (ULong(0x28), Symbol("inner"))),
    ],
    ids=lambda array: f"{array.code:#04x}",
)
def test_an_array_of_every_type_is_read_back_as_it_was(array: AmqpArray) -> None:
    data = encode(array)
    value, end = decode(data)
    assert value == array
    assert end == len(data) == skip(data)
    assert isinstance(value, AmqpArray)
    assert [type(item) for item in value.items] == [type(item) for item in array.items]


def test_decoding_starts_at_the_offset_and_says_where_it_ended() -> None:
    data = b"\xff" + encode("ab") + b"\xff"
    assert decode(data, 1) == ("ab", 5)
    assert skip(data, 1) == 5


MALFORMED = {
    "nothing at all": "",
    "an unknown constructor": "46",
    "a constructor of a future": "fe",
    "a boolean of value 2": "56 02",
    "a missing byte": "50",
    "a short ushort": "60 01",
    "a short short": "61 01",
    "a short uint": "70 000001",
    "a short int": "71 000001",
    "a short float": "72 000001",
    "a short char": "73 000001",
    "a short decimal32": "74 000001",
    "a short ulong": "80 00",
    "a short long": "81 00",
    "a short double": "82 00",
    "a short timestamp": "83 00",
    "a short decimal64": "84 00",
    "a short decimal128": "94 00",
    "a short uuid": "98 0011",
    "a surrogate as char": "73 0000d800",
    "a char beyond unicode": "73 00110000",
    "a binary cut short": "a0 05 61",
    "a binary32 cut short": "b0 7fffffff 61",
    "a binary without size": "a0",
    "a string that is not utf-8": "a1 01 ff",
    "a long string that is not utf-8": "b1 00000001 ff",
    "a symbol that is not ascii": "a3 02 c3a9",
    "a long symbol that is not ascii": "b3 00000002 c3a9",
    "a list without count": "c0 00",
    "a list32 without count": "d0 00000003 00000000",
    "a list cut short": "c0 05 01 40",
    "a list of more items than bytes": "c0 02 ff 40",
    "a list32 of four billion items": "d0 00000005 ffffffff 40",
    "a list that ends before its items": "c0 02 01 50 01 40",
    "a list that ends after its items": "c0 03 01 40 40",
    "a map of an odd count": "c1 02 01 40",
    "a map32 of four billion": "d1 00000004 fffffffe",
    "a map with a key twice": "c1 05 04 40 41 40 41",
    "a map whose keys are equal here": "c1 07 04 52 01 40 55 01 40",
    "a map with a list for key": "c1 03 02 45 40",
    "a map with a described list for key": "c1 06 02 00 53 01 45 40",
    "an array without constructor": "e0 01 00",
    "an array of unknown constructors": "e0 03 01 46 00",
    "an empty array of unknown constructors": "e0 02 00 46",
    "an array of four billion nulls": "f0 00000005 ffffffff 40",
    "an array of too many nulls": f"e0 02 {ZERO_WIDTH_ITEMS_MAX + 1:02x} 40",
    "an array of described nulls": "f0 00000008 ffffffff 00 53 01 40",
    "an array of more items than bytes": "e0 03 ff 50 01",
    "an array that ends before its items": "e0 02 01 50 01",
    "an array of described items": "e0 06 01 00 53 01 00 40",
    "a descriptor without value": "00 53 01",
    "a descriptor without end": "00 00 00",
}


@pytest.mark.parametrize("wire", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_bytes_are_a_decode_error(wire: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(bytes.fromhex(wire))
    assert caught.value.condition == "amqp:decode-error"
    assert caught.value.scope == "connection"


@pytest.mark.parametrize("wire", ["", "46", "a0", "b0 00", "50", "a0 02 61", "00 53", "00 53 01"])
def test_what_cannot_be_skipped_is_a_decode_error(wire: str) -> None:
    with pytest.raises(DecodeError):
        skip(bytes.fromhex(wire))


def nested(depth: int) -> bytes:
    data = b"\x40"
    for _ in range(depth):
        data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
    return data


def test_nesting_is_bounded() -> None:
    assert decode(nested(NESTING_MAX))[1] == len(nested(NESTING_MAX))
    with pytest.raises(DecodeError, match="nested"):
        decode(nested(NESTING_MAX + 1))
    with pytest.raises(DecodeError, match="nested"):
        decode(b"\x00" * 100_000)


def test_descriptors_without_end_are_not_followed_to_their_end() -> None:
    """A message could consist of nothing else."""
    for endless in (b"\x00" * 100_000, b"\x00\x40" * 100_000 + b"\x40"):
        with pytest.raises(DecodeError, match="more than 64 descriptors"):
            skip(endless)
    assert skip(b"\x00" * DESCRIPTORS_MAX + b"\x40" * (DESCRIPTORS_MAX + 1)) == 129


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (None, 1),
        ("a text", 1),
        ([1, [2, 3], {"a": "b"}], 8),
        ({"a": [], "b": None}, 5),
        (Described(Symbol("x"), [1]), 4),
        (AmqpArray(0x71, [Int(n) for n in range(300)]), 301),
    ],
)
def test_values_are_counted_without_being_built(value: object, values: int) -> None:
    data = encode(value)
    assert has_more_values(data, 0, len(data), values - 1)
    assert not has_more_values(data, 0, len(data), values)


def test_values_that_are_only_claimed_count_as_well() -> None:
    claim = bytes.fromhex("f0 00000005 ffffffff 40")
    assert has_more_values(claim, 0, len(claim), 1_000_000)
    nested = b"\xf0" + (1_004).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\xc0" + bytes(999)
    assert has_more_values(nested, 0, len(nested), 900)


@pytest.mark.parametrize(
    "wire",
    ["d0 7fffffff ffffffff", "d1 7fffffff fffffffe", "f0 7fffffff ffffffff 40", "b0 ffffffff"],
)
def test_a_claim_of_gigabytes_allocates_nothing(wire: str) -> None:
    data = bytes.fromhex(wire)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UShort(-1),
        UInt(1 << 32),
        UInt(-1),
        ULong(1 << 64),
        ULong(-1),
        Byte(128),
        Short(1 << 15),
        Int(1 << 31),
        1 << 63,
        -(1 << 63) - 1,
        Timestamp(1 << 63),
        Float32(1e300),
        Char("ab"),
        Char(""),
        Char("\ud800"),
        Decimal32(b"abc"),
        Symbol("é"),
        "\ud800",
        AmqpArray(0x46, [None]),
        AmqpArray(0x41, [False]),
        AmqpArray(0x40, [None] * (ZERO_WIDTH_ITEMS_MAX + 1)),
        AmqpArray(0x52, [UInt(256)]),
        AmqpArray(0xA0, [b"a" * 256]),
        AmqpArray(0xC0, [[None] * 256]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_out_of_its_range_is_our_mistake(value: object) -> None:
    with pytest.raises(ValueError, match=r"range|character|bytes|codec|array|constructor"):
        encode(value)


def test_a_value_of_no_amqp_type_is_our_mistake() -> None:
    with pytest.raises(TypeError, match="set"):
        encode({1, 2})


def test_an_encodable_must_say_how_it_is_encoded() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Encodable()  # type: ignore[abstract]


def test_described_values_compare_and_hash_by_content() -> None:
    one, same, other = (Described(Symbol("d"), n) for n in (1, 1, 2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "d"
    assert repr(one) == "Described('d', 1)"


def test_arrays_compare_by_content_and_do_not_hash() -> None:
    array = AmqpArray(0x50, [UByte(1)])
    assert array == AmqpArray(0x50, [UByte(1)])
    assert array != AmqpArray(0x50, [UByte(2)])
    assert array != [UByte(1)]
    assert repr(array) == "AmqpArray(0x50, [1])"
    assert repr(AmqpArray(0x50, [], ("d",))) == "AmqpArray(0x50, [], descriptors=('d',))"
    with pytest.raises(TypeError):
        hash(array)

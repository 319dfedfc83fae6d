"""Round trips of every type, and bytes of every kind."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from postbus.amqp.codec import decode, encode, skip
from postbus.amqp.faults import DecodeError
from tests.property.amqp.values import damaged, same, scalars, spellings, values

encoded = values.map(encode)


@given(scalars | values)
def test_what_was_encoded_is_decoded_with_its_type(value: Any) -> None:
    data = encode(value)
    decoded, end = decode(data)
    assert end == len(data)
    assert same(decoded, value)
    assert encode(decoded) == data


@given(st.data())
def test_every_spelling_of_a_value_reads_the_same(data: st.DataObject) -> None:
    value = data.draw(values)
    spelled = data.draw(spellings(value))
    decoded, end = decode(spelled)
    assert end == len(spelled) == skip(spelled)
    assert same(decoded, value)


@given(values, st.binary(max_size=20), st.binary(max_size=20))
def test_a_value_ends_where_it_ends(value: Any, before: bytes, after: bytes) -> None:
    data = encode(value)
    decoded, end = decode(before + data + after, len(before))
    assert end == len(before) + len(data) == skip(before + data + after, len(before))
    assert same(decoded, value)


@given(values)
def test_no_part_of_a_value_is_taken_for_the_whole(value: Any) -> None:
    data = encode(value)
    for size in range(len(data)):
        for attempt in (decode, skip):
            try:
                attempt(data[:size])
            except DecodeError:
                continue
            raise AssertionError(f"{size} of {len(data)} bytes were enough for {attempt.__name__}")


@given(st.binary(max_size=200) | damaged(encoded))
def test_whatever_the_bytes_are_only_a_decode_error_is_raised(data: bytes) -> None:
    try:
        skipped = skip(data)
    except DecodeError:
        skipped = -1
    try:
        decoded, end = decode(data)
    except DecodeError:
        return
    assert end == skipped
    assert same(decode(encode(decoded))[0], decoded) or "nan" in repr(decoded)


@settings(max_examples=50)
@given(st.binary(max_size=2000) | damaged(encoded))
def test_memory_stays_in_proportion_to_the_bytes(data: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(DecodeError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000 + 200 * len(data)

"""Messages of every shape: scanned, read, damaged."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.codec import decode
from postbus.amqp.codec.types import Described, ULong
from postbus.amqp.faults import DecodeError, ProtocolError
from postbus.amqp.frames.composites import build
from postbus.amqp.sections import (
    Header,
    Properties,
    Sections,
    compacted,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_delivery_annotations,
    encode_header,
    encode_message_annotations,
    encode_properties,
    encode_sequence,
    read_annotations,
    read_application_properties,
    read_data,
    read_delivery_annotations,
    read_header,
    read_ids,
    read_properties,
    read_value,
    scan,
    split_batch,
)
from postbus.amqp.sections.scanning import scan_plainly
from tests.property.amqp.composites import instances, spelled
from tests.property.amqp.values import damaged, maps, texts, values

headers = instances(Header)
properties = instances(Properties)
bodies = st.one_of(
    values.map(encode_amqp_value),
    st.lists(st.binary(max_size=300).map(encode_data), min_size=1, max_size=3).map(b"".join),
    st.lists(st.lists(values, max_size=3).map(encode_sequence), min_size=1, max_size=2).map(
        b"".join
    ),
)
footers = maps.map(lambda entries: b"\x00\x53\x78" + encode_amqp_value(entries)[3:])


def maybe(section: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.just(b"") | section


messages = st.tuples(
    maybe(headers.flatmap(spelled)),
    maybe(maps.map(encode_delivery_annotations)),
    maybe(maps.map(encode_message_annotations)),
    maybe(properties.flatmap(spelled)),
    maybe(st.dictionaries(texts, values, max_size=3).map(encode_application_properties)),
    maybe(bodies),
    maybe(footers),
)
payloads = messages.map(b"".join)


def starts(sections: Sections) -> tuple[Any, ...]:
    return (
        0,
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
        sections.end,
    )


@given(messages)
def test_each_section_is_found_where_it_was_put(parts: tuple[bytes, ...]) -> None:
    payload = b"".join(parts)
    sections = scan(payload)
    found = tuple(payload[a:b] for a, b in pairwise(starts(sections)))
    assert found == parts
    assert sections.compact == all(part[1:2] in (b"", b"\x53") for part in parts)


@given(payloads | damaged(payloads) | st.binary(max_size=100))
def test_the_scan_by_hand_finds_what_the_plain_one_finds(payload: bytes) -> None:
    try:
        expected = starts(scan_plainly(payload))
    except DecodeError as error:
        expected = (error.text,)
    try:
        found = starts(scan(payload))
    except DecodeError as error:
        found = (error.text,)
    assert found == expected


@given(damaged(payloads) | st.binary(max_size=100))
def test_whatever_the_bytes_are_only_a_protocol_error_is_raised(payload: bytes) -> None:
    try:
        sections = scan(payload)
    except DecodeError:
        return
    for reader in (
        read_header,
        read_delivery_annotations,
        read_annotations,
        read_properties,
        read_ids,
        read_application_properties,
        read_value,
        read_data,
    ):
        with contextlib.suppress(ProtocolError):
            reader(payload, sections)
    with contextlib.suppress(ProtocolError):
        split_batch(payload, 10)


@given(payloads)
def test_a_compacted_message_says_the_same_in_short_descriptors(payload: bytes) -> None:
    short = compacted(payload)
    sections = scan(short)
    assert sections.compact
    assert _values(short) == _values(payload)


def _values(payload: bytes) -> list[object]:
    out: list[object] = []
    offset = 0
    while offset < len(payload):
        value, offset = decode(payload, offset)
        assert isinstance(value, Described)
        out.append(value.value)
    return out


@given(st.data(), headers)
def test_a_header_is_read_by_hand_as_plainly(data: st.DataObject, header: Header) -> None:
    sound = spelled(header)
    payload = data.draw(sound | damaged(sound))
    try:
        sections = scan(payload)
        described, _ = decode(payload)
    except DecodeError:
        return
    if sections.delivery_annotations != len(payload) or not payload:
        return
    assert isinstance(described, Described)
    try:
        expected = build(Header, described.value)
    except DecodeError:
        expected = None
    try:
        found = read_header(payload, sections)
    except DecodeError:
        found = None
    assert found == expected


@given(st.data(), properties)
def test_the_ids_are_those_of_the_properties(data: st.DataObject, written: Properties) -> None:
    payload = data.draw(spelled(written)) + encode_data(b"")
    sections = scan(payload)
    assert read_properties(payload, sections) == written
    assert read_ids(payload, sections) == (written.message_id, written.group_id)


@given(headers)
def test_a_header_section_reads_back(header: Header) -> None:
    payload = encode_header(
        header.durable, header.priority, header.ttl, header.first_acquirer, header.delivery_count
    )
    assert read_header(payload, scan(payload)) == header


@given(properties, maps, st.binary(max_size=300))
def test_what_the_writers_write_the_readers_read(
    written: Properties, entries: dict[Any, Any], data: bytes
) -> None:
    payload = encode_message_annotations(entries) + encode_properties(written) + encode_data(data)
    sections = scan(payload)
    assert read_annotations(payload, sections) == entries
    assert read_properties(payload, sections) == written
    assert read_data(payload, sections) == data


@given(st.lists(payloads, max_size=5), st.integers(0, 5))
def test_a_batch_holds_its_messages_or_is_refused_as_too_many(
    inner: list[bytes], count_max: int
) -> None:
    batch = encode_properties(Properties(message_id=ULong(1))) + b"".join(map(encode_data, inner))
    try:
        assert split_batch(batch, count_max) == inner
        assert len(inner) <= count_max
    except ProtocolError:
        assert len(inner) > count_max

"""Messages taken apart without decoding them, and put together."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from postbus.amqp.codec.types import Described, Long, Symbol, Timestamp, ULong
from postbus.amqp.faults import DecodeError, MessageSizeExceeded
from postbus.amqp.sections import (
    AnnotationLayout,
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

# A message recorded from azure-servicebus 7.15.
SDK_MESSAGE = bytes.fromhex(
    "005370c006054040404040005372c11902a313782d6f70742d706172746974696f6e2d6b6579a0016b"
    "005373c01d0da1036d2d314040404040a30a746578742f706c61696e404040404040"
    "005374c10c04a10161a10162a1016e5405005375a00568656c6c6f"
)
ALL_PROPERTIES = Properties(
    message_id="m-1",
    user_id=b"user",
    to="to",
    subject="subject",
    reply_to="reply",
    correlation_id=UUID(int=5),
    content_type=Symbol("text/plain"),
    content_encoding=Symbol("gzip"),
    absolute_expiry_time=Timestamp(1),
    creation_time=Timestamp(2),
    group_id="session",
    group_sequence=3,
    reply_to_group_id="other",
)
FOOTER = b"\x00\x53\x78\xc1\x01\x00"


def positions(sections: Sections) -> tuple[int, ...]:
    return (
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
        sections.end,
    )


def test_the_sections_of_an_sdk_message_are_found_and_read() -> None:
    sections = scan(SDK_MESSAGE)
    assert positions(sections) == (11, 11, 41, 75, 92, 102, 102)
    assert sections.compact
    assert read_header(SDK_MESSAGE, sections) == Header()
    assert read_delivery_annotations(SDK_MESSAGE, sections) == {}
    assert read_annotations(SDK_MESSAGE, sections) == {"x-opt-partition-key": b"k"}
    assert read_properties(SDK_MESSAGE, sections) == Properties(
        message_id="m-1", content_type="text/plain"
    )
    assert read_ids(SDK_MESSAGE, sections) == ("m-1", None)
    assert read_application_properties(SDK_MESSAGE, sections) == {"a": "b", "n": 5}
    assert read_data(SDK_MESSAGE, sections) == b"hello"


def test_a_message_with_every_section_is_read_back() -> None:
    parts = [
        encode_header(True, 9, 60_000, True, 3),
        encode_delivery_annotations({Symbol("x-opt-lock-token"): UUID(int=1)}),
        encode_message_annotations({Symbol("x-opt-sequence-number"): 1 << 40}),
        encode_properties(ALL_PROPERTIES),
        encode_application_properties({"key": Described(Symbol("com.microsoft:timespan"), 5)}),
        encode_amqp_value([1, "two"]),
        FOOTER,
    ]
    payload = b"".join(parts)
    sections = scan(payload)
    starts = [sum(map(len, parts[:count])) for count in range(1, 8)]
    assert positions(sections) == tuple(starts)
    assert read_header(payload, sections) == Header(True, 9, 60_000, True, 3)
    assert read_delivery_annotations(payload, sections) == {"x-opt-lock-token": UUID(int=1)}
    assert read_annotations(payload, sections) == {"x-opt-sequence-number": 1 << 40}
    assert read_properties(payload, sections) == ALL_PROPERTIES
    assert read_ids(payload, sections) == ("m-1", "session")
    assert read_application_properties(payload, sections) == {
        "key": Described(Symbol("com.microsoft:timespan"), 5)
    }
    assert read_value(payload, sections) == [1, "two"]


@pytest.mark.parametrize("payload", [b"", FOOTER, encode_header()])
def test_a_message_without_a_body_is_let_through(payload: bytes) -> None:
    sections = scan(payload)
    assert sections.body == sections.footer
    assert read_data(payload, sections) == b""
    with pytest.raises(DecodeError, match="amqp-value"):
        read_value(payload, sections)


def test_sections_that_are_absent_read_as_empty() -> None:
    payload = encode_data(b"x")
    sections = scan(payload)
    assert positions(sections) == (0, 0, 0, 0, 0, len(payload), len(payload))
    assert read_header(payload, sections) == Header(None, None, None, None, 0)
    assert read_properties(payload, sections) == Properties()
    assert read_ids(payload, sections) == (None, None)
    assert read_application_properties(payload, sections) == {}


@pytest.mark.parametrize(
    "body",
    [
        encode_data(b"one") + encode_data(b"t" * 300),
        encode_sequence([1]) + encode_sequence([]),
        encode_amqp_value(None),
        encode_amqp_value("text"),
        encode_amqp_value({}),
        encode_amqp_value(True),
    ],
)
@pytest.mark.parametrize("footer", [b"", FOOTER])
def test_a_body_is_one_value_or_one_kind_repeated(body: bytes, footer: bytes) -> None:
    payload = encode_header() + body + footer
    sections = scan(payload)
    assert payload[sections.body : sections.footer] == body
    assert payload[sections.footer : sections.end] == footer


@pytest.mark.parametrize(
    "parts",
    [
        (encode_data(b""), encode_header()),
        (encode_data(b""), encode_sequence([])),
        (encode_sequence([]), encode_amqp_value(1)),
        (encode_amqp_value(1), encode_amqp_value(1)),
        (encode_header(), encode_header()),
        (encode_properties(Properties()), encode_message_annotations({})),
        (FOOTER, encode_data(b"")),
        (FOOTER, FOOTER),
    ],
)
def test_sections_out_of_order_are_refused(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(DecodeError, match="after section"):
        scan(b"".join(parts))


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        ("40", "starts with 0x40"),
        ("00", "runs past the end"),
        ("00 53", "runs past the end"),
        ("00 53 75", "runs past the end"),
        ("00 53 75 a0", "runs past the end"),
        ("00 53 75 b0 00", "runs past the end"),
        ("00 53 75 a0 02 61", "runs past the end"),
        ("00 53 70 c1 01 00", "wrong type"),
        ("00 53 72 45", "wrong type"),
        ("00 53 75 a1 00", "wrong type"),
        ("00 53 79 45", "no message section has the descriptor 121"),
        ("00 a3 01 61 45", "no message section has the descriptor 'a'"),
        ("00 a1 01 61 45", "no message section"),
        ("00 53 75 a0 00 40", "starts with 0x40"),
        ("00 53 70 45 00 53 75", "runs past the end"),
    ],
)
def test_what_is_no_message_is_refused(wire: str, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        scan(bytes.fromhex(wire))


def test_long_descriptors_are_understood_and_can_be_shortened() -> None:
    long_ones = [
        b"\x00\x80" + bytes(7) + b"\x70\x45",
        b"\x00\xa3\x14amqp:properties:list\xc0\x04\x01\xa1\x01m",
        b"\x00\x80" + bytes(7) + b"\x75\xa0\x01d",
        b"\x00\x80" + bytes(7) + b"\x75\xb0\x00\x00\x00\x01e",
    ]
    payload = b"".join(long_ones)
    sections = scan(payload)
    assert not sections.compact
    assert read_header(payload, sections) == Header()
    assert read_ids(payload, sections) == ("m", None)
    assert read_data(payload, sections) == b"de"
    short = compacted(payload)
    assert (
        short
        == bytes.fromhex("005370 45 005373 c0 04 01 a1 01 6d")
        + encode_data(b"d")
        + b"\x00\x53\x75\xb0\x00\x00\x00\x01e"
    )
    assert scan(short).compact
    assert compacted(short) == short


@pytest.mark.parametrize(
    ("wire", "header"),
    [
        ("45", Header()),
        ("c0 01 00", Header()),
        ("c0 03 02 41 40", Header(durable=True)),
        ("c0 04 02 56 01 40", Header(durable=True)),
        ("c0 05 04 42 40 40 42", Header(durable=False, first_acquirer=False)),
        ("c0 04 02 40 50 04", Header(priority=4)),
        ("c0 08 05 42 50 07 52 09 41 43", Header(False, 7, 9, True, 0)),
        ("c0 0b 05 40 40 70 ffffffff 40 52 02", Header(ttl=0xFFFFFFFF, delivery_count=2)),
        ("d0 00000006 00000002 41 40", Header(durable=True)),
    ],
)
def test_a_header_is_read_in_any_of_its_forms(wire: str, header: Header) -> None:
    payload = bytes.fromhex("005370" + wire)
    assert read_header(payload, scan(payload)) == header


@pytest.mark.parametrize(
    "wire",
    ["c0 00", "c0 03 01 40 41", "c0 03 02 40 41", "c0 03 02 40", "c0 07 06 40 40 40 40 40 40"],
)
def test_a_header_that_makes_no_sense_is_refused_when_it_is_read(wire: str) -> None:
    payload = bytes.fromhex("005370" + wire)
    sections = Sections(len(payload), *(len(payload),) * 6, True)
    with pytest.raises(DecodeError):
        read_header(payload, sections)


@pytest.mark.parametrize(
    ("message_id", "group_id"),
    [
        (None, None),
        ("text", "session"),
        (UUID(int=7), ""),
        (ULong(1), "s"),
        (b"binary", None),
        ("m" * 300, "g" * 300),
    ],
)
def test_the_ids_are_found_whatever_stands_between_them(message_id: Any, group_id: Any) -> None:
    for others in ({}, {"subject": "s", "creation_time": 5, "reply_to_group_id": "r" * 300}):
        properties = Properties(message_id=message_id, group_id=group_id, **others)  # type: ignore[arg-type]
        payload = encode_properties(properties)
        sections = scan(payload)
        found = read_ids(payload, sections)
        assert found == (message_id, group_id)
        assert type(found[0]) is type(message_id)


@pytest.mark.parametrize(
    "wire",
    [
        "c0 03 01 52 01",
        "c0 0d 0b 40 40 40 40 40 40 40 40 40 40 45",
        "c0 02 0d 40",
        "c0 01 ff",
        "c0 00",
        "d0 00000004 0000000e",
        "d0 00",
        "c0 02 01 a1",
    ],
)
def test_properties_that_make_no_sense_are_refused_when_they_are_read(wire: str) -> None:
    payload = bytes.fromhex("005373" + wire)
    sections = Sections(0, 0, 0, *(len(payload),) * 4, True)
    with pytest.raises(DecodeError):
        read_ids(payload, sections)
    with pytest.raises(DecodeError):
        read_properties(payload, sections)


def test_ids_beyond_the_end_of_the_properties_are_not_read() -> None:
    payload = bytes.fromhex("005373 c0 02 01 a1") + encode_data(b"x" * 100)
    sections = scan(payload)
    with pytest.raises(DecodeError):
        read_ids(payload, sections)


def test_data_is_not_read_from_a_body_of_another_kind() -> None:
    payload = encode_amqp_value(b"x")
    with pytest.raises(DecodeError, match="data sections"):
        read_data(payload, scan(payload))
    payload = encode_data(b"x")
    with pytest.raises(DecodeError, match="amqp-value"):
        read_value(payload, scan(payload))


def test_a_batch_is_split_into_its_messages() -> None:
    messages = [SDK_MESSAGE, b"", SDK_MESSAGE * 3]
    envelope = encode_properties(Properties(message_id="m-1"))
    payload = envelope + b"".join(map(encode_data, messages)) + FOOTER
    assert split_batch(payload, 3) == messages
    assert split_batch(envelope, 3) == []
    with pytest.raises(MessageSizeExceeded, match="more than 2") as caught:
        split_batch(payload, 2)
    assert caught.value.scope == "link"


def test_a_batch_of_anything_but_data_is_refused() -> None:
    with pytest.raises(DecodeError, match="data sections"):
        split_batch(encode_amqp_value("x"), 10)


@pytest.mark.parametrize(
    ("header", "wire"),
    [
        (encode_header(), "005370 c0 06 05 40 40 40 40 43"),
        (encode_header(False, 4, 1, False, 2), "005370 c0 0f 05 42 5004 7000000001 42 7000000002"),
    ],
)
def test_a_header_always_says_its_delivery_count(header: bytes, wire: str) -> None:
    assert header == bytes.fromhex(wire)


@pytest.mark.parametrize(
    "fields", [{"priority": 256}, {"ttl": 1 << 32}, {"ttl": -1}, {"delivery_count": -1}]
)
def test_header_fields_out_of_range_are_our_mistake(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="range"):
        encode_header(**fields)


@pytest.mark.parametrize("others", [None, {}, {Symbol("x-opt-partition-key"): "k" * 300}])
def test_annotations_in_a_known_layout_read_as_a_map(others: dict[Any, Any] | None) -> None:
    layout = AnnotationLayout(("x-opt-enqueued-time", Timestamp), ("x-opt-sequence-number", Long))
    payload = layout.encode((1_700_000_000_000, 5), others)
    annotations = read_annotations(payload, scan(payload))
    assert annotations == {
        "x-opt-enqueued-time": 1_700_000_000_000,
        "x-opt-sequence-number": 5,
        **(others or {}),
    }
    assert type(annotations["x-opt-enqueued-time"]) is Timestamp
    assert type(annotations["x-opt-sequence-number"]) is int


def test_a_wrong_value_for_a_known_layout_is_our_mistake() -> None:
    layout = AnnotationLayout(("x-opt-sequence-number", Long))
    with pytest.raises(ValueError, match="range"):
        layout.encode((1 << 63,))
    with pytest.raises(ValueError, match="size"):
        layout.encode((1, 2))

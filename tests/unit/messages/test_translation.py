"""Plain messages to AMQP's form and back."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.codec.types import (
    AmqpArray,
    Byte,
    Char,
    Decimal128,
    Described,
    Float32,
    Int,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_message_annotations,
    encode_properties,
    encode_sequence,
    read_application_properties,
    read_data,
    scan,
)
from postbus.broker.message import Message
from postbus.errors import InvalidOperation, MessageSizeExceeded
from postbus.messages.envelope import read_message
from postbus.messages.plain_values import JSON, TEXT
from postbus.messages.translation import encode_plain, to_message, to_received
from postbus.model.plain_message import (
    MessageState,
    Moment,
    PlainMessage,
    PropertyValue,
    ReceivedMessage,
)

T0 = 1_700_000_000_123


def delivered(message: Message) -> ReceivedMessage:
    """As if it had been enqueued and taken."""
    assert message.raw is not None
    message.number = message.enqueue_number = 7
    message.enqueued_at = T0
    return to_received(message, message.raw)


def there_and_back(plain: PlainMessage) -> PlainMessage:
    return delivered(to_message(plain, 10_000)).message


def received(*sections: bytes) -> ReceivedMessage:
    """What a receiver is given of a message that came over AMQP."""
    return delivered(read_message(b"".join(sections), 10_000))


texts = st.text(max_size=20)
values = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.integers(0, 4_000_000_000_000).map(Moment)
)
symbols = st.text("abc/;=.-", min_size=1, max_size=10)


@given(
    st.builds(
        PlainMessage,
        body=st.binary(max_size=300),
        content_type=st.none() | symbols,
        content_encoding=st.none() | symbols,
        message_id=st.text(min_size=1, max_size=20),
        correlation_id=st.none() | texts,
        label=st.none() | texts,
        to=st.none() | texts,
        reply_to=st.none() | texts,
        session_id=st.none(),
        reply_to_session_id=st.none() | texts,
        partition_key=st.none() | texts,
        via_partition_key=st.none() | texts,
        force_persistence=st.booleans(),
        time_to_live_ms=st.none() | st.integers(1, 10**12),
        scheduled_at=st.none() | st.integers(1, 10**13),
        properties=st.dictionaries(texts, values, max_size=5),
    )
)
def test_a_plain_message_comes_out_as_it_went_in(plain: PlainMessage) -> None:
    assert there_and_back(plain) == plain


def test_a_session_and_its_partition_key_are_one() -> None:
    plain = PlainMessage(message_id="m", session_id="s", partition_key="s")
    assert there_and_back(plain) == plain
    with pytest.raises(InvalidOperation):
        to_message(PlainMessage(session_id="s", partition_key="p"), 1_000)


def test_a_message_without_an_id_is_given_one() -> None:
    message = to_message(PlainMessage(b"x"), 1_000)
    assert len(message.message_id) == 32
    assert int(message.message_id, 16) >= 0
    assert delivered(message).message.message_id == message.message_id


def test_numbers_and_dates_have_the_types_that_filters_expect() -> None:
    properties: dict[str, PropertyValue] = {
        "small": 42,
        "large": 8_555_111_000,
        "float": 3.5,
        "date": Moment(T0),
        "yes": True,
    }
    payload = encode_plain(PlainMessage(b"tea", properties=properties))
    sections = scan(payload)
    found = read_application_properties(payload, sections)
    assert found == properties
    assert [type(value) for value in found.values()] == [Int, int, float, Timestamp, bool]
    assert read_data(payload, sections) == b"tea"


def test_a_property_that_is_too_large_is_refused() -> None:
    with pytest.raises(MessageSizeExceeded, match="'big'"):
        to_message(PlainMessage(properties={"big": "x" * 2_000}), 1_000)


def test_a_time_to_live_is_longer_than_a_header_could_say() -> None:
    assert to_message(PlainMessage(time_to_live_ms=1 << 40), 1_000).ttl == 1 << 40


def test_what_the_broker_knows_is_told() -> None:
    message = to_message(PlainMessage(b"x", message_id="m"), 1_000)
    message.token = bytes(range(16))
    message.locked_until = T0 + 30_000
    message.delivery_count = 2
    message.reason, message.description = "why", "because"
    message.source = "elsewhere"
    found = delivered(message)
    assert (found.number, found.enqueue_number, found.enqueued_at, found.failures) == (7, 7, T0, 2)
    assert found.state is MessageState.ACTIVE
    assert found.token == UUID(bytes_le=bytes(range(16)))
    assert found.locked_until == T0 + 30_000
    assert found.dead_letter_source == "elsewhere"
    assert found.message.properties == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "because",
    }


@pytest.mark.parametrize(
    ("sections", "body", "body_type"),
    [
        ([encode_data(b"a"), encode_data(b"b")], b"ab", None),
        ([encode_amqp_value("tea é")], "tea é".encode(), TEXT),
        ([encode_amqp_value(b"\x00\xff")], b"\x00\xff", None),
        ([encode_amqp_value(None)], b"null", JSON),
        ([encode_amqp_value(42)], b"42", JSON),
        ([encode_amqp_value({"a": [1, 2.5, None, True]})], b'{"a":[1,2.5,null,true]}', JSON),
        ([encode_amqp_value({Symbol("k"): UUID(int=1)})], None, JSON),
        ([encode_amqp_value({1: Timestamp(T0)})], b'{"1":"2023-11-14T22:13:20.123Z"}', JSON),
        ([encode_amqp_value([b"\xff", float("nan"), Char("x")])], b'["/w==",null,"x"]', JSON),
        ([encode_amqp_value(AmqpArray(0x71, [Int(1), Int(2)]))], b"[1,2]", JSON),
        ([encode_sequence([1, "a"]), encode_sequence([[]])], b'[1,"a",[]]', JSON),
        ([], b"", None),
    ],
)
def test_a_body_of_any_kind_comes_out(
    sections: list[bytes], body: bytes | None, body_type: str | None
) -> None:
    found = received(encode_properties(Properties(message_id="m")), *sections)
    assert found.body_type == body_type
    assert found.message.body == body or body is None
    if body_type == JSON:
        json.loads(found.message.body)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (ULong(2**64 - 1), 2**64 - 1),
        (UInt(1), 1),
        (Byte(-1), -1),
        (Float32(0.5), 0.5),
        (Char("é"), "é"),
        (Symbol("s"), "s"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (b"\xff", "/w=="),
        (Decimal128(bytes.fromhex("303c00000000000000000000000004e2")), "12.50"),
        (Timestamp(T0), Moment(T0)),
        (Timestamp(2**62), 2**62),
        (Described(Symbol("com.microsoft:timespan"), 400_000_000), "00:00:40"),
        (
            Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000),
            Moment(0),
        ),
        (Described(Symbol("com.microsoft:uri"), "http://x/"), "http://x/"),
        ([1, {"a": None}], '[1, {"a": null}]'),
    ],
)
def test_a_property_of_any_type_comes_out(value: Any, plain: object) -> None:
    found = received(
        encode_properties(Properties(message_id="m")),
        encode_application_properties({"k": value}),
        encode_data(b""),
    )
    assert found.message.properties == {"k": plain}
    assert type(found.message.properties["k"]) is type(plain)


@pytest.mark.parametrize(
    ("message_id", "text"),
    [(ULong(5), "5"), (UUID(int=5), str(UUID(int=5))), (b"\xff\x00", "ff00")],
)
def test_an_id_of_any_type_comes_out(message_id: Any, text: str) -> None:
    properties = Properties(message_id=message_id, correlation_id=message_id)
    found = received(encode_properties(properties), encode_data(b""))
    assert (found.message.message_id, found.message.correlation_id) == (text, text)


def test_what_an_amqp_sender_says_comes_out() -> None:
    found = received(
        encode_header(durable=True, ttl=5_000),
        encode_message_annotations(
            {
                Symbol("x-opt-scheduled-enqueue-time"): Timestamp(T0),
                Symbol("x-opt-partition-key"): "p",
            }
        ),
        encode_properties(Properties(message_id="m", subject="s", content_type="text/plain")),
        encode_data(b"x"),
    )
    assert found.message == PlainMessage(
        b"x",
        "text/plain",
        message_id="m",
        label="s",
        partition_key="p",
        force_persistence=True,
        time_to_live_ms=5_000,
        scheduled_at=T0,
    )

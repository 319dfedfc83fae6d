"""Messages are taken apart and put together again byte for byte, and marked when replayed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.codec.types import Int, Long
from postbus.amqp.faults import DecodeError
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_header,
    encode_properties,
    read_application_properties,
    read_data,
    read_properties,
    scan,
)
from pyspark_postbus.pipelines.envelopes import (
    MARK,
    envelope_of,
    marked,
    message_of,
    with_envelopes,
)
from pyspark_postbus.pipelines.replay import ReplayError, parse_offsets
from tests.property.amqp.test_sections import payloads

HEAD = (
    encode_header(ttl=60_000)
    + encode_properties(Properties(message_id="order 1", subject="tea"))
    + encode_application_properties({"tries": Int(3), "total": Long(9), "fast": True})
)


@given(st.binary(min_size=1, max_size=600))
def test_a_message_is_had_again_from_its_envelope_and_body(body: bytes) -> None:
    message = HEAD + encode_data(body)
    envelope = envelope_of(message, body)
    assert envelope == HEAD
    assert message_of(envelope, body) == message


@pytest.mark.parametrize(
    ("section", "body"),
    [
        (encode_amqp_value("text"), b"text"),
        (encode_data(b"ab") + encode_data(b"cd"), b"abcd"),
        (encode_data(b"") + encode_data(b"x"), b"x"),
        (encode_data(b""), b""),
        (b"", b""),
        (b"\x00\x53\x75\xb0\x00\x00\x00\x02hi", b"hi"),
    ],
)
def test_a_body_that_is_written_in_another_way_stays_in_the_envelope(
    section: bytes, body: bytes
) -> None:
    message = HEAD + section
    assert envelope_of(message, body) == message
    assert message_of(message, body) == message
    rows = pa.table({"body": [body], "message": [message]})
    assert with_envelopes(rows)["envelope"].to_pylist() == [message]


def _data_of(message: bytes) -> bytes:
    try:
        return read_data(message, scan(message)) or b""
    except DecodeError:
        return b""  # written in another way, so that it stays where it is


@given(st.lists(st.none() | payloads | st.binary(max_size=300).map(encode_data)))
def test_many_messages_are_taken_apart_at_once_and_are_had_again(
    messages: list[bytes | None],
) -> None:
    bodies = [None if each is None else _data_of(each) for each in messages]
    column = pa.array([b"before", *messages], pa.binary()).slice(1)
    rows = pa.table({"body": pa.array(bodies, pa.binary()), "message": column})
    found = with_envelopes(rows)["envelope"].to_pylist()
    for message, body, envelope in zip(messages, bodies, found, strict=True):
        if message is None or body is None:
            assert envelope is None
        else:
            assert message_of(envelope, body) == message
            # Whole where a section begins in an unusual way: that one is not looked into.
            assert envelope in (envelope_of(message, body), message)


@given(st.lists(st.binary(min_size=1, max_size=300)))
def test_the_body_of_a_usual_message_is_stored_once(bodies: list[bytes]) -> None:
    messages = [HEAD + encode_data(body) for body in bodies]
    rows = pa.table({"body": bodies, "message": pa.array(messages, pa.binary())})
    assert with_envelopes(rows)["envelope"].to_pylist() == [HEAD] * len(bodies)


def test_a_replayed_message_says_where_it_was_and_is_the_same_otherwise() -> None:
    message = marked(HEAD + encode_data(b"body"), "orders/0/17")
    sections = scan(message)
    values = read_application_properties(message, sections)
    assert values == {"tries": 3, "total": 9, "fast": True, MARK: "orders/0/17"}
    # An int of 32 bits and one of 64, as they came: the latter is plain `int` to the codec.
    assert [type(values[name]) for name in ("tries", "total")] == [Int, int]
    assert read_properties(message, sections).message_id == "order 1"
    assert read_data(message, sections) == b"body"


def test_a_message_that_is_replayed_again_says_where_it_was_last() -> None:
    once = marked(HEAD + encode_data(b""), "orders/0/17")
    twice = marked(once, "copies/0/2")
    assert read_application_properties(twice, scan(twice))[MARK] == "copies/0/2"


def test_rows_without_a_message_have_no_envelope() -> None:
    message = HEAD + encode_data(b"x")
    rows = pa.table({"offset": [1, 2], "body": [b"x", None], "message": [message, None]})
    split = with_envelopes(rows)
    assert split.column_names == ["offset", "body", "envelope"]
    assert split["envelope"].to_pylist() == [HEAD, None]
    assert with_envelopes(split) is split


def test_offsets_on_a_command_line_are_ranges_by_partition() -> None:
    assert parse_offsets([]) is None
    assert parse_offsets(["0:5-9", "3:0-1"]) == {0: (5, 9), 3: (0, 1)}
    with pytest.raises(ReplayError, match="0:120-500"):
        parse_offsets(["5-9"])

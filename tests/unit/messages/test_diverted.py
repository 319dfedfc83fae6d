"""Diverted messages as they were before, byte for byte where nothing was changed (R-PAIR-08)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.codec.types import Described, Int, Symbol, Timestamp, UInt
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_delivery_annotations,
    encode_header,
    encode_message_annotations,
    encode_properties,
    read_annotations,
    read_application_properties,
    read_header,
    read_properties,
    scan,
)
from postbus.messages.diverted import NotDiverted, restore

NOW = 1_700_000_000_000


def diverted(values: dict[str, Any], body: bytes = encode_data(b"body"), count: int = 0) -> bytes:
    """As a receiver of the backlog queue gets it."""
    annotations = {
        Symbol("x-opt-sequence-number"): 5,
        Symbol("x-opt-enqueued-time"): Timestamp(NOW),
        Symbol("x-opt-locked-until"): Timestamp(NOW + 60_000),
        Symbol("x-opt-partition-key"): "k",
        Symbol("x-mine"): UInt(3),
    }
    return b"".join(
        (
            encode_header(True, 4, None, None, count),
            encode_delivery_annotations({Symbol("x-opt-lock-token"): b"t"}),
            encode_message_annotations(annotations),
            encode_properties(Properties(message_id="m", subject="tea")),
            encode_application_properties({"x-ms-path": "orders", **values}),
            body,
        )
    )


def test_r_pair_10_what_was_moved_to_properties_is_back_in_its_place() -> None:
    """R-PAIR-10."""
    payload = diverted(
        {
            "x-ms-sessionid": "s",
            "x-ms-timetolive": 90_000,
            "x-ms-scheduledenqueuetimeutc": Timestamp(NOW + 5),
            "x-ms-other": Int(7),
        },
        count=2,
    )
    message = restore(payload, NOW)
    assert (message.path, message.key, message.delivery_count) == ("orders", "s", 2)
    assert message.locked_until == NOW + 60_000
    sections = scan(message.payload)
    header = read_header(message.payload, sections)
    assert (header.durable, header.priority, header.ttl) == (True, 4, 90_000)
    assert header.delivery_count == 0
    assert read_annotations(message.payload, sections) == {
        "x-opt-partition-key": "k",
        "x-mine": 3,
        "x-opt-scheduled-enqueue-time": NOW + 5,
    }
    properties = read_properties(message.payload, sections)
    assert (properties.group_id, properties.message_id, properties.subject) == ("s", "m", "tea")
    assert (properties.creation_time, properties.absolute_expiry_time) == (NOW, NOW + 90_000)
    assert read_application_properties(message.payload, sections) == {"x-ms-other": 7}
    assert message.payload[sections.body :] == encode_data(b"body")


def test_a_message_without_them_has_none_afterwards() -> None:
    message = restore(diverted({}), NOW)
    sections = scan(message.payload)
    assert read_header(message.payload, sections).ttl is None
    assert read_properties(message.payload, sections).absolute_expiry_time is None
    assert sections.application_properties == sections.body
    assert message.key == "k"


@pytest.mark.parametrize(
    ("value", "ttl"),
    [
        (0, 0),
        (Int(1_500), 1_500),
        (Described(Symbol("com.microsoft:timespan"), 25_000_000), 2_500),
        (60 * 86_400_000, 0xFFFFFFFF),
    ],
)
def test_a_time_to_live_is_milliseconds_or_a_time_span(value: object, ttl: int) -> None:
    payload = restore(diverted({"x-ms-timetolive": value}), NOW).payload
    assert read_header(payload, scan(payload)).ttl == ttl


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"x-ms-path": 5}, "x-ms-path"),
        ({"x-ms-path": None}, "x-ms-path"),
        ({"x-ms-sessionid": b"s"}, "x-ms-sessionid"),
        ({"x-ms-timetolive": "1"}, "x-ms-timetolive"),
        ({"x-ms-timetolive": -1}, "x-ms-timetolive"),
        ({"x-ms-timetolive": Described(Symbol("other"), 1)}, "x-ms-timetolive"),
        ({"x-ms-scheduledenqueuetimeutc": NOW}, "x-ms-scheduledenqueuetimeutc"),
    ],
)
def test_r_pair_10_a_property_that_is_missing_or_of_a_wrong_type_is_named(
    values: dict[str, Any], named: str
) -> None:
    """R-PAIR-10."""
    with pytest.raises(NotDiverted, match=named):
        restore(diverted(values), NOW)


def test_bytes_that_are_no_message_are_not_diverted() -> None:
    with pytest.raises(NotDiverted):
        restore(b"\x00\x53\x70\xff", NOW)


VALUES = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**40).map(Timestamp),
    st.integers(0, 2**32 - 1).map(UInt),
    st.booleans(),
    st.uuids(),
)


@given(st.dictionaries(st.text("abc", min_size=1), VALUES), st.binary(max_size=200))
def test_other_properties_and_the_body_come_through_with_their_types(
    values: dict[str, Any], body: bytes
) -> None:
    value = encode_amqp_value([body, Timestamp(5)])
    payload = restore(diverted(values, value), NOW).payload
    sections = scan(payload)
    found = read_application_properties(payload, sections)
    assert found == values
    assert [type(found[name]) for name in values] == [type(each) for each in values.values()]
    assert payload[sections.body :] == value

"""What is read from a message that comes in, and written on one that goes out."""

from __future__ import annotations

from uuid import UUID

import pytest

from postbus.amqp.codec.types import Symbol, Timestamp, ULong
from postbus.amqp.faults import DecodeError
from postbus.amqp.faults import MessageSizeExceeded as TooLarge
from postbus.amqp.frames.outcomes import Error, Modified, Rejected
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
    read_delivery_annotations,
    read_header,
    read_properties,
    scan,
)
from postbus.broker.message import DEFERRED, NO_TTL, ForwardingInfo, Message
from postbus.errors import InvalidArgument, InvalidOperation, MessageSizeExceeded
from postbus.messages.batches import BATCH_FORMAT, open_batch
from postbus.messages.envelope import (
    Changes,
    change_properties,
    read_message,
    write_delivery,
)
from postbus.messages.plain_values import BODY_VALUES_MAX, read_body

PROPERTY_MAX = 1_000
BODY = encode_data(b"tea")


def delivered(message: Message, raw: bytes, **how: bool) -> bytes:
    message.number = message.enqueue_number = 17
    message.enqueued_at = 5_000
    return b"".join(write_delivery(message, raw, **how))


def test_the_fields_a_broker_decides_by_are_read() -> None:
    raw = (
        encode_header(ttl=9_000)
        + encode_message_annotations({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(777)})
        + encode_properties(Properties(message_id="m-1", group_id="s-1"))
        + BODY
    )
    message = read_message(raw, PROPERTY_MAX)
    assert (message.message_id, message.session_id) == ("m-1", "s-1")
    assert (message.ttl, message.enqueued_at) == (9_000, 777)
    assert message.raw is raw, "kept as received"


@pytest.mark.parametrize("message_id", ["text", ULong(7), UUID(int=9), b"bytes"])
def test_a_message_id_of_any_type_comes_back_as_it_was(message_id: object) -> None:
    raw = encode_properties(Properties(message_id=message_id)) + BODY  # type: ignore[arg-type]
    out = delivered(read_message(raw, PROPERTY_MAX), raw)
    back = read_properties(out, scan(out)).message_id
    assert back == message_id and type(back) is type(message_id)


def test_an_infinite_time_to_live_is_none() -> None:
    raw = encode_header(ttl=0xFFFFFFFF) + BODY
    assert read_message(raw, PROPERTY_MAX).ttl == NO_TTL


DAY_MS = 86_400_000
HEADER_MAX = 0xFFFFFFFF
T0 = 1_700_000_000_000


@pytest.mark.parametrize(
    ("header", "created", "expires", "ttl"),
    [
        # The SDKs for JavaScript and .NET, then JMS, which leaves the header out.
        (HEADER_MAX, T0, T0 + 60 * DAY_MS, 60 * DAY_MS),
        (None, T0, T0 + 60 * DAY_MS, 60 * DAY_MS),
        (HEADER_MAX, T0, 253_402_243_199_000, 253_402_243_199_000 - T0),
        (HEADER_MAX, T0, T0 + HEADER_MAX, HEADER_MAX),
        # What the header says counts, and the times beside it do not.
        (9_000, T0, T0 + 60 * DAY_MS, 9_000),
        (0, T0, T0 + 60 * DAY_MS, 0),
        # Nothing is said, or nothing that can be meant (semantics B §3).
        (HEADER_MAX, None, T0 + 60 * DAY_MS, NO_TTL),
        (HEADER_MAX, T0, None, NO_TTL),
        (None, T0, T0 + DAY_MS, NO_TTL),
        (HEADER_MAX, T0, T0, NO_TTL),
        (HEADER_MAX, T0 + 60 * DAY_MS, T0, NO_TTL),
        (HEADER_MAX, -(1 << 63), (1 << 63) - 1, NO_TTL),
        (HEADER_MAX, 0, 922_337_203_685_477, NO_TTL),
    ],
)
def test_a_time_to_live_that_the_header_has_no_bits_for(
    header: int | None, created: int | None, expires: int | None, ttl: int
) -> None:
    properties = Properties(creation_time=created, absolute_expiry_time=expires)
    raw = (b"" if header is None else encode_header(ttl=header)) + encode_properties(properties)
    message = read_message(raw + BODY, PROPERTY_MAX)
    assert message.ttl == ttl
    assert message.raw is not None
    batch = encode_data(raw + BODY)
    batch_reader = open_batch(batch, BATCH_FORMAT, PROPERTY_MAX)
    assert batch_reader.read()
    assert [each.ttl for each in batch_reader.messages] == [ttl]
    if ttl < 0:
        return
    message.number = message.enqueue_number = 17
    message.enqueued_at = T0 + 5
    out = b"".join(write_delivery(message, message.raw))
    told = read_properties(out, scan(out))
    assert read_header(out, scan(out)).ttl == min(ttl, HEADER_MAX)
    assert told.creation_time == T0 + 5
    # No client can read a time after the year 9999.
    assert told.absolute_expiry_time == min(T0 + 5 + ttl, 253_402_243_199_000)


def test_sections_in_any_order_and_long_descriptors_are_put_right() -> None:
    """The Python SDK writes delivery annotations behind the body."""
    annotations = encode_delivery_annotations({Symbol("a"): "b"})
    properties = encode_properties(Properties(message_id="m"))
    long_form = b"\x00\x80" + ULong(0x75).to_bytes(8, "big") + BODY[3:]
    message = read_message(properties + long_form + annotations, PROPERTY_MAX)
    assert message.raw == annotations + properties + BODY


def test_a_message_without_an_id_is_given_one_for_good() -> None:
    """The Node SDK sends none, and cannot settle a message that has none."""
    raw = encode_properties(Properties(subject="tea")) + BODY
    first, second = read_message(raw, PROPERTY_MAX), read_message(raw, PROPERTY_MAX)
    assert len(first.message_id) == 32 and first.message_id != second.message_id
    assert first.raw is not None
    properties = read_properties(first.raw, scan(first.raw))
    assert (properties.message_id, properties.subject) == (first.message_id, "tea")
    assert first.raw.endswith(BODY)
    assert read_message(first.raw, PROPERTY_MAX).message_id == first.message_id


def test_a_binary_id_counts_a_character_for_each_byte() -> None:
    raw = encode_properties(Properties(message_id=bytes(128))) + BODY
    assert len(read_message(raw, PROPERTY_MAX).message_id) == 128


@pytest.mark.parametrize(
    "section",
    [
        b"\x00\x53\x71\xc1\x03\x01\x40\x40",  # delivery annotations: an odd number of items
        b"\x00\x53\x73\xc0\x05\x03\x40\x40\x52\x07",  # properties: `to` is a number
        b"\x00\x53\x74\xc1\x04\x01\xa1\x01a",  # application properties: a key without value
    ],
    ids=["delivery annotations", "properties", "application properties"],
)
def test_a_section_that_no_receiver_could_read_is_refused_at_once(section: bytes) -> None:
    """A message that nobody can decode must not get in the way of those behind it."""
    with pytest.raises(DecodeError):
        read_message(section + BODY, PROPERTY_MAX)


def test_a_body_is_passed_on_without_being_looked_into() -> None:
    """Fifteen megabytes of it took five seconds of everybody's time."""
    for body in (b"\x00\x53\x77\xc0\x03\x02\x40\xff", b"\x00\x53\x76\xc0\x03\x02\x40\xff"):
        message = read_message(body, PROPERTY_MAX)
        assert message.raw is not None and message.raw.endswith(body)
        assert read_body(message.raw, scan(message.raw)) == (body, None)
    with pytest.raises(DecodeError):
        read_message(b"\x00\x53\x77\xc0\x09\x02\x40\xff", PROPERTY_MAX)  # ends too early


def test_a_body_of_too_many_values_is_given_as_it_came() -> None:
    body = encode_amqp_value([None] * (BODY_VALUES_MAX - 3))
    assert read_body(body, scan(body))[1] == "application/json"
    body = encode_amqp_value([None] * BODY_VALUES_MAX)
    assert read_body(body, scan(body)) == (body, None)


@pytest.mark.parametrize(
    "code", [0x70, 0x71, 0x72, 0x73, 0x74, 0x78], ids=lambda code: f"{code:#x}"
)
def test_a_section_that_is_too_large_is_refused_before_it_is_decoded(code: int) -> None:
    """It could not be: but nobody has come so far."""
    kind = b"\xd0" if code in (0x70, 0x73) else b"\xd1"
    section = bytes((0, 0x53, code)) + kind + (2_000).to_bytes(4, "big") + b"\xff" * 2_000
    raw = BODY + section if code == 0x78 else section + BODY
    with pytest.raises(MessageSizeExceeded, match="1024 bytes are allowed"):
        read_message(raw, PROPERTY_MAX, 1_024)


def test_a_payload_of_sections_without_end_is_refused() -> None:
    with pytest.raises(TooLarge, match="more than 8192 sections"):
        read_message(b"\x00\x53\x75\xa0\x00" * 100_000, PROPERTY_MAX)


def test_what_is_no_message_is_refused() -> None:
    for raw in (b"\x00\x53\x99\x40", b"junk", encode_header() + encode_header()):
        with pytest.raises(DecodeError):
            read_message(raw, PROPERTY_MAX)


def test_a_delivery_has_a_fresh_header_and_annotations_and_the_same_bare_message() -> None:
    bare = encode_properties(Properties(message_id="m")) + BODY
    raw = encode_header(delivery_count=99) + bare
    message = read_message(raw, PROPERTY_MAX)
    message.delivery_count = 2
    message.token = bytes(range(16))
    message.locked_until = 6_000
    out = delivered(message, raw)
    sections = scan(out)
    assert out.endswith(bare)
    assert read_header(out, sections).delivery_count == 2
    assert read_annotations(out, sections) == {
        "x-opt-enqueued-time": 5_000,
        "x-opt-sequence-number": 17,
        "x-opt-locked-until": 6_000,
    }
    token = read_delivery_annotations(out, sections)[Symbol("x-opt-lock-token")]
    assert token == UUID(bytes_le=bytes(range(16))), "the tag has .NET's byte order"


def test_own_annotations_replace_those_a_client_sent_back_and_others_stay() -> None:
    given = {Symbol("x-opt-sequence-number"): "odd", Symbol("x-opt-mine"): 1}
    raw = encode_message_annotations(given) + BODY
    out = delivered(read_message(raw, PROPERTY_MAX), raw)
    assert read_annotations(out, scan(out)) == {
        "x-opt-enqueued-time": 5_000,
        "x-opt-sequence-number": 17,
        "x-opt-mine": 1,
    }


def test_a_message_without_properties_gets_an_empty_section() -> None:
    message = read_message(BODY, PROPERTY_MAX)
    message.layout, message.raw = None, BODY
    out = delivered(message, BODY)
    sections = scan(out)
    assert sections.application_properties > sections.properties


def test_expiry_and_creation_agree_with_the_time_to_live() -> None:
    raw = encode_properties(Properties(absolute_expiry_time=1, creation_time=1)) + BODY
    message = read_message(raw, PROPERTY_MAX)
    message.ttl = 60_000
    out = delivered(message, raw)
    properties = read_properties(out, scan(out))
    assert properties.creation_time == 5_000
    assert properties.absolute_expiry_time == 65_000
    assert read_header(out, scan(out)).ttl == 60_000


def test_a_dead_letter_says_why() -> None:
    """R-DLQ-04"""
    raw = encode_application_properties({"colour": "green"}) + BODY
    message = read_message(raw, PROPERTY_MAX)
    message.reason, message.description = "broken", "it fell"
    assert message.raw is not None
    out = delivered(message, message.raw)
    assert read_application_properties(out, scan(out)) == {
        "colour": "green",
        "DeadLetterReason": "broken",
        "DeadLetterErrorDescription": "it fell",
    }


def test_a_description_without_a_reason_is_said_too() -> None:
    raw = encode_properties(Properties(message_id="m")) + BODY
    message = read_message(raw, PROPERTY_MAX)
    message.description = "it fell"
    out = delivered(message, raw)
    assert read_application_properties(out, scan(out)) == {"DeadLetterErrorDescription": "it fell"}


def test_changed_properties_are_merged_into_those_there_are() -> None:
    raw = encode_application_properties({"a": 1, "b": 2}) + BODY
    message = read_message(raw, PROPERTY_MAX)
    message.properties = change_properties(message, raw, {"b": 3}).section
    message.properties = change_properties(message, None, {"c": 4}).section
    assert message.raw is not None
    out = delivered(message, message.raw)
    assert read_application_properties(out, scan(out)) == {"a": 1, "b": 3, "c": 4}


def test_a_peeked_message_shows_its_state_and_no_lock() -> None:
    raw = BODY
    message = read_message(raw, PROPERTY_MAX)
    message.token = bytes(16)
    out = delivered(message, raw, with_state=True, with_lock=False)
    annotations = read_annotations(out, scan(out))
    assert annotations["x-opt-message-state"] == 0
    assert "x-opt-locked-until" not in annotations


def test_a_batch_is_its_messages() -> None:
    inner = [encode_properties(Properties(message_id=f"m{n}")) + BODY for n in range(3)]
    payload = b"".join(encode_data(each) for each in inner)
    batch_reader = open_batch(payload, BATCH_FORMAT, PROPERTY_MAX)
    assert batch_reader.read()
    assert [m.message_id for m in batch_reader.messages] == ["m0", "m1", "m2"]
    with pytest.raises(InvalidArgument, match="no message"):
        open_batch(encode_header(), BATCH_FORMAT, PROPERTY_MAX)
    with pytest.raises(InvalidArgument, match="0x7"):
        open_batch(payload, 7, PROPERTY_MAX)


@pytest.mark.parametrize("key", ["k", b"k", Symbol("k")])
def test_a_partition_key_must_equal_the_session_id(key: object) -> None:
    """R-PART-12; the Python SDK makes bytes of it when it sends a message that it received."""
    annotations = encode_message_annotations({Symbol("x-opt-partition-key"): key})
    for session_id, fits in (("k", True), (None, True), ("", True), ("other", False)):
        raw = annotations + encode_properties(Properties(group_id=session_id)) + BODY
        if fits:
            read_message(raw, PROPERTY_MAX)
        else:
            with pytest.raises(InvalidOperation, match="PartitionKey"):
                read_message(raw, PROPERTY_MAX)


def test_an_empty_text_is_kept_apart_from_none() -> None:
    texts = ("message_id", "to", "subject", "reply_to", "correlation_id", "content_type")
    more = ("content_encoding", "group_id", "reply_to_group_id")
    fields = dict.fromkeys((*texts, *more), "")
    keys = ("x-opt-partition-key", "x-opt-via-partition-key")
    for session_id in ("", "s", None):
        properties = Properties(**{**fields, "group_id": session_id})  # type: ignore[arg-type]
        raw = (
            encode_message_annotations({Symbol(key): "" for key in keys})
            + encode_properties(properties)
            + BODY
        )
        message = read_message(raw, PROPERTY_MAX)
        assert (message.message_id, message.session_id) == ("", session_id)
        out = delivered(message, raw)
        back = read_properties(out, scan(out))
        assert {name: getattr(back, name) for name in fields} == {**fields, "group_id": session_id}
        assert [read_annotations(out, scan(out))[key] for key in keys] == ["", ""]


def test_one_property_may_not_be_larger_than_its_bound() -> None:
    many = encode_application_properties({f"p{n}": "x" * 400 for n in range(5)}) + BODY
    read_message(many, PROPERTY_MAX)
    large = encode_application_properties({"big": "x" * 1_001}) + BODY
    with pytest.raises(MessageSizeExceeded, match="'big'"):
        read_message(large, PROPERTY_MAX)


def test_a_receiver_is_told_that_a_message_was_scheduled() -> None:
    """As in Azure; whoever asks for the state is told what it is now (semantics B §4)."""
    message = read_message(BODY, PROPERTY_MAX)
    assert message.raw is not None

    def state(**how: bool) -> object:
        assert message.raw is not None
        out = delivered(message, message.raw, **how)
        return read_annotations(out, scan(out)).get("x-opt-message-state")

    assert (state(), state(with_state=True)) == (None, 0)
    message.trail = ForwardingInfo(message.length)
    assert (state(), state(with_state=True)) == (None, 0)
    message.trail.scheduled = True
    assert (state(), state(with_state=True)) == (2, 0)
    message.lane = DEFERRED
    assert state(with_state=True) == 1


def test_a_schedule_goes_out_as_a_timestamp_or_not_at_all() -> None:
    """The Python SDK sends back a long; Go insists on a timestamp (wire §4.3)."""
    key = Symbol("x-opt-scheduled-enqueue-time")
    for given, expected in ((5, Timestamp(5)), (None, None)):
        raw = encode_message_annotations({key: given}) + BODY
        message = read_message(raw, PROPERTY_MAX)
        assert message.raw is not None
        out = delivered(message, message.raw)
        back = read_annotations(out, scan(out)).get(key)
        assert back == expected and type(back) is type(expected)


def test_a_schedule_that_is_no_time_is_refused() -> None:
    for value in ("soon", -1, True, 1 << 62):
        raw = encode_message_annotations({Symbol("x-opt-scheduled-enqueue-time"): value}) + BODY
        with pytest.raises(InvalidArgument, match="scheduled"):
            read_message(raw, PROPERTY_MAX)


def test_dispositions_say_what_to_do() -> None:
    """wire §5.1"""
    assert Changes.of(Modified(True, False)) == Changes()
    assert Changes.of(Modified(None, True, {Symbol("a"): 1})) == Changes(
        defer=True, properties={"a": 1}
    )
    assert Changes.of(Rejected()) == Changes(dead_letter=True)
    info = {Symbol("DeadLetterReason"): "why", "DeadLetterErrorDescription": None, "x": 1}
    assert Changes.of(Rejected(Error("com.microsoft:dead-letter", "text", info))) == Changes(
        dead_letter=True, reason="why", properties={"x": 1}
    )
    assert Changes.of(Rejected(Error("amqp:decode-error", "unreadable"))) == Changes(
        dead_letter=True, reason="amqp:decode-error", description="unreadable"
    )


def test_an_amqp_value_body_is_passed_on_bit_for_bit() -> None:
    raw = encode_amqp_value({"k": [1, None, b"x"]})
    assert delivered(read_message(raw, PROPERTY_MAX), raw).endswith(raw)

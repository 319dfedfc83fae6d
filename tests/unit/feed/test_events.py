"""R-PIPE-02: what an event of the change feed says of each kind of record."""

from __future__ import annotations

import json

import pytest

from postbus.amqp.codec.types import Symbol, Timestamp, UInt
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_message_annotations,
    encode_properties,
)
from postbus.broker import records
from postbus.broker.message import ACTIVE, SCHEDULED, STATE, ForwardingInfo, Message
from postbus.broker.record_kinds import BRINGS_BODY, OPERATIONS, RecordKind
from postbus.broker.subqueue_numbers import DEAD_LETTER, TRANSFER_DEAD_LETTER, subqueue_of
from postbus.feed.events import COLUMNS, Event, JournalOrigin, event
from postbus.feed.lines import line

T0 = 1_700_000_000_123
PLACE = JournalOrigin("orders", 0, {3: "audit"})


def sent(body: bytes = b"hello") -> bytes:
    return b"".join(
        (
            encode_message_annotations({Symbol("x-opt-partition-key"): "p1"}),
            encode_properties(
                Properties(
                    message_id="m1",
                    to="there",
                    subject="greeting",
                    reply_to="here",
                    correlation_id="c1",
                    content_type="text/plain",
                )
            ),
            encode_application_properties(
                {"n": UInt(7), "yes": True, "at": Timestamp(T0), "none": None, "text": "x"}
            ),
            encode_data(body),
        )
    )


def message(raw: bytes | None = None) -> Message:
    made = Message(raw, "m1", None)
    made.number = made.enqueue_number = 5
    made.enqueued_at = T0
    return made


def event_of(kind: RecordKind, about: Message, raw: bytes = b"") -> Event:
    if kind in BRINGS_BODY:
        data = records.encode_with_body(kind, about, raw)
    else:
        data = records.encode(kind, about, about.subqueue, about.lane, about.number)
    found = event(PLACE, 41, T0 + 9, data)
    assert found is not None
    assert tuple(found) == COLUMNS
    return found


def test_every_kind_of_record_has_a_name_or_is_housekeeping() -> None:
    housekeeping = {RecordKind.COPIED, RecordKind.REPLACED, RecordKind.PINGED}
    assert set(OPERATIONS) | housekeeping == set(RecordKind)
    assert len(set(OPERATIONS.values())) == len(OPERATIONS)


@pytest.mark.parametrize("kind", sorted(set(RecordKind) - set(OPERATIONS)))
def test_housekeeping_is_no_event(kind: RecordKind) -> None:
    about = message(sent())
    if kind in BRINGS_BODY:
        data = records.encode_with_body(kind, about, sent())
    else:
        data = records.encode(kind, about, 0, 0, 5)
    assert event(PLACE, 0, T0, data) is None


def test_an_enqueued_message_is_told_with_all_that_it_says() -> None:
    raw = sent()
    found = event_of(RecordKind.ENQUEUED, message(raw), raw)
    assert found == {
        **dict.fromkeys(COLUMNS),
        "entity": "orders",
        "subQueue": "",
        "partition": 0,
        "offset": 41,
        "timestamp": T0 + 9,
        "operation": "enqueued",
        "sequenceNumber": 5,
        "originalSequenceNumber": 5,
        "enqueuedTime": T0,
        "messageId": "m1",
        "partitionKey": "p1",
        "correlationId": "c1",
        "subject": "greeting",
        "contentType": "text/plain",
        "to": "there",
        "replyTo": "here",
        "deliveryCount": 0,
        "properties": {
            "n": "7",
            "yes": "true",
            "at": "2023-11-14T22:13:20.123Z",
            "none": None,
            "text": "x",
        },
        "bodySize": len(raw),
        "body": b"hello",
    }


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (119_836_327_160_349, "5767-06-18T12:39:20.349Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-62_135_596_799_999, "0001-01-01T00:00:00.001Z"),
        (253_402_300_800_000, "253402300800000"),
    ],
)
def test_a_time_of_any_year_is_told_to_the_millisecond(at: int, text: str) -> None:
    raw = encode_application_properties({"at": Timestamp(at)}) + encode_data(b"")
    assert event_of(RecordKind.ENQUEUED, message(raw), raw)["properties"] == {"at": text}


def test_an_outcome_says_when_the_message_was_delivered_and_nothing_of_its_content() -> None:
    about = message()
    about.length = 300
    about.delivered_at = T0 + 5
    about.delivery_count = 2
    found = event_of(RecordKind.COMPLETED, about)
    assert found["operation"] == "completed"
    assert found["deliveredTime"] == T0 + 5
    assert found["deliveryCount"] == 2
    assert found["bodySize"] == 300
    assert found["body"] is found["properties"] is found["subject"] is None


def test_a_scheduled_message_has_no_enqueued_time_yet() -> None:
    raw = sent()
    about = message(raw)
    about.lane = SCHEDULED
    found = event_of(RecordKind.SCHEDULED, about, raw)
    assert found["enqueuedTime"] is None
    assert found["scheduledEnqueueTime"] == T0


def test_a_time_to_live_is_told_with_its_end() -> None:
    raw = sent()
    about = message(raw)
    about.ttl = 60_000
    found = event_of(RecordKind.ENQUEUED, about, raw)
    assert (found["timeToLive"], found["expiresAt"]) == (60_000, T0 + 60_000)


def test_a_dead_letter_of_a_subscription_names_it_and_says_why() -> None:
    about = message()
    about.subqueue = subqueue_of(3, DEAD_LETTER)
    about.reason, about.description, about.source = "broken", "no total", "orders"
    found = event_of(RecordKind.DEAD_LETTERED, about)
    assert (found["subscription"], found["subQueue"]) == ("audit", "deadletter")
    assert found["deadLetterReason"] == "broken"
    assert found["deadLetterErrorDescription"] == "no total"
    assert found["deadLetterSource"] == "orders"


def test_a_subscription_that_is_no_more_has_no_name() -> None:
    about = message()
    about.subqueue = subqueue_of(9, TRANSFER_DEAD_LETTER)
    found = event_of(RecordKind.EXPIRED, about)
    assert (found["subscription"], found["subQueue"]) == (None, "transferdeadletter")


def test_what_a_rule_or_a_receiver_changed_stands_in_place_of_what_was_sent() -> None:
    raw = sent()
    about = message(raw)
    about.properties = encode_application_properties({"n": UInt(8)})
    about.trail = ForwardingInfo(10)
    about.trail.envelope = encode_properties(Properties(subject="changed"))
    about.trail.annotations = encode_message_annotations({Symbol("x-opt-partition-key"): b"p2"})
    found = event_of(RecordKind.ARRIVED, about, raw)
    assert found["properties"] == {"n": "8"}
    assert (found["subject"], found["to"], found["partitionKey"]) == ("changed", None, "p2")


def test_properties_that_were_all_removed_are_none() -> None:
    raw = sent()
    about = message(raw)
    about.properties = b""
    assert event_of(RecordKind.ENQUEUED, about, raw)["properties"] == {}


def test_a_session_state_is_its_bytes_as_given() -> None:
    about = message(b"\x00\x53not a message")
    about.lane, about.session_id = STATE, "s"
    found = event_of(RecordKind.STATE_SET, about, b"\x00\x53not a message")
    assert found["operation"] == "session-state-set"
    assert (found["sessionId"], found["body"]) == ("s", b"\x00\x53not a message")
    assert found["properties"] is None


def test_a_line_leaves_out_what_is_unknown_and_shows_texts_as_such() -> None:
    raw = sent("grüße\n".encode())
    about = message(raw)
    about.ttl = 1 << 59
    written = line(event_of(RecordKind.ENQUEUED, about, raw))
    assert written.endswith(b"\n") and written.count(b"\n") == 1
    shown = json.loads(written)
    assert shown["timestamp"] == "2023-11-14T22:13:20.132Z"
    assert (shown["body"], shown["bodyText"]) == ("Z3LDvMOfZQo=", "grüße\n")
    assert shown["properties"]["none"] is None
    assert "sessionId" not in shown
    assert "expiresAt" not in shown, "it is after the last year of four digits"


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a\x00b", b"\x1b[2J", "a\x9b2J".encode()])
def test_a_body_that_is_no_text_is_shown_as_bytes_only(body: bytes) -> None:
    raw = sent(body)
    shown = json.loads(line(event_of(RecordKind.ENQUEUED, message(raw), raw)))
    assert "body" in shown and "bodyText" not in shown


def test_a_value_that_is_a_text_is_a_body_of_that_text() -> None:
    raw = encode_amqp_value("hello")
    assert event_of(RecordKind.ENQUEUED, message(raw), raw)["body"] == b"hello"


def test_a_message_in_its_queue_belongs_to_no_subscription() -> None:
    about = message()
    about.lane = ACTIVE
    assert event_of(RecordKind.ABANDONED, about)["subscription"] is None

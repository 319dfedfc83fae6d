"""R-PIPE-02: whatever a client may send can be told as an event, and says what a receiver gets."""

from __future__ import annotations

import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from postbus.amqp.faults import ProtocolError
from postbus.broker import records
from postbus.broker.message import LANES, SCHEDULED, STATE, Message
from postbus.broker.record_kinds import BRINGS_BODY, OPERATIONS, RecordKind
from postbus.broker.subqueue_numbers import kind_of, owner_of, subqueue_of
from postbus.errors import ServiceBusError
from postbus.feed.events import COLUMNS, JournalOrigin, event
from postbus.feed.lines import line
from postbus.messages.envelope import read_message
from postbus.messages.plain_values import property_text, text_of
from postbus.messages.translation import to_received
from tests.property.amqp.test_sections import payloads

PLACE = JournalOrigin("orders", 2, {1: "audit", 2: "billing"})
times = st.integers(0, 4_000_000_000_000)
short_texts = st.text(st.characters(codec="utf-8"), max_size=40)


@given(payloads, times, st.integers(1, 1 << 40))
def test_an_event_says_of_a_message_what_its_receiver_gets(
    payload: bytes, at: int, number: int
) -> None:
    try:
        message = read_message(payload, 10_000)
    except (ProtocolError, ServiceBusError):
        return  # such a one is refused
    raw = message.raw
    assert raw is not None
    message.number = message.enqueue_number = number
    message.enqueued_at = at
    found = event(PLACE, 7, at, records.encode_with_body(RecordKind.ENQUEUED, message, raw))
    received = to_received(message, raw)
    plain = received.message
    assert found is not None
    assert found["body"] == plain.body
    assert found["correlationId"] == plain.correlation_id
    assert (found["to"], found["replyTo"]) == (plain.to, plain.reply_to)
    assert (found["subject"], found["contentType"]) == (plain.label, text_of(plain.content_type))
    assert found["partitionKey"] == plain.partition_key
    assert found["sessionId"] == plain.session_id
    assert found["timeToLive"] == plain.time_to_live_ms
    assert found["sequenceNumber"] == number
    properties = found["properties"]
    assert isinstance(properties, dict)
    assert properties.keys() == plain.properties.keys()
    for name, value in plain.properties.items():
        if value is None or isinstance(value, str):
            assert properties[name] == value
    shown = json.loads(line(found))
    assert b64decode(shown["body"]) == plain.body


@given(
    st.sampled_from(sorted(set(RecordKind) - BRINGS_BODY)),
    st.sampled_from(LANES),
    st.integers(0, 3).flatmap(
        lambda owner: st.sampled_from([subqueue_of(owner, k) for k in range(3)])
    ),
    st.tuples(times, times, st.integers(-1, 1 << 60), st.integers(0, 1 << 31)),
    st.tuples(short_texts, st.none() | short_texts),
    st.tuples(*[st.none() | short_texts] * 3),
)
def test_an_event_without_a_body_says_what_its_record_says(
    kind: RecordKind,
    lane: int,
    subqueue: int,
    numbers: tuple[int, int, int, int],
    ids: tuple[str, str | None],
    reasons: tuple[str | None, ...],
) -> None:
    message = Message(None, *ids)
    message.lane, message.subqueue, message.number = lane, subqueue, 12
    message.enqueued_at, message.delivered_at, message.ttl, message.delivery_count = numbers
    message.reason, message.description, message.source = reasons
    found = event(PLACE, 7, 8, records.encode(kind, message, subqueue, lane, 12))
    if kind not in OPERATIONS:
        assert found is None
        return
    assert found is not None
    assert tuple(found) == COLUMNS
    assert found["operation"] == OPERATIONS[kind]
    assert (found["messageId"] or "", found["sessionId"]) == ids
    assert found["messageId"] != "", "no id is null"
    assert found["subscription"] == {1: "audit", 2: "billing"}.get(owner_of(subqueue))
    assert found["subQueue"] == ("", "deadletter", "transferdeadletter")[kind_of(subqueue)]
    time = "scheduledEnqueueTime" if lane == SCHEDULED else "enqueuedTime"
    assert found[time] == message.enqueued_at
    assert (found["deliveredTime"] or 0) == message.delivered_at
    dead_letter = ("deadLetterReason", "deadLetterErrorDescription", "deadLetterSource")
    assert tuple(found[name] for name in dead_letter) == reasons
    assert found["body"] is None
    json.loads(line(found))


@given(st.binary(max_size=200), short_texts)
def test_a_session_state_is_told_as_given(state: bytes, session: str) -> None:
    message = Message(state, "", session)
    message.lane = STATE
    found = event(PLACE, 7, 8, records.encode_with_body(RecordKind.STATE_SET, message, state))
    assert found is not None
    assert (found["body"], found["sessionId"]) == (state, session)
    assert found["messageId"] is None


def test_a_property_becomes_the_text_of_its_json_where_it_is_none() -> None:
    assert [property_text(each) for each in (True, 3, 0.5, "x", None)] == [
        "true",
        "3",
        "0.5",
        "x",
        None,
    ]

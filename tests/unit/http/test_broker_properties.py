"""BrokerProperties in and out (semantics A §7)."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from postbus.errors import InvalidArgument
from postbus.http.broker_properties import (
    apply_broker_properties,
    read_json,
    read_object,
    read_user_properties,
    write_broker_properties,
)
from postbus.model.plain_message import MessageState, Moment, PlainMessage, ReceivedMessage

T0 = 1_435_697_582_123
TOKEN = UUID("33221100-5544-7766-8899-aabbccddeeff")


def read(text: str) -> PlainMessage:
    message = PlainMessage()
    apply_broker_properties(message, read_object(read_json(text, "B"), "B"), "B")
    return message


def write(message: PlainMessage | None = None, from_topic: bool = False, **facts: Any) -> str:
    known: dict[str, Any] = {
        "number": 7,
        "enqueue_number": 7,
        "enqueued_at": T0,
        "failures": 0,
        "state": MessageState.ACTIVE,
    }
    received = ReceivedMessage(message or PlainMessage(message_id="m"), **{**known, **facts})
    return write_broker_properties(received, from_topic)


def test_all_that_can_be_set_is() -> None:
    text = json.dumps(
        {
            "CorrelationId": "c",
            "ForcePersistence": True,
            "Label": "l",
            "MessageId": "m",
            "PartitionKey": "s",
            "ReplyTo": "r",
            "ReplyToSessionId": "rs",
            "ScheduledEnqueueTimeUtc": "Tue, 30 Jun 2015 20:53:02 GMT",
            "SessionId": "s",
            "TimeToLive": 90,
            "To": "t",
            "ViaPartitionKey": "v",
        }
    )
    assert read(text) == PlainMessage(
        correlation_id="c",
        force_persistence=True,
        label="l",
        message_id="m",
        partition_key="s",
        reply_to="r",
        reply_to_session_id="rs",
        scheduled_at=1_435_697_582_000,
        session_id="s",
        time_to_live_ms=90_000,
        to="t",
        via_partition_key="v",
    )


def test_what_a_receiver_is_told_can_be_sent_on() -> None:
    message = PlainMessage(message_id="m", label="l", time_to_live_ms=1_500, session_id="é")
    told = write(message, token=TOKEN, locked_until=T0 + 30_000, dead_letter_source="elsewhere")
    assert read(told) == message


def test_what_is_not_said_is_not_set() -> None:
    assert read("{}") == PlainMessage()
    assert read("null") == PlainMessage()
    nothing = {"MessageId": "", "Label": None, "TimeToLive": None, "Unknown": {}, "messageid": 5}
    assert read(json.dumps(nothing)) == PlainMessage()


@pytest.mark.parametrize(
    ("values", "time_to_live_ms"),
    [
        ({"TimeToLive": 40}, 40_000),
        ({"TimeToLive": 0.25}, 250),
        ({"TimeToLive": 0.0000001}, 1),
        ({"TimeToLive": 10_000_000}, 10_000_000_000),
        ({"TimeToLive": 922337203685.47754}, None),
        ({"TimeToLive": 1e300}, None),
        ({"TimeToLiveTimeSpan": "0.00:00:40"}, 40_000),
        ({"TimeToLiveTimeSpan": "00:00:00.5"}, 500),
        ({"TimeToLiveTimeSpan": "10675199.02:48:05.4775807"}, None),
        ({"TimeToLive": 1, "TimeToLiveTimeSpan": "00:01:00"}, 1_000),
    ],
)
def test_a_time_to_live_is_seconds_or_a_time_span(
    values: dict[str, Any], time_to_live_ms: int | None
) -> None:
    assert read(json.dumps(values)).time_to_live_ms == time_to_live_ms


@pytest.mark.parametrize("text", ["1e400", "1" * 400])
def test_a_time_to_live_without_end_is_for_ever(text: str) -> None:
    assert read('{"TimeToLive":' + text + "}").time_to_live_ms is None


@pytest.mark.parametrize(
    "text", ["Mon, 01 Jan 0001 00:00:00 GMT", " Thu, 01 Jan 1970 00:00:00 GMT"]
)
def test_a_schedule_before_there_was_time_is_none(text: str) -> None:
    assert read(json.dumps({"ScheduledEnqueueTimeUtc": text})).scheduled_at is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "B is not valid JSON"),
        ("{", "B is not valid JSON"),
        ("{'Label': 'x'}", "B is not valid JSON"),
        ('{"Label":"a","Label":"b"}', "'Label' is there twice"),
        ('{"TimeToLive":NaN}', "NaN is not JSON"),
        ("[" * 100_000, "B is not valid JSON: it is nested too deeply"),
        ('{"TimeToLive":' + "1" * 5_000 + "}", "B is not valid JSON"),
        ("[]", "B is not a JSON object"),
        ('"x"', "B is not a JSON object"),
        ('{"MessageId":5}', "'MessageId' must be a string, not 5"),
        ('{"To":["a"]}', "'To' must be a string, not an array"),
        ('{"To":{}}', "'To' must be a string, not an object"),
        ('{"To":' + "[" * 900 + "]" * 900 + "}", "not an array"),
        ('{"SessionId":"\\ud800"}', "'SessionId' has half of a surrogate pair"),
        ('{"ForcePersistence":1}', "'ForcePersistence' must be true or false, not 1"),
        ('{"TimeToLive":0}', "'TimeToLive' must be a number of seconds above 0, not 0"),
        ('{"TimeToLive":-1}', "'TimeToLive' must be a number of seconds above 0, not -1"),
        ('{"TimeToLive":true}', "'TimeToLive' must be a number of seconds above 0, not true"),
        ('{"TimeToLive":"40"}', "'TimeToLive' must be a number of seconds above 0, not \"40\""),
        ('{"TimeToLiveTimeSpan":"soon"}', "'TimeToLiveTimeSpan': 'soon' is not a time span"),
        ('{"TimeToLiveTimeSpan":"-00:01:00"}', "'TimeToLiveTimeSpan' must be above 0"),
        ('{"ScheduledEnqueueTimeUtc":"2015-06-30"}', "'ScheduledEnqueueTimeUtc': '2015-06-30' is"),
        ('{"SessionId":"a","PartitionKey":"b"}', "'SessionId' and 'PartitionKey' are both set"),
        ('{"Label":1' + "0" * 100 + "}", "..."),
    ],
)
def test_what_is_wrong_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(text)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_an_empty_session_id_contradicts_no_partition_key() -> None:
    """R-PART-12"""
    made = read('{"SessionId":"","PartitionKey":"b"}')
    assert (made.session_id, made.partition_key) == ("", "b")
    made = read('{"SessionId":"a","PartitionKey":""}')
    assert (made.session_id, made.partition_key) == ("a", "")


def test_user_properties_follow_the_rules_of_headers() -> None:
    values = read_json('{"a":"Tue, 30 Jun 2015 20:53:02 GMT","b":"2","c":3,"d":null}', "U")
    assert read_user_properties(values, "U") == {
        "a": Moment(1_435_697_582_000),
        "b": "2",
        "c": 3,
        "d": None,
    }


@pytest.mark.parametrize(
    "text", ['{"k":{}}', '{"k":[1]}', '{"k":9223372036854775808}', '{"k":1e999}', '{"k":"\\udfff"}']
)
def test_a_user_property_that_amqp_cannot_hold_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match="'k'"):
        read_user_properties(read_json(text, "U"), "U")


def test_a_first_delivery_reads_as_azures() -> None:
    assert write(token=TOKEN, locked_until=T0 + 30_000) == (
        '{"DeliveryCount":1,"EnqueuedSequenceNumber":0,'
        '"EnqueuedTimeUtc":"Tue, 30 Jun 2015 20:53:02 GMT",'
        '"LockToken":"33221100-5544-7766-8899-aabbccddeeff",'
        '"LockedUntilUtc":"Tue, 30 Jun 2015 20:53:32 GMT","MessageId":"m","SequenceNumber":7,'
        '"State":"Active","TimeToLive":922337203685.47754}'
    )


def test_keys_are_in_alphabetical_order_and_text_is_ascii() -> None:
    message = PlainMessage(
        message_id="é",
        correlation_id='"',
        label="",
        to="t",
        session_id="s",
        partition_key="s",
        scheduled_at=T0,
        force_persistence=True,
        time_to_live_ms=1_050,
    )
    text = write(message, state=MessageState.DEFERRED, failures=2, dead_letter_source="q")
    assert text.isascii()
    values = json.loads(text)
    assert list(values) == sorted(values)
    assert values["MessageId"] == "é"
    assert values["CorrelationId"] == '"'
    assert values["Label"] == ""
    assert values["ForcePersistence"] is True
    assert values["ScheduledEnqueueTimeUtc"] == "Tue, 30 Jun 2015 20:53:02 GMT"
    assert values["DeadLetterSource"] == "q"
    assert values["DeliveryCount"] == 3
    assert values["State"] == "Deferred"
    assert values["TimeToLive"] == 1.05
    assert '"TimeToLive":1.05,' in text


@pytest.mark.parametrize(
    ("from_topic", "enqueue_number", "told"), [(False, 7, 0), (False, 3, 3), (True, 7, 7)]
)
def test_the_number_at_a_topic_is_told_on_a_subscription(
    from_topic: bool, enqueue_number: int, told: int
) -> None:
    text = write(from_topic=from_topic, enqueue_number=enqueue_number)
    assert json.loads(text)["EnqueuedSequenceNumber"] == told

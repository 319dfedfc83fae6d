"""Several messages in one request (semantics A §7)."""

from __future__ import annotations

import json

import pytest

from postbus.errors import InvalidArgument, MessageSizeExceeded
from postbus.http.batches import BATCH_COUNT_MAX, is_batch, read_batch
from postbus.model.plain_message import PlainMessage


def test_a_batch_as_azures_pages_show_it_is_read() -> None:
    body = """[
        {"Body": "first", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "second", "UserProperties": {"Priority": "Low"}},
        {"Body": "third", "UserProperties": {"Priority": "Medium", "Customer": "ABC"}}
    ]"""
    assert list(read_batch(body.encode())) == [
        PlainMessage(b"first", label="M1", time_to_live_ms=40_000),
        PlainMessage(b"second", properties={"Priority": "Low"}),
        PlainMessage(b"third", properties={"Priority": "Medium", "Customer": "ABC"}),
    ]


def test_an_item_may_have_bytes_and_a_content_type() -> None:
    items = [
        {"Body": "/wA=", "IsBodyBase64": True, "BrokerProperties": {"ContentType": "image/x"}},
        {"Body": "é", "BrokerProperties": None, "UserProperties": None},
        {},
    ]
    assert list(read_batch(json.dumps(items).encode())) == [
        PlainMessage(b"\xff\x00", content_type="image/x"),
        PlainMessage("é".encode()),
        PlainMessage(),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "The batch is not valid JSON"),
        ("{}", "The batch is not a JSON array"),
        ("[]", "The batch holds no message"),
        ("[{}", "The batch is not valid JSON: Expecting ',' delimiter"),
        ("[{},]", "The batch is not valid JSON"),
        ("[{}] [", "The batch is not valid JSON: Extra data"),
        ('[{},"x"]', "Message 1 of the batch is not a JSON object"),
        ('[{"body":"x"}]', "Message 0 of the batch has the key 'body'"),
        ('[{"\\ud800":1}]', "has the key '\\ud800'"),
        ('[{"Body":{}}]', "'Body' must be a string"),
        ('[{"Body":"\\ud800"}]', "'Body' has half of a surrogate pair"),
        ('[{"Body":"x","IsBodyBase64":1}]', "'IsBodyBase64' must be true or false"),
        ('[{"Body":"x","IsBodyBase64":true}]', "'Body' is not base64"),
        ('[{"Body":"é","IsBodyBase64":true}]', "'Body' is not base64"),
        ('[{"BrokerProperties":[]}]', "Message 0 of the batch: BrokerProperties is not a JSON"),
        ('[{"BrokerProperties":{"Label":1}}]', "BrokerProperties is invalid: 'Label' must be"),
        ('[{"BrokerProperties":{"ContentType":1}}]', "'ContentType' must be a string"),
        ('[{"UserProperties":{"a":{}}}]', "Message 0 of the batch: UserProperties is invalid: 'a'"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(body: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        list(read_batch(body.encode()))
    assert words in str(refusal.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not valid JSON"):
        list(read_batch(b'[{"Body":"\xff"}]'))


def test_a_batch_has_an_end() -> None:
    body = ("[" + "{}," * BATCH_COUNT_MAX + "{}]").encode()
    with pytest.raises(MessageSizeExceeded, match="more than 4500 messages"):
        list(read_batch(body))


def test_a_batch_is_told_by_its_content_type() -> None:
    assert is_batch("application/vnd.microsoft.servicebus.json")
    assert is_batch("Application/vnd.Microsoft.ServiceBus.json ; charset=utf-8")
    assert not is_batch("application/json")

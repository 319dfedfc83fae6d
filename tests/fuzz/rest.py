"""Messages over HTTP: what a request says of one, and what a reply can say of any."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from uuid import UUID

from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE

from postbus.broker.message import Message
from postbus.http.batches import read_batch
from postbus.http.broker_properties import read_json
from postbus.http.message_headers import only_header, read_message, write_message
from postbus.http.property_headers import NOT_PROPERTIES
from postbus.messages import envelope
from postbus.messages.translation import to_message, to_received
from postbus.model.address import Address
from postbus.model.plain_message import PlainMessage, ReceivedMessage

NOW = 1_700_000_000_000
TOKEN = UUID("33221100-5544-7766-8899-aabbccddeeff")
PROPERTY_SIZE_MAX = 2_000

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSEEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

Headers = list[tuple[bytes, bytes]]


def run_headers(data: bytes) -> None:
    """Lines of `name: value` as a request has them. What is taken comes back the same."""
    headers: Headers = []
    for line in data.split(b"\n"):
        name, _, value = line.partition(b":")
        # What the parser of HTTP would not let through.
        if _NAME.fullmatch(name) and not _UNSEEN.search(value):
            headers.append((name, value.strip(b" \t")))
    plain = read_message(headers, only_header(headers, "content-type"))
    _check(plain)


def run_batch(data: bytes) -> None:
    """The body of a batch."""
    for plain in read_batch(data):
        _check(plain)


def run_delivery(data: bytes) -> None:
    """Whatever was sent over AMQP can be told over HTTP."""
    message = envelope.read_message(data, PROPERTY_SIZE_MAX)
    headers = _replied(_delivered(message))
    properties = only_header(headers, "BrokerProperties")
    assert properties is not None and properties.isascii()
    values = read_json(properties, "")
    assert list(values) == sorted(values)


def _check(plain: PlainMessage) -> None:
    """It can be stored, and a receiver could send the same again."""
    received = _delivered(to_message(plain, PROPERTY_SIZE_MAX))
    again = read_message(_replied(received), None)
    assert again.properties == received.message.properties == plain.properties
    for name in ("correlation_id", "label", "to", "reply_to", "session_id", "time_to_live_ms"):
        assert getattr(again, name) == getattr(plain, name), name


def _delivered(message: Message) -> ReceivedMessage:
    assert message.raw is not None
    message.number = message.enqueue_number = 1
    message.enqueued_at = NOW
    message.token = TOKEN.bytes_le
    message.locked_until = NOW + 30_000
    return to_received(message, message.raw)


def _replied(received: ReceivedMessage) -> Headers:
    """The headers of a reply, each of which the server can write and a client read."""
    response = write_message(received, Address("orders"), "http://localhost:5672")
    names = [bytes(name) for name, _ in response.raw_headers]
    assert len(names) == len({name.title() for name in names}), "a header twice"
    for name, value in response.raw_headers:
        assert _NAME.fullmatch(name) and not HEADER_RE.search(name), name
        assert not HEADER_VALUE_RE.search(value), (name, value)
        value.decode("ascii")
    assert dict(response.raw_headers)[b"content-length"] == b"%d" % len(received.message.body)
    return [(bytes(name), value) for name, value in response.raw_headers if name != b"Location"]


# -- what to start from ------------------------------------------------------------------------

WORDS = [
    *(b"BrokerProperties:", b"UserProperties:", b"Content-Type: ", b"Transfer-Encoding:"),
    *(b'"MessageId":', b'"TimeToLive":', b'"TimeToLiveTimeSpan":"0.00:00:40"', b'"SessionId":'),
    *(b'"ScheduledEnqueueTimeUtc":', b'"Tue, 30 Jun 2015 20:53:02 GMT"', b'"PartitionKey":"s"'),
    *(b'"Body":', b'"IsBodyBase64":true', b'"UserProperties":{', b'"BrokerProperties":{'),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b",",
        b"null",
        b"true",
        b"1e999",
        b"NaN",
        b"\\ud800",
        b"\\u00e9",
    ),
    *(b"9223372036854775808", b"-0", b"1" * 5_000, b"[" * 3_000, b"\xff", "é".encode()),
]


def headers() -> Iterator[tuple[str, bytes]]:
    broker = {
        "CorrelationId": "c",
        "ForcePersistence": True,
        "Label": "é",
        "MessageId": "m",
        "PartitionKey": "s",
        "ScheduledEnqueueTimeUtc": "Tue, 30 Jun 2015 20:53:02 GMT",
        "SessionId": "s",
        "TimeToLive": 90.5,
        "SequenceNumber": 5,
    }
    yield (
        "whole",
        b"\n".join(
            (
                b"BrokerProperties: " + json.dumps(broker).encode(),
                b'Priority: "High"',
                b"Count: 42",
                b"Share: 3.14",
                b"Urgent: true",
                b'When: "Tue, 30 Jun 2015 20:53:02 GMT"',
                b"traceparent: 00-4bf92f-01",
                b'UserProperties: {"an odd name": "x", "age": 5}',
                b"Content-Type: text/plain",
            )
        ),
    )
    yield "raw-utf-8", 'BrokerProperties: {"Label": "é"}\nName: "é"'.encode()
    yield "raw-latin-1", 'BrokerProperties: {"Label": "é"}\nName: "é"'.encode("latin-1")
    yield "reserved", b"\n".join(name.encode() + b": x" for name in sorted(NOT_PROPERTIES))
    yield "reply-names", b'Age: 5\nSet-Cookie: "a=b"\nLocation: x\nServer: true'
    yield "twice", b"Colour: 1\ncolour: 2"
    yield "time-span", b'BrokerProperties: {"TimeToLiveTimeSpan": "1.00:00:00.5"}'
    yield "for-ever", b'BrokerProperties: {"TimeToLive": 922337203685.47754}'
    yield "not-equal", b'BrokerProperties: {"SessionId": "a", "PartitionKey": "b"}'
    yield "deep", b"BrokerProperties: " + b'{"a":' * 3_000
    yield "surrogate", b'BrokerProperties: {"To": "\\ud800"}\nName: "\\ud800"'
    yield "bare-date", b"When: Tue, 30 Jun 2015 20:53:02 GMT"
    yield "strings", b'A: "\nB: "\\"\nC: "\\x"\nD: \nE: null\nF: 007\nG: -0\nH: 1e5'


def batches() -> Iterator[tuple[str, bytes]]:
    items = [
        {"Body": "1", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {
            "Body": "2",
            "UserProperties": {"Priority": "Low", "n": 1, "f": 0.5, "b": True, "z": None},
        },
        {"Body": "/wA=", "IsBodyBase64": True, "BrokerProperties": {"ContentType": "image/x"}},
    ]
    yield "whole", json.dumps(items).encode()
    yield "one", b'[{"Body":"\\u00e9"}]'
    yield "raw", '[{"Body":"é"}]'.encode()
    yield "empty", b"[]"
    yield "no-array", b'{"Body":"x"}'
    yield "unknown-key", b'[{"body":"x"}]'
    yield "nested", b'[{"UserProperties":{"a":{"b":1}}}]'
    yield "deep", b"[" * 3_000
    yield "utf-16", '[{"Body":"x"}]'.encode("utf-16")

"""The data pipeline: what a request says of dead letters, and what a feed tells of any message."""

from __future__ import annotations

import json
from collections.abc import Iterator

from postbus.amqp.sections import read_application_properties, scan
from postbus.broker import records
from postbus.broker.record_kinds import RecordKind
from postbus.feed.events import JournalOrigin, event
from postbus.http.deadletters import read_numbers, read_resubmission
from postbus.messages.envelope import read_message
from postbus.namespace.dead_letter_edits import Revision
from postbus.store import batch
from pyspark_postbus.columns import ALL
from pyspark_postbus.decode import Decoder
from tests.property.test_feed_decode import as_arrow_gives
from tests.unit.namespace.test_dead_letter_edits import dead_letter

NOW = 1_700_000_000_000
PROPERTY_SIZE_MAX = 2_000
PLACE = JournalOrigin("orders", 0, {})


def run_resubmission(data: bytes) -> None:
    """What is taken can be done to a dead letter, and what comes of it is a message."""
    _, asked = read_resubmission(data)
    for _, edits in asked:
        dead, raw = dead_letter()
        made = Revision(edits, PROPERTY_SIZE_MAX)(dead, raw)
        assert made.raw is not None
        again = read_message(made.raw, PROPERTY_SIZE_MAX)
        assert (again.message_id, again.session_id) == (made.message_id, made.session_id)
        kept = read_application_properties(made.raw, scan(made.raw))
        for name, value in edits.properties.items():
            assert (name in kept) == (value is not None), name


def run_discard(data: bytes) -> None:
    for number in read_numbers(data):
        assert 0 <= number < 1 << 63


def run_feed(data: bytes) -> None:
    """Whatever was sent can be read from the feed, and both ways to read it say the same."""
    message = read_message(data, PROPERTY_SIZE_MAX)
    message.number, message.enqueued_at = 5, NOW
    assert message.raw is not None
    record = records.encode_with_body(RecordKind.ENQUEUED, message, message.raw)
    chunk, _ = batch.pack(1, 1, 0, NOW, [record])
    found = Decoder(PLACE, ALL).decode(chunk, 0, 1)
    found.validate(full=True)
    plain = event(PLACE, 0, NOW, record)
    assert plain is not None
    assert found.to_pylist() == [as_arrow_gives(dict(plain))]


# -- what to start from ------------------------------------------------------------------------

WORDS = [
    *(b'"to":', b'"messages":[', b'"sequenceNumber":', b'"edits":{', b'"sequenceNumbers":['),
    *(b'"body":', b'"properties":{', b'"messageId":', b'"sessionId":', b'"partitionKey":'),
    *(b'"contentType":"a/b"', b'"timeToLive":', b'"scheduledEnqueueTime":', b'"DeadLetterReason"'),
    *(b"{", b"}", b"[", b"]", b'"', b",", b"null", b"true", b"1e999", b"NaN", b"\\ud800", b"-0"),
    *(b"9223372036854775807", b"9223372036854775808", b"[" * 3_000, b"\xff", b'"\\u0000"'),
]


def resubmissions() -> Iterator[tuple[str, bytes]]:
    edits = {
        "body": "b25l",
        "properties": {"kind": None, "n": 1, "f": 0.5, "b": True, "t": "é"},
        "messageId": "m2",
        "sessionId": "s",
        "partitionKey": "s",
        "contentType": "text/plain",
        "correlationId": None,
        "subject": "tea",
        "timeToLive": 60_000,
        "scheduledEnqueueTime": NOW,
    }
    whole = [{"sequenceNumber": 1}, {"sequenceNumber": 2, "edits": edits}]
    yield "whole", json.dumps({"to": "eu/orders", "messages": whole}).encode()
    for name, value in edits.items():
        one = [{"sequenceNumber": 1, "edits": {name: value}}]
        yield name, json.dumps({"messages": one}).encode()
    yield "no-list", b'{"messages":{}}'
    yield (
        "not-equal",
        (b'{"messages":[{"sequenceNumber":1,"edits":{"sessionId":"a","partitionKey":"b"}}]}'),
    )
    yield "deep", b'{"messages":' + b"[" * 3_000


def discards() -> Iterator[tuple[str, bytes]]:
    yield "whole", json.dumps({"sequenceNumbers": [1, 2, 1 << 62]}).encode()
    yield "empty", b'{"sequenceNumbers":[]}'
    yield "large", json.dumps({"sequenceNumbers": [1 << 63]}).encode()
    yield "float", b'{"sequenceNumbers":[1.0,true]}'
    yield "many", json.dumps({"sequenceNumbers": list(range(1_001))}).encode()

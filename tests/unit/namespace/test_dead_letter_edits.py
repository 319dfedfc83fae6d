"""What a dead letter is when it is sent again: edited sections anew, the others byte for byte."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from postbus.amqp.codec.types import Int, Short, Symbol, Timestamp, ULong
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
    read_data,
    read_properties,
    scan,
)
from postbus.broker.message import NO_TTL, ForwardingInfo, Message
from postbus.errors import InvalidOperation, MessageSizeExceeded
from postbus.messages.envelope import read_message
from postbus.model.plain_message import Edits
from postbus.namespace.dead_letter_edits import Revision

FOOTER = b"\x00\x53\x78\xc1\x01\x00"
HEADER = encode_header(durable=True, priority=7, ttl=60_000)
DELIVERY = encode_delivery_annotations({Symbol("x-mine"): 1})
ANNOTATIONS = encode_message_annotations(
    {Symbol("x-opt-partition-key"): "s", Symbol("x-other"): ULong(5)}
)
PROPERTIES = encode_properties(
    Properties(message_id="m", subject="tea", group_id="s", creation_time=1, content_type="a/b")
)
APPLICATION = encode_application_properties({"kind": "order", "tries": Short(3), "at": 7})
BODY = encode_data(b"one") + encode_data(b"two")


def dead_letter(application: bytes = APPLICATION, body: bytes = BODY) -> tuple[Message, bytes]:
    raw = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + application + body + FOOTER
    message = read_message(raw, 32_768)
    message.number, message.enqueued_at, message.delivery_count = 5, 1_000, 10
    message.reason, message.description, message.source = "r", "d", "elsewhere"
    return message, raw


def revised(edits: Edits, dead: tuple[Message, bytes] | None = None) -> Message:
    return Revision(edits, 32_768)(*(dead or dead_letter()))


def parts(message: Message) -> list[bytes]:
    raw = message.raw
    assert raw is not None
    s = scan(raw)
    places = [0, s.delivery_annotations, s.message_annotations, s.properties]
    places += [s.application_properties, s.body, s.footer, s.end]
    return [raw[start:end] for start, end in pairwise(places)]


def properties_of(message: Message) -> dict[Any, Any]:
    assert message.raw is not None
    return read_application_properties(message.raw, scan(message.raw))


def test_one_that_is_not_edited_is_the_very_same() -> None:
    message, raw = dead_letter()
    made = Revision(Edits(), 32_768)(message, raw)
    assert made.raw is raw
    assert (made.message_id, made.session_id, made.ttl) == ("m", "s", 60_000)
    assert made.header_size == message.header_size
    assert (made.reason, made.description, made.source) == (None, None, None)
    assert (made.delivery_count, made.number, made.trail) == (0, 0, None)


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        (Edits(body=b"x"), 5),
        (Edits(properties={"kind": "cake"}), 4),
        (Edits(properties={"kind": None}), 4),
        (Edits(texts={"subject": "cake"}), 3),
        (Edits(times={"timeToLive": 5}), 3),
        (Edits(times={"scheduledEnqueueTime": 9_000}), 2),
    ],
)
def test_only_the_section_that_is_edited_is_written_anew(edits: Edits, changed: int) -> None:
    before = [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, FOOTER]
    after = parts(revised(edits))
    differ = [place for place, part in enumerate(after) if part != before[place]]
    assert differ == [changed]
    assert revised(edits).header_size == read_message(b"".join(after), 32_768).header_size


def test_a_new_body_is_one_data_section() -> None:
    made = revised(Edits(body=b"tea"), dead_letter(body=encode_amqp_value("a text")))
    assert made.raw is not None and read_data(made.raw, scan(made.raw)) == b"tea"


def test_properties_are_put_removed_and_keep_their_type_where_it_holds() -> None:
    edits = Edits(
        properties={"kind": None, "tries": 4, "at": 8, "small": 1, "large": 1 << 40, "is": True}
    )
    values = properties_of(revised(edits))
    assert values == {"tries": 4, "at": 8, "small": 1, "large": 1 << 40, "is": True}
    kinds = {name: type(value) for name, value in values.items()}
    assert kinds == {"tries": Short, "at": int, "small": Int, "large": int, "is": bool}
    assert type(properties_of(revised(Edits(properties={"tries": 1 << 20})))["tries"]) is Int


def test_marks_that_a_sender_copied_from_a_dead_letter_are_removed() -> None:
    marked = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d", "kind": "order"}
    made = revised(Edits(), dead_letter(encode_application_properties(marked)))
    assert properties_of(made) == {"kind": "order"}
    only = dead_letter(encode_application_properties({"DeadLetterReason": "r"}))
    assert parts(revised(Edits(), only))[4] == b""


def test_every_text_can_be_set_and_cleared() -> None:
    names = {
        "contentEncoding": "content_encoding",
        "contentType": "content_type",
        "correlationId": "correlation_id",
        "replyTo": "reply_to",
        "replyToSessionId": "reply_to_group_id",
        "subject": "subject",
        "to": "to",
    }
    for name, field in names.items():
        for text in ("x", None):
            made = revised(Edits(texts={name: text}))
            assert made.raw is not None
            assert getattr(read_properties(made.raw, scan(made.raw)), field) == text
    made = revised(Edits(texts={"messageId": "other"}))
    assert made.message_id == "other"


def test_a_partition_key_follows_the_session() -> None:
    """R-PART-12: the two have to be equal."""
    made = revised(Edits(texts={"sessionId": "t"}))
    assert made.raw is not None and made.session_id == "t"
    annotations = read_annotations(made.raw, scan(made.raw))
    assert annotations == {"x-other": 5, "x-opt-partition-key": "t"}
    made = revised(Edits(texts={"sessionId": None}))
    assert made.raw is not None and made.session_id is None
    assert read_annotations(made.raw, scan(made.raw)) == {"x-other": 5}
    with pytest.raises(InvalidOperation, match="PartitionKey"):
        revised(Edits(texts={"sessionId": "t", "partitionKey": "u"}))


def test_a_time_to_live_is_set_or_taken_away_and_else_that_of_the_dead_letter() -> None:
    assert revised(Edits(times={"timeToLive": 1 << 40})).ttl == 1 << 40
    made = revised(Edits(times={"timeToLive": None}))
    assert made.ttl == NO_TTL and made.raw is not None
    properties = read_properties(made.raw, scan(made.raw))
    assert (properties.creation_time, properties.absolute_expiry_time) == (None, None)
    message, raw = dead_letter()
    message.ttl = 5  # as a rule has set it, whatever the header says
    assert revised(Edits(body=b"x"), (message, raw)).ttl == 5


def test_one_can_be_put_off() -> None:
    made = revised(Edits(times={"scheduledEnqueueTime": 9_000}))
    assert made.enqueued_at == 9_000 and made.raw is not None
    annotations = read_annotations(made.raw, scan(made.raw))
    assert type(annotations["x-opt-scheduled-enqueue-time"]) is Timestamp


def test_what_a_rule_or_a_receiver_changed_is_what_is_sent() -> None:
    message, raw = dead_letter()
    message.properties = encode_application_properties({"changed": "yes"})
    message.trail = ForwardingInfo(len(raw))
    message.trail.envelope = encode_properties(Properties(message_id="m", subject="cake"))
    message.trail.annotations = encode_message_annotations({Symbol("x-opt-partition-key"): "p"})
    made = revised(Edits(), (message, raw))
    assert parts(made) == [
        HEADER,
        DELIVERY,
        message.trail.annotations,
        message.trail.envelope,
        message.properties,
        BODY,
        FOOTER,
    ]
    assert made.session_id is None and made.trail is None and made.properties is None


def test_a_property_that_is_too_large_is_refused() -> None:
    with pytest.raises(MessageSizeExceeded, match="property 'large'"):
        revised(Edits(properties={"large": "x" * 40_000}))

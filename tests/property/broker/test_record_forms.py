"""The record that is packed in one go is the one that is written part by part."""

from hypothesis import given
from hypothesis import strategies as st

from postbus.broker.message import LANES, Message
from postbus.broker.record_kinds import RecordKind
from postbus.broker.records import (
    encode,
    encode_plainly,
    encode_with_body,
    encode_with_body_plainly,
)

numbers = st.integers(0, (1 << 48) - 1)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    body = draw(st.binary(max_size=9))
    session_id = draw(st.none() | st.text(max_size=4))
    message = Message(body, draw(st.text(max_size=9)), session_id, draw(st.integers(-1, 1 << 40)))
    message.subqueue, message.lane = draw(st.integers(0, 99)), draw(st.sampled_from(LANES))
    message.number, message.enqueue_number = draw(numbers), draw(numbers)
    message.base, message.position = draw(st.integers(-1, 1 << 40)), draw(st.integers(0, 1 << 30))
    message.enqueued_at, message.delivered_at = draw(numbers), draw(numbers)
    message.delivery_count, message.header_size = draw(st.integers(0, 99)), len(body)
    message.properties = draw(st.none() | st.binary(max_size=4))
    message.reason = draw(st.none() | st.text(max_size=4))
    return message


@given(messages(), st.sampled_from(list(RecordKind)), numbers)
def test_both_forms_of_a_record_are_the_same(
    message: Message, kind: RecordKind, number: int
) -> None:
    assert encode(kind, message, 4, 1, number) == encode_plainly(kind, message, 4, 1, number)
    body = message.raw or b""
    written = encode_with_body(kind, message, body)
    assert written == encode_with_body_plainly(kind, message, body)

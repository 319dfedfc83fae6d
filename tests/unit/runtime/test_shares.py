"""What a delivery takes of its turn goes by all that is written anew for it, whatever section."""

from __future__ import annotations

import pytest

from postbus.amqp.codec.types import Symbol
from postbus.amqp.sections import (
    Properties,
    encode_application_properties,
    encode_data,
    encode_delivery_annotations,
    encode_footer,
    encode_message_annotations,
    encode_properties,
)
from postbus.broker.message import Message
from postbus.broker.subqueue import MAIN
from postbus.gateway.browsing import _look
from postbus.gateway.peeking import peek
from postbus.messages.envelope import read_message, write_delivery
from postbus.runtime.receivers import BYTES_OF_A_SHARE, share_of
from tests.support.topics import Place

MANY = {Symbol(f"{n:04x}"): None for n in range(9_000)}
ID = encode_properties(Properties(message_id="m"))
BODY = encode_data(b"tea")
LARGE = {
    "delivery annotations": encode_delivery_annotations(MANY) + ID + BODY,
    "message annotations": encode_message_annotations(MANY) + ID + BODY,
    "footer": ID + BODY + encode_footer(MANY),
}


def message_of(raw: bytes) -> Message:
    made = read_message(raw, 1 << 15, 1 << 16)
    made.number = made.enqueue_number = 1
    made.enqueued_at = 1_700_000_000_000
    made.token = bytes(16)
    return made


@pytest.mark.parametrize("raw", LARGE.values(), ids=LARGE.keys())
def test_a_section_that_is_written_anew_has_its_share(raw: bytes) -> None:
    message = message_of(raw)
    payload = write_delivery(message, message.raw or b"")
    assert share_of(message, payload) > len(raw) // BYTES_OF_A_SHARE - 16


def test_what_is_passed_on_as_it_came_has_the_least_share() -> None:
    for raw in (ID + BODY, ID + encode_application_properties({"a": "a" * 30_000}) + BODY):
        message = message_of(raw)
        assert share_of(message, write_delivery(message, message.raw or b"")) == 1


@pytest.mark.parametrize("raw", [LARGE["footer"], LARGE["message annotations"]])
def test_a_look_is_counted_as_toil_of_its_turn(raw: bytes) -> None:
    """Others look in the same turn, which ends when there was too much of it."""
    place = Place()
    place.send_messages(read_message(raw, 1 << 15, 1 << 16))
    fragment, queue = place.engine.shared, place.queue
    fragment.take_toil()
    place.paged(lambda pages: peek(MAIN, 0, 1, None, False, queue, place.now, pages))
    assert fragment.take_toil() > 5_000
    place.paged(lambda pages: _look(MAIN, 0, 1, place.engine, place.now, pages))
    assert fragment.take_toil() > 5_000

"""What a delivery takes of its turn goes by all that is written anew for it, whatever section."""

from __future__ import annotations

from typing import Any

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
from postbus.broker.message import ForwardingInfo, Message
from postbus.broker.subqueue_numbers import MAIN
from postbus.gateway.operations import Peek, Show
from postbus.gateway.response_writer import RESPONSE_TOIL_MAX, ResponseWriter
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
    fragment = place.engine.shared
    fragment.take_toil()
    peek = Peek(MAIN, 0, 1, None, omit_body=False)
    place.paged(lambda pages: peek.decide(place.engine, place.now, pages))
    assert fragment.take_toil() > 5_000
    show = Show(MAIN, 0, 1, 256 * 1024)
    place.paged(lambda pages: show.decide(place.engine, place.now, pages))
    assert fragment.take_toil() > 5_000


@pytest.mark.parametrize("raw", [LARGE["footer"], LARGE["message annotations"]])
def test_a_look_is_over_when_it_has_taken_enough_and_the_next_goes_on(raw: bytes) -> None:
    place = Place()
    place.send_messages(*[read_message(raw, 1 << 15, 1 << 16) for _ in range(4)])
    peek = Peek(MAIN, 0, 4, None, omit_body=False)
    found = place.paged(lambda pages: peek.decide(place.engine, place.now, pages))
    assert len(found) == 1
    seen: list[int] = []
    onward: int | None = 0
    while onward is not None:
        show = Show(MAIN, onward, 4, 256 * 1024)
        shown, onward = place.paged(
            lambda pages, show=show: show.decide(place.engine, place.now, pages)
        )
        assert len(shown) == 1
        seen += [number for number, _ in shown]
    assert seen == [1, 2, 3, 4]


def test_a_response_of_many_messages_is_put_into_words_in_pieces() -> None:
    found = [(message_of(LARGE["footer"]), LARGE["footer"]) for _ in range(5)]
    place = Place()
    fragment = place.engine.shared
    fragment.take_toil()
    wording = ResponseWriter(found, fragment)
    assert RESPONSE_TOIL_MAX <= fragment.take_toil() < 2 * RESPONSE_TOIL_MAX
    at_once = len(wording.written)
    assert at_once == 1
    # Whatever is decided about them meanwhile, they are told as they were.
    expected = [b"".join(write_delivery(message, raw, with_state=True)) for message, raw in found]
    for message, _ in found:
        message.token, message.delivery_count, message.properties = None, 7, b""
    pieces = 1
    while wording.go_on():
        pieces += 1
        assert len(wording.written) == at_once + pieces - 1
    assert wording.complete
    assert wording.written == [(bytes(16), each) for each in expected]


def test_a_response_of_usual_messages_is_put_into_words_at_once() -> None:
    found = [(message_of(ID + BODY), ID + BODY) for _ in range(1_000)]
    assert ResponseWriter(found, Place().engine.shared).complete


@pytest.mark.interpreted_only  # a compiled class does not tell its slots
def test_a_snapshot_is_all_of_a_message() -> None:
    texts = dict.fromkeys(("message_id", "session_id", "reason", "description", "source"), "text")
    data = dict.fromkeys(("properties", "raw", "token"), b"bytes")
    others = {"indexed": True, "layout": object(), "trail": ForwardingInfo(1)}
    known = set().union(texts, data, others)
    numbers = {name: n for n, name in enumerate(Message.__slots__, 3) if name not in known}
    message = message_of(LARGE["footer"])
    every: dict[str, Any] = {**texts, **data, **others, **numbers}
    for name, value in every.items():
        setattr(message, name, value)
    made = message.snapshot()
    assert {name: getattr(made, name) for name in Message.__slots__} == every

"""The messages of a batch are read in pieces that go by what has to be decoded."""

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
from postbus.errors import MessageSizeExceeded
from postbus.messages.batches import (
    BATCH_COUNT_MAX,
    BATCH_FORMAT,
    DECODED_PER_TURN,
    BatchReader,
    open_batch,
)
from postbus.messages.envelope import DECODED, read_message
from postbus.model.limits import FEW_HEADER_BYTES, HEADER_VALUES_MAX

PROPERTY_MAX, HEADER_MAX = 1 << 15, 1 << 16
NAMES = [f"{n:04x}" for n in range(9_000)]
ID = encode_properties(Properties(message_id="m"))
BODY = encode_data(b"tea")
HEAVY = {
    "delivery annotations": encode_delivery_annotations({Symbol(n): None for n in NAMES})
    + (ID + BODY),
    "message annotations": encode_message_annotations({Symbol(n): None for n in NAMES}) + ID + BODY,
    "properties": ID + encode_application_properties(dict.fromkeys(NAMES)) + BODY,
    "symbols": ID + encode_application_properties({Symbol(n): None for n in NAMES}) + BODY,
    "footer": ID + BODY + encode_footer({Symbol(n): None for n in NAMES}),
}


def pieces_of(batch_reader: BatchReader) -> list[int]:
    """What each piece decodes."""
    pieces, done = [], False
    while not done:
        before = DECODED.units
        done = batch_reader.read()
        pieces.append(DECODED.units - before)
    return pieces


@pytest.mark.parametrize("raw", HEAVY.values(), ids=HEAVY.keys())
def test_a_batch_of_heavy_headers_takes_many_pieces_of_a_bounded_size(raw: bytes) -> None:
    batch = b"".join([encode_data(raw)] * 16)
    batch_reader = open_batch(batch, BATCH_FORMAT, PROPERTY_MAX, HEADER_MAX)
    pieces = pieces_of(batch_reader)
    assert [message.message_id for message in batch_reader.messages] == ["m"] * 16
    assert len(pieces) > 4
    # One message beyond the bound, the names of which may be written anew.
    assert max(pieces) <= DECODED_PER_TURN + 3 * (HEADER_MAX + 100)


def test_what_clients_usually_send_is_read_at_once() -> None:
    raw = ID + encode_application_properties({"a": 1}) + encode_data(bytes(10_000))
    batch_reader = open_batch(encode_data(raw) * 90, BATCH_FORMAT, PROPERTY_MAX, HEADER_MAX)
    assert len(pieces_of(batch_reader)) == 1


def test_the_largest_number_of_messages_takes_few_pieces() -> None:
    batch_reader = open_batch(encode_data(BODY) * BATCH_COUNT_MAX, BATCH_FORMAT, PROPERTY_MAX)
    assert 2 <= len(pieces_of(batch_reader)) <= 8


def test_bodies_are_not_decoded() -> None:
    before = DECODED.units
    read_message(ID + encode_data(bytes(1 << 20)), PROPERTY_MAX, HEADER_MAX)
    assert DECODED.units - before < 200


def test_large_headers_have_a_bound_on_their_values() -> None:
    """A setting may allow a megabyte of them."""
    few = ID + encode_application_properties(dict.fromkeys(NAMES, "x" * 100)) + BODY
    assert len(few) > FEW_HEADER_BYTES
    read_message(few, PROPERTY_MAX, 1 << 20)
    many = {f"{n:06x}": None for n in range(HEADER_VALUES_MAX // 2)}
    for raw in (
        ID + encode_application_properties(many) + BODY,
        ID + BODY + encode_footer({Symbol(name): None for name in many}),
        ID + encode_application_properties({"a": [None] * 99_000}) + BODY,
    ):
        with pytest.raises(MessageSizeExceeded, match=f"more than {HEADER_VALUES_MAX} values"):
            read_message(raw, 1 << 20, 1 << 20)


def test_usual_headers_may_hold_whatever_there_is_room_for() -> None:
    raw = ID + encode_application_properties({"a": [None] * 60_000}) + BODY
    read_message(raw, 1 << 20, HEADER_MAX)

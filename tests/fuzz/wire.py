"""Bytes of the AMQP wire: frames into a server core with links, performatives, message sections."""

from __future__ import annotations

from contextlib import suppress

from postbus.amqp.faults import DecodeError, ProtocolError
from postbus.amqp.frames.framing import SASL_HEADER, FrameReader, encode_frame
from postbus.amqp.frames.performatives import decode_performative
from postbus.amqp.sections import read_application_properties, read_properties, scan
from postbus.broker.message import Message
from postbus.errors import ServiceBusError
from postbus.messages.batches import BATCH_FORMAT, open_batch
from postbus.messages.envelope import change_properties, read_message, write_delivery
from tests.fuzz.rules import rewrite
from tests.property.amqp.test_machines_hostile import (
    LIMITS,
    PROLOGUE,
    Owner,
    check_books,
    check_events,
    check_output,
    opened,
)
from tests.unit.amqp.pair import T0

PROPERTY_MAX = 1_000
_FRAME_BODY_MAX = 480
"""What fits the hostile server's largest frame."""


def run_stream(data: bytes) -> None:
    """A connection from its first byte. The first byte of the input says how the rest is cut.

    Refuses nothing by exception: whatever is wrong ends a link, a session or the connection.
    """
    choice, stream = (data[0], data[1:]) if data else (0, b"")
    owner = Owner()
    if choice & 1:
        owner.hear(owner.core.receive_data(SASL_HEADER, T0), choice)
    size = choice // 2 + 1
    for start in range(0, len(stream), size * 8):
        owner.hear(owner.core.receive_data(stream[start : start + size * 8], T0), choice)
        check_books(owner.core)
        owner.core.data_to_send()
    check_events(owner.events)
    owner.core.receive_eof(T0)
    check_books(owner.core)


def run_frames(data: bytes) -> None:
    """Frame bodies, each behind two bytes: what the owner does then with the channel, and its
    length in units of two. So a change to a body leaves the frames after it whole."""
    owner = opened()
    reader = FrameReader(LIMITS.max_frame_size)
    turns = [(PROLOGUE, 0), *_turns(data)]
    for stream, choice in turns:
        owner.hear(owner.core.receive_data(stream, T0), choice)
        check_books(owner.core)
        owner.meddle(choice)
        check_books(owner.core)
        check_output(owner.core.data_to_send(), reader)
    check_events(owner.events)
    owner.core.receive_eof(T0)
    check_books(owner.core)


def _turns(data: bytes) -> list[tuple[bytes, int]]:
    turns = []
    offset = 0
    while offset + 2 <= len(data):
        choice, units = data[offset], data[offset + 1]
        body = data[offset + 2 : offset + 2 + 2 * units][:_FRAME_BODY_MAX]
        offset += 2 + 2 * units
        head = (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + (choice & 1).to_bytes(2, "big")
        turns.append((head + body, choice >> 1))
    return turns


def run_performative(data: bytes) -> None:
    """A frame body alone: what is read of it is written so that it is read the same again."""
    body, payload = decode_performative(data)
    again, rest = decode_performative(encode_frame(0, body, data[payload:])[8:])
    written = encode_frame(0, again)
    assert written == encode_frame(0, body), f"{body} is written as {again}"
    assert len(written) - 8 == rest


def run_sections(data: bytes) -> None:
    """A message: taken in, changed as receivers change it, and given out in every form."""
    try:
        batch = open_batch(data, BATCH_FORMAT, PROPERTY_MAX)
        while not batch.read():
            pass
        for message in batch.messages[:3]:
            _deliver(message)
    except (DecodeError, ServiceBusError):
        pass
    _deliver(read_message(data, PROPERTY_MAX))


def _deliver(message: Message) -> None:
    """What was taken in can be given out: from here on nothing may be refused."""
    raw = message.raw
    assert raw is not None
    message.number, message.enqueued_at = 17, message.enqueued_at or T0
    message.token = bytes(range(16))
    forms = [write_delivery(message, raw), write_delivery(message, raw, True, False)]
    forms += [rewrite(message, raw)]
    message.properties = change_properties(message, raw, {"added": 1}).section
    forms += [rewrite(message, raw)]
    forms.append(write_delivery(message, raw, with_state=True))
    message.reason, message.description, message.source = "why", "because", "orders"
    message.ttl = max(message.ttl, 1_000)
    forms.append(write_delivery(message, raw))
    for form in forms:
        _check_delivered(b"".join(form))


def _check_delivered(encoded: bytes) -> None:
    try:
        sections = scan(encoded)
        assert sections.compact
        assert read_properties(encoded, sections).message_id is not None
        read_application_properties(encoded, sections)
        # A client may send on what it received.
        with suppress(ServiceBusError):
            read_message(encoded, PROPERTY_MAX)
    except ProtocolError as fault:
        raise AssertionError(f"nobody can read what is given out: {fault}") from fault

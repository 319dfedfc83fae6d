"""Every field and every kind of body comes back as it was sent."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from tests.support.bus import Bus, receive_one, text


async def test_every_property_of_a_message_comes_back(bus: Bus, queue: str) -> None:
    """wire §4.2: opaque fields pass unchanged."""
    sent = ServiceBusMessage(
        b"\x00\x01body",
        message_id="id-1",
        session_id="group-1",
        partition_key="group-1",
        content_type="application/octet-stream",
        correlation_id="correlation-1",
        subject="subject-1",
        to="to-1",
        reply_to="reply-1",
        reply_to_session_id="reply-group-1",
        time_to_live=timedelta(minutes=5),
    )
    before = datetime.now(UTC)
    await bus.send(queue, sent)

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert b"".join(message.body) == b"\x00\x01body"
        for field in (
            "message_id",
            "session_id",
            "partition_key",
            "content_type",
            "correlation_id",
            "subject",
            "to",
            "reply_to",
            "reply_to_session_id",
            "time_to_live",
        ):
            assert getattr(message, field) == getattr(sent, field), field
        slack = timedelta(seconds=2)
        assert before - slack <= message.enqueued_time_utc <= datetime.now(UTC) + slack
        assert message.expires_at_utc == message.enqueued_time_utc + timedelta(minutes=5)
        assert message.enqueued_sequence_number is None  # as Azure: only what was forwarded has one
        assert message.locked_until_utc > datetime.now(UTC)
        assert isinstance(message.lock_token, uuid.UUID)
        assert message.dead_letter_reason is None
        assert message.dead_letter_error_description is None
        assert message.dead_letter_source is None


async def test_application_properties_keep_their_types(bus: Bus, queue: str) -> None:
    """wire §4.5. That strings come back as bytes is the SDK's way, not the server's."""
    when = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    some_id = uuid.uuid4()
    sent: dict[str | bytes, Any] = {
        "text": "größe",
        "empty": "",
        "yes": True,
        "no": False,
        "small": 7,
        "negative": -(2**31),
        "large": 2**31 - 1,
        "real": 2.5,
        "id": some_id,
        "when": when,
        "nothing": None,
    }
    await bus.send(queue, ServiceBusMessage("x", application_properties=sent))

    [message] = await bus.receive(queue)
    got = message.application_properties
    assert got[b"text"] == "größe".encode()
    assert got[b"empty"] == b""
    assert (got[b"yes"], got[b"no"]) == (True, False)
    assert (got[b"small"], got[b"negative"], got[b"large"]) == (7, -(2**31), 2**31 - 1)
    assert got[b"real"] == 2.5
    assert got[b"id"] == some_id
    assert got[b"when"] == int(when.timestamp() * 1000)
    assert got[b"nothing"] is None
    assert len(got) == len(sent)


async def test_a_message_with_nothing_set_has_an_id_and_nothing_else(bus: Bus, queue: str) -> None:
    """The Node SDK can settle no message without an id, so the server gives it one, once."""
    await bus.send(queue, AmqpAnnotatedMessage(data_body=b""))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert b"".join(message.body) == b""
        assert message.message_id
        for field in ("session_id", "subject", "to", "reply_to", "time_to_live"):
            assert getattr(message, field) is None, field
        await receiver.abandon_message(message)
        again = await receive_one(receiver)
        assert again.message_id == message.message_id
        await receiver.complete_message(again)


BODIES = {
    "one piece of data": {"data_body": b"bytes"},
    "several pieces of data": {"data_body": [b"one", b"two", b"three"]},
    "a value": {"value_body": {b"key": b"text", b"list": [1, 2, 3]}},
    "a null value": {"value_body": None},
    "a sequence": {"sequence_body": [1, b"two", 3.5]},
    "several sequences": {"sequence_body": [[1, 2], [b"three"]]},
}


@pytest.mark.parametrize("kind", BODIES)
async def test_every_kind_of_body_comes_back(bus: Bus, queue: str, kind: str) -> None:
    """wire §4.1: the body is kept bit for bit, whatever its sections."""
    body: Any = BODIES[kind]
    await bus.send(queue, AmqpAnnotatedMessage(**body))

    [message] = await bus.receive(queue)
    raw = message.raw_amqp_message
    [(name, sent)] = body.items()
    if name == "data_body":
        assert raw.body_type is AmqpMessageBodyType.DATA
        assert list(raw.body) == (sent if isinstance(sent, list) else [sent])
    elif name == "value_body":
        assert raw.body_type is AmqpMessageBodyType.VALUE
        assert raw.body == sent
    else:
        assert raw.body_type is AmqpMessageBodyType.SEQUENCE
        rows = sent if isinstance(sent[0], list) else [sent]
        assert [list(row) for row in raw.body] == rows


async def test_every_section_of_an_amqp_message_comes_back(bus: Bus, queue: str) -> None:
    """Header, annotations, properties and footer of a hand-made AMQP message (wire §4)."""
    sent = AmqpAnnotatedMessage(
        data_body=b"body",
        header=AmqpMessageHeader(durable=True, priority=7, time_to_live=60_000, delivery_count=5),
        properties=AmqpMessageProperties(
            message_id="id",
            user_id=b"user",
            to="to",
            subject="subject",
            reply_to="reply",
            correlation_id="correlation",
            content_type="type",
            content_encoding="encoding",
            group_id="group",
            group_sequence=3,
            reply_to_group_id="reply-group",
        ),
        application_properties={"key": "value"},
        annotations={"x-opt-mine": "kept", "x-opt-partition-key": "group"},
        # The SDK writes these last, behind the footer; they are for one hop and end here.
        delivery_annotations={"x-opt-hop": "first"},
        footer={"foot": "note"},
    )
    await bus.send(queue, sent)

    [message] = await bus.receive(queue)
    raw = message.raw_amqp_message
    assert raw.header.durable is True
    assert raw.header.priority == 7
    assert raw.header.time_to_live == 60_000
    assert raw.header.delivery_count == 0, "the client's own count is not the server's"
    for field in (
        "message_id",
        "to",
        "subject",
        "reply_to",
        "correlation_id",
        "content_type",
        "content_encoding",
        "group_id",
        "reply_to_group_id",
    ):
        assert getattr(raw.properties, field) == getattr(sent.properties, field).encode(), field
    assert raw.properties.user_id == b"user"
    assert raw.properties.group_sequence == 3
    assert raw.application_properties == {b"key": b"value"}
    assert raw.annotations[b"x-opt-mine"] == b"kept"
    assert raw.footer == {b"foot": b"note"}


@pytest.mark.parametrize(
    "message_id", [uuid.UUID(int=7), "text", b"\x00\xff\x10"], ids=["uuid", "string", "binary"]
)
async def test_a_message_id_keeps_its_amqp_type(
    bus: Bus, queue: str, message_id: uuid.UUID | str | bytes
) -> None:
    """wire §4.2: the id comes back as the type it was sent as."""
    properties = AmqpMessageProperties(message_id=message_id)
    await bus.send(queue, AmqpAnnotatedMessage(data_body=b"x", properties=properties))

    [message] = await bus.receive(queue)
    got = message.raw_amqp_message.properties.message_id
    assert got == (message_id.encode() if isinstance(message_id, str) else message_id)


async def test_a_received_message_can_be_sent_again(bus: Bus, queue: str) -> None:
    """wire §4.3: annotations that the server itself wrote are not believed on input."""
    await bus.send(queue, ServiceBusMessage("again", subject="s"))
    [first] = await bus.receive(queue)
    await bus.send(queue, first)

    [second] = await bus.receive(queue)
    assert text(second) == "again"
    assert second.subject == "s"
    assert second.sequence_number > first.sequence_number
    assert second.delivery_count == 0


async def test_a_body_larger_than_a_frame_comes_back_whole(bus: Bus, queue: str) -> None:
    """Transfers in many frames, both ways (AMQP 2.6.14)."""
    body = bytes(range(256)) * 900
    await bus.send(queue, ServiceBusMessage(body))

    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert b"".join(message.body) == body
        await receiver.complete_message(message)

"""Messages in their form for a backlog queue, and pings (R-PAIR-07, R-PAIR-08)."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from postbus.messages.diverted import NAMES
from postbus.paired.envelope import PairedMessageBatch, divert, listed, make_ping, with_id

WHEN = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_r_pair_08_session_life_and_schedule_become_properties() -> None:
    """R-PAIR-08."""
    message = ServiceBusMessage(
        b"body",
        message_id="id",
        session_id="s",
        partition_key="s",
        time_to_live=timedelta(days=60),
        scheduled_enqueue_time_utc=WHEN,
        application_properties={"mine": 1},
        correlation_id="c",
    )
    before = copy.deepcopy(message.raw_amqp_message)
    made = ServiceBusMessage(None, message=None, raw_amqp_message=divert(with_id(message), "q"))
    assert made.session_id is None and made.time_to_live is None
    assert made.scheduled_enqueue_time_utc is None and made.partition_key == "s"
    assert made.raw_amqp_message.properties.absolute_expiry_time is None
    assert made.application_properties == {
        "mine": 1,
        "x-ms-path": "q",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": {"TYPE": "LONG", "VALUE": 60 * 86_400_000},
        "x-ms-scheduledenqueuetimeutc": WHEN,
    }
    assert (made.message_id, made.correlation_id, b"".join(made.body)) == ("id", "c", b"body")
    assert repr(message.raw_amqp_message) == repr(before), "the caller's message is as it was"
    assert message.session_id == "s" and message.application_properties == {"mine": 1}


def test_a_plain_message_gets_its_destination_only() -> None:
    made = divert(with_id(AmqpAnnotatedMessage(data_body=b"x")), "a/b")
    assert made.application_properties == {"x-ms-path": "a/b"}


def test_a_schedule_in_milliseconds_is_a_time_as_well() -> None:
    raw = AmqpAnnotatedMessage(
        data_body=b"x", annotations={b"x-opt-scheduled-enqueue-time": 1_893_553_445_000}
    )
    made = divert(with_id(raw), "q")
    assert made.application_properties is not None
    assert made.application_properties["x-ms-scheduledenqueuetimeutc"] == WHEN
    assert not made.annotations


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("as_bytes", [False, True])
def test_r_pair_08_a_message_with_one_of_the_names_is_refused(name: str, as_bytes: bool) -> None:
    """R-PAIR-08."""
    key: Any = name.encode() if as_bytes else name
    message = ServiceBusMessage("x", application_properties={key: "taken"})
    with pytest.raises(ValueError, match=name):
        divert(with_id(message), "q")


def test_r_pair_08_a_message_without_id_is_given_one_and_the_callers_stays_without() -> None:
    """R-PAIR-08."""
    message = AmqpAnnotatedMessage(data_body=b"x")
    first, second = with_id(message), with_id(message)
    assert first.properties is not None and second.properties is not None
    assert first.properties.message_id != second.properties.message_id is not None
    assert message.properties is None
    kept = with_id(ServiceBusMessage("x", message_id="mine"))
    assert kept.properties is not None and kept.properties.message_id == "mine"


def test_every_form_of_a_send_is_listed() -> None:
    one, raw = ServiceBusMessage("x"), AmqpAnnotatedMessage(data_body=b"y")
    for given, count, several in [
        (one, 1, False),
        (raw, 1, False),
        ({"body": "z"}, 1, False),
        ([one, raw, {"body": "z"}], 3, True),
        ((each for each in (one, one)), 2, True),
        ([], 0, True),
    ]:
        messages, are_several = listed(given)
        assert (len(messages), are_several) == (count, several)
    batch = PairedMessageBatch(10_000)
    batch.add_message(one)
    batch.add_message({"body": "z"})
    assert len(listed(batch)[0]) == len(batch) == 2 and isinstance(batch, ServiceBusMessageBatch)
    with pytest.raises(TypeError, match="create_message_batch"):
        listed(ServiceBusMessageBatch())
    with pytest.raises(TypeError, match="int"):
        listed(5)


def test_r_pair_07_a_ping_is_empty_and_short_lived_with_ids_of_its_own() -> None:
    """R-PAIR-07."""
    one, two = make_ping(), make_ping()
    assert b"".join(one.body) == b"" and one.time_to_live == timedelta(seconds=1)
    assert one.content_type == "application/vnd.ms-servicebus-ping"
    ids = {one.session_id, one.message_id, two.session_id, two.message_id}
    assert len(ids) == 4 and None not in ids

"""Queues by the ATOM management API, through the SDK's own administration client."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import EntityStatus

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, gather_messages
from tests.support.server import Server

FOREVER = timedelta.max


def test_a_new_queue_has_the_documented_defaults(
    queue: str, administration: Administration
) -> None:
    """R-SETTLE-06, R-SETTLE-08, R-DLQ-06; wire §9.4."""
    found = administration.client.get_queue(queue)
    assert found.name == queue
    assert found.lock_duration == timedelta(seconds=30)
    assert found.max_delivery_count == 10
    assert found.max_size_in_megabytes == 1024
    assert found.default_message_time_to_live > timedelta(days=10_000_000)
    assert found.dead_lettering_on_message_expiration is False
    assert found.requires_session is False
    assert found.requires_duplicate_detection is False
    assert found.enable_partitioning is False
    assert found.status == EntityStatus.ACTIVE
    assert found.availability_status == "Available"


def test_what_was_set_at_creation_is_there(
    make_queue: Callable[..., str], administration: Administration
) -> None:
    queue = make_queue(
        lock_duration=timedelta(minutes=2),
        max_delivery_count=7,
        default_message_time_to_live=timedelta(days=3),
        dead_lettering_on_message_expiration=True,
        max_size_in_megabytes=2048,
        user_metadata="notes",
    )
    found = administration.client.get_queue(queue)
    assert found.lock_duration == timedelta(minutes=2)
    assert found.max_delivery_count == 7
    assert found.default_message_time_to_live == timedelta(days=3)
    assert found.dead_lettering_on_message_expiration is True
    assert found.max_size_in_megabytes == 2048
    assert found.user_metadata == "notes"


def test_a_queue_is_updated(queue: str, administration: Administration) -> None:
    administration.update(queue, max_delivery_count=3, lock_duration=timedelta(seconds=40))
    found = administration.client.get_queue(queue)
    assert (found.max_delivery_count, found.lock_duration) == (3, timedelta(seconds=40))


def test_an_update_is_in_force_at_once(queue: str, administration: Administration) -> None:
    before = administration.counts(queue).updated_at_utc
    administration.update(queue, user_metadata="changed")
    after = administration.counts(queue).updated_at_utc
    assert before is not None
    assert after is not None
    assert after >= before


def test_a_queue_is_deleted(queue: str, administration: Administration) -> None:
    administration.client.delete_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        administration.client.get_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        administration.client.delete_queue(queue)


def test_updating_a_queue_that_is_gone_is_not_found(
    queue: str, administration: Administration
) -> None:
    found = administration.client.get_queue(queue)
    administration.client.delete_queue(queue)
    with pytest.raises(ResourceNotFoundError):
        administration.client.update_queue(found)


def test_a_name_is_taken_once_in_any_case(queue: str, administration: Administration) -> None:
    """Names are compared without case (wire §3.1)."""
    for name in (queue, queue.upper()):
        with pytest.raises(ResourceExistsError) as refused:
            administration.client.create_queue(name)
        assert refused.value.status_code == 409
        assert "TrackingId:" in str(refused.value)


def test_a_name_may_have_slashes(administration: Administration) -> None:
    """wire §3.1."""
    name = f"plant/{os.getpid()}/orders"
    administration.client.create_queue(name)
    assert administration.client.get_queue(name).name == name
    administration.client.delete_queue(name)


@pytest.mark.parametrize("name", ["a" * 261, "with space", "a@b", "a*b", "$cbs"])
def test_a_bad_name_is_refused(administration: Administration, name: str) -> None:
    with pytest.raises(HttpResponseError) as refused:
        administration.client.create_queue(name)
    assert refused.value.status_code in {400, 404, 405}


def test_queues_are_listed_page_by_page(
    make_queue: Callable[..., str], administration: Administration
) -> None:
    """More than one page of a hundred (wire §9.3)."""
    made = {make_queue("listed") for _ in range(120)}
    listed = [found.name for found in administration.client.list_queues()]
    assert made <= set(listed)
    assert len(listed) == len(set(listed))
    counted = {found.name for found in administration.client.list_queues_runtime_properties()}
    assert made <= counted
    for name in made:
        administration.client.delete_queue(name)


def test_the_namespace_says_what_it_is(administration: Administration) -> None:
    found = administration.client.get_namespace_properties()
    assert found.name
    assert found.messaging_sku in {"Basic", "Standard", "Premium"}
    assert found.namespace_type == "Messaging"


async def test_runtime_counts_follow_the_messages(
    bus: Bus, queue: str, administration: Administration
) -> None:
    async with bus.sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(5)])
        due = datetime.now(UTC) + timedelta(hours=1)
        await sender.schedule_messages([ServiceBusMessage("later")] * 2, due)
    async with bus.receiver(queue) as receiver:
        messages = await gather_messages(receiver, 3)
        await receiver.complete_message(messages[0])
        await receiver.dead_letter_message(messages[1])
        await receiver.defer_message(messages[2])

    found = administration.counts(queue)
    assert found.active_message_count == 3, "two waiting and one deferred"
    assert found.dead_letter_message_count == 1
    assert found.scheduled_message_count == 2
    assert found.transfer_message_count == 0
    assert found.transfer_dead_letter_message_count == 0
    assert found.total_message_count == 6
    assert found.size_in_bytes is not None
    assert found.size_in_bytes > 0

    await bus.receive(queue, sub_queue=DEAD_LETTERS)
    assert administration.counts(queue).dead_letter_message_count == 0


@pytest.mark.parametrize(
    ("field", "named", "value"),
    [
        ("forward_to", "ForwardTo", "elsewhere"),
        ("forward_dead_lettered_messages_to", "ForwardDeadLetteredMessagesTo", "elsewhere"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(
    administration: Administration, field: str, named: str, value: Any
) -> None:
    """Never accepted and ignored; nothing is stored."""
    name = f"refused-{os.getpid()}-{named.lower()}"
    with pytest.raises(HttpResponseError) as refused:
        administration.client.create_queue(name, **{field: value})
    assert refused.value.status_code == 400
    assert named in str(refused.value)
    assert "TrackingId:" in str(refused.value)
    with pytest.raises(ResourceNotFoundError):
        administration.client.get_queue(name)


@pytest.mark.parametrize(
    ("field", "named", "value"),
    [
        ("lock_duration", "LockDuration", timedelta(minutes=6)),
        ("lock_duration", "LockDuration", timedelta(seconds=0)),
        ("default_message_time_to_live", "DefaultMessageTimeToLive", timedelta(0)),
        ("max_size_in_megabytes", "MaxSizeInMegabytes", -1),
        ("user_metadata", "UserMetadata", "x" * 5000),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(
    make_queue: Callable[..., str], field: str, named: str, value: Any
) -> None:
    with pytest.raises(HttpResponseError) as refused:
        make_queue(**{field: value})
    assert refused.value.status_code == 400
    assert named in str(refused.value)


async def test_the_async_administration_client_works_too(server: Server) -> None:
    name = f"async-{os.getpid()}"
    async with AsyncClient.from_connection_string(server.connection_string) as client:
        client._impl._client._base_url = "http://{endpoint}"
        created = await client.create_queue(name, max_delivery_count=4)
        assert created.max_delivery_count == 4
        created.max_delivery_count = 5
        await client.update_queue(created)
        assert (await client.get_queue(name)).max_delivery_count == 5
        counts = await client.get_queue_runtime_properties(name)
        assert counts.total_message_count == 0
        assert name in [found.name async for found in client.list_queues()]
        await client.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            await client.get_queue(name)


def test_times_of_a_new_entity_and_of_an_unused_one(administration: Administration) -> None:
    """As in Azure: a subscription was accessed when it was made, a queue or topic was never."""
    never = datetime(1, 1, 1, tzinfo=UTC)
    queue, topic = administration.make_queue(), administration.make_topic()
    subscription = administration.make_subscription(topic)
    client = administration.client
    for times, accessed in (
        (client.get_queue_runtime_properties(queue), never),
        (client.get_topic_runtime_properties(topic), never),
        (client.get_subscription_runtime_properties(*subscription), None),
    ):
        assert times.created_at_utc is not None
        assert times.updated_at_utc == times.created_at_utc
        assert times.accessed_at_utc == (accessed or times.created_at_utc)
        assert abs(times.created_at_utc - datetime.now(UTC)) < timedelta(minutes=10)

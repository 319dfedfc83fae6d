"""The SDK's own administration client against the application, over a real connection."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import ApiVersion, ServiceBusAdministrationClient

from postbus.model.description import QueueCounts
from tests.support.administration import administration_client
from tests.unit.http.conftest import connection_string
from tests.unit.http.memory import MemoryNamespace


def test_a_queue_from_creation_to_deletion(
    admin: ServiceBusAdministrationClient, namespace: MemoryNamespace
) -> None:
    created = admin.create_queue("txt/.-_123", lock_duration="PT60S", user_metadata="mine")
    assert (created.name, created.lock_duration) == ("txt/.-_123", timedelta(minutes=1))

    queue = admin.get_queue("txt/.-_123")
    assert (queue.status, queue.availability_status) == ("Active", "Available")
    assert queue.authorization_rules is None
    # the rounded "for ever" goes there and back again
    for minutes in (2, 3):
        admin.update_queue(admin.get_queue("txt/.-_123"), lock_duration=f"PT{minutes}M")
        changed = admin.get_queue("txt/.-_123")
        assert changed.lock_duration == timedelta(minutes=minutes)
        assert changed.user_metadata == "mine"
        assert changed.default_message_time_to_live is not None
    held = namespace.queue("txt/.-_123")
    assert held is not None and held.description.default_ttl_ms is None

    admin.delete_queue("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_queue("txt/.-_123")


def test_counts_of_a_queue(
    admin: ServiceBusAdministrationClient, namespace: MemoryNamespace
) -> None:
    admin.create_queue("orders")
    namespace.all_counts["orders"] = QueueCounts(1, 2, 3, 4, 5, size_bytes=600)
    for counts in (
        admin.get_queue_runtime_properties("orders"),
        *admin.list_queues_runtime_properties(),
    ):
        assert counts.active_message_count == 1
        assert counts.dead_letter_message_count == 2
        assert counts.scheduled_message_count == 3
        assert counts.transfer_message_count == 4
        assert counts.transfer_dead_letter_message_count == 5
        assert counts.total_message_count == 15
        assert counts.size_in_bytes == 600
        assert counts.accessed_at_utc is not None


def test_lists_come_whole_over_several_pages(admin: ServiceBusAdministrationClient) -> None:
    assert list(admin.list_queues()) == []
    names = [f"q{number:03d}" for number in range(23)]
    for name in names:
        admin.create_queue(name)
    assert [queue.name for queue in admin.list_queues(max_page_size=10)] == names
    assert [queue.name for queue in admin.list_queues()] == names
    assert list(admin.list_topics()) == []


def test_an_older_version_of_the_api(port: int) -> None:
    with administration_client(
        connection_string(port), api_version=ApiVersion.V2017_04, retry_total=0
    ) as admin:
        admin.create_queue("orders")
        assert [queue.name for queue in admin.list_queues()] == ["orders"]


def test_the_namespace(admin: ServiceBusAdministrationClient) -> None:
    properties = admin.get_namespace_properties()
    assert properties.name == "test-namespace"
    assert properties.messaging_sku == "Standard"


def test_refusals_are_the_sdks_own_exceptions(admin: ServiceBusAdministrationClient) -> None:
    admin.create_queue("orders")
    queue = admin.get_queue("orders")
    with pytest.raises(ResourceExistsError):
        admin.create_queue("orders")
    assert admin.create_queue("sessions", requires_session=True).requires_session
    with pytest.raises(HttpResponseError, match="RequiresSession property of an existing Queue"):
        admin.update_queue(queue, requires_session=True)
    with pytest.raises(HttpResponseError, match="maximum of '5' minutes"):
        admin.update_queue(queue, lock_duration=timedelta(days=25))
    with pytest.raises(HttpResponseError, match="'MaxMessageSizeInKilobytes'"):
        admin.create_queue("large", max_message_size_in_kilobytes=1_023)
    with pytest.raises(ResourceExistsError):
        admin.create_topic("Orders")
    with pytest.raises(HttpResponseError, match="URI_PATH"):
        admin.create_queue("")
    queue.name = "absent"
    with pytest.raises(HttpResponseError):
        admin.update_queue(queue)


def test_a_wrong_key_is_an_authentication_error(port: int) -> None:
    text = connection_string(port, key="wrong")
    with (
        administration_client(text, retry_total=0) as admin,
        pytest.raises(ClientAuthenticationError, match="claim is empty or token is invalid"),
    ):
        list(admin.list_queues())

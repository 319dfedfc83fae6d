"""The SDK's own administration client against the application, over a real connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from threading import Thread

import pytest
import uvicorn
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import ApiVersion, ServiceBusAdministrationClient

from postbus.model.description import QueueCounts
from tests.support.administration import administration_client
from tests.unit.http.fakes import KEY, KEY_NAME, MemoryNamespace, application


@pytest.fixture
def namespace() -> MemoryNamespace:
    return MemoryNamespace(now=int(time.time() * 1_000))


@pytest.fixture
def port(namespace: MemoryNamespace) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(namespace), ws="none", log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def connection_string(port: int, name: str = KEY_NAME, key: str = KEY) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true"
    )


@pytest.fixture
def client(port: int) -> Iterator[ServiceBusAdministrationClient]:
    with administration_client(connection_string(port), retry_total=0) as admin:
        yield admin


def test_a_queue_from_creation_to_deletion(
    client: ServiceBusAdministrationClient, namespace: MemoryNamespace
) -> None:
    created = client.create_queue("txt/.-_123", lock_duration="PT60S", user_metadata="mine")
    assert (created.name, created.lock_duration) == ("txt/.-_123", timedelta(minutes=1))

    queue = client.get_queue("txt/.-_123")
    assert (queue.status, queue.availability_status) == ("Active", "Available")
    assert queue.authorization_rules is None
    # the rounded "for ever" goes there and back again
    for minutes in (2, 3):
        client.update_queue(client.get_queue("txt/.-_123"), lock_duration=f"PT{minutes}M")
        changed = client.get_queue("txt/.-_123")
        assert changed.lock_duration == timedelta(minutes=minutes)
        assert changed.user_metadata == "mine"
        assert changed.default_message_time_to_live is not None
    held = namespace.queue("txt/.-_123")
    assert held is not None and held.description.default_ttl_ms is None

    client.delete_queue("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("txt/.-_123")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("txt/.-_123")


def test_counts_of_a_queue(
    client: ServiceBusAdministrationClient, namespace: MemoryNamespace
) -> None:
    client.create_queue("orders")
    namespace.all_counts["orders"] = QueueCounts(1, 2, 3, 4, 5, size_bytes=600)
    for counts in (
        client.get_queue_runtime_properties("orders"),
        *client.list_queues_runtime_properties(),
    ):
        assert counts.active_message_count == 1
        assert counts.dead_letter_message_count == 2
        assert counts.scheduled_message_count == 3
        assert counts.transfer_message_count == 4
        assert counts.transfer_dead_letter_message_count == 5
        assert counts.total_message_count == 15
        assert counts.size_in_bytes == 600
        assert counts.accessed_at_utc is not None


def test_lists_come_whole_over_several_pages(client: ServiceBusAdministrationClient) -> None:
    assert list(client.list_queues()) == []
    names = [f"q{number:03d}" for number in range(23)]
    for name in names:
        client.create_queue(name)
    assert [queue.name for queue in client.list_queues(max_page_size=10)] == names
    assert [queue.name for queue in client.list_queues()] == names
    assert list(client.list_topics()) == []


def test_an_older_version_of_the_api(port: int) -> None:
    with administration_client(
        connection_string(port), api_version=ApiVersion.V2017_04, retry_total=0
    ) as client:
        client.create_queue("orders")
        assert [queue.name for queue in client.list_queues()] == ["orders"]


def test_the_namespace(client: ServiceBusAdministrationClient) -> None:
    properties = client.get_namespace_properties()
    assert properties.name == "test-namespace"
    assert properties.messaging_sku == "Standard"


def test_refusals_are_the_sdks_own_exceptions(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("orders")
    queue = client.get_queue("orders")
    with pytest.raises(ResourceExistsError):
        client.create_queue("orders")
    with pytest.raises(HttpResponseError, match="'RequiresSession'"):
        client.create_queue("sessions", requires_session=True)
    with pytest.raises(HttpResponseError, match="RequiresSession property of an existing Queue"):
        client.update_queue(queue, requires_session=True)
    with pytest.raises(HttpResponseError, match="maximum of '5' minutes"):
        client.update_queue(queue, lock_duration=timedelta(days=25))
    with pytest.raises(HttpResponseError, match="'MaxMessageSizeInKilobytes'"):
        client.create_queue("large", max_message_size_in_kilobytes=1_024)
    with pytest.raises(HttpResponseError, match="A TopicDescription cannot be stored"):
        client.create_topic("news")
    with pytest.raises(HttpResponseError, match="URI_PATH"):
        client.create_queue("")
    queue.name = "absent"
    with pytest.raises(HttpResponseError):
        client.update_queue(queue)


def test_a_wrong_key_is_an_authentication_error(port: int) -> None:
    text = connection_string(port, key="wrong")
    with (
        administration_client(text, retry_total=0) as client,
        pytest.raises(ClientAuthenticationError, match="claim is empty or token is invalid"),
    ):
        list(client.list_queues())

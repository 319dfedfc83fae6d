"""`postbus serve --queue … --topic …` with a real process: created if absent, left alone if not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.server import Server, ServerDied

NAMED = ("--queue", "orders", "--queue", "bills", "--topic", "news/audit", "--topic", "empty")


def refusal(server: Server) -> str:
    with pytest.raises(ServerDied) as died:
        server.start()
    assert "Traceback" not in str(died.value)
    return str(died.value)


async def test_named_entities_take_messages_at_once(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus]
) -> None:
    server = make_server(*NAMED).start()
    bus = open_bus(server)
    await bus.send("orders", ServiceBusMessage("tea"))
    assert texts(await bus.receive("orders")) == ["tea"]
    async with bus._client.get_topic_sender("news") as sender:
        await sender.send_messages(ServiceBusMessage("all of it"))
    async with bus._client.get_subscription_receiver("news", "audit") as receiver:
        assert texts(await receiver.receive_messages(max_wait_time=5)) == ["all of it"]
    client = Administration(server.connection_string).client
    assert [queue.name for queue in client.list_queues()] == ["bills", "orders"]
    assert [topic.name for topic in client.list_topics()] == ["empty", "news"]


def test_a_restart_leaves_a_named_queue_as_somebody_changed_it(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--queue", "orders").start()
    client = Administration(server.connection_string).client
    queue = client.get_queue("orders")
    queue.max_delivery_count = 4
    client.update_queue(queue)
    server.stop()
    server.start()
    client = Administration(server.connection_string).client
    assert client.get_queue("orders").max_delivery_count == 4
    assert "differs" not in server.log.read_text()


def test_a_file_describes_a_queue_that_is_named_too(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "postbus.toml"
    file.write_text("[queues.orders]\nmax_delivery_count = 3\n")
    server = make_server("--config", str(file), "--queue", "orders", "--queue", "bills").start()
    client = Administration(server.connection_string).client
    assert client.get_queue("orders").max_delivery_count == 3
    assert [queue.name for queue in client.list_queues()] == ["bills", "orders"]


def test_under_the_emulators_file_a_named_queue_locks_for_a_minute_as_others_do(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    file = tmp_path / "Config.json"
    file.write_text('{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns"}]}}')
    server = make_server("--config", str(file), "--queue", "orders").start()
    client = Administration(server.connection_string).client
    assert client.get_queue("orders").lock_duration.total_seconds() == 60


def test_a_wrong_name_stops_the_start_and_is_named(make_server: Callable[..., Server]) -> None:
    told = refusal(make_server("--queue", "orders//new"))
    assert "--queue orders//new: 'URI_PATH' contains disallowed characters" in told


def test_a_queue_that_is_a_topic_already_stops_the_start(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    make_server("--topic", "news").start().stop()
    file = tmp_path / "postbus.toml"
    file.write_text("[queues.orders]\n")
    told = refusal(make_server("--queue", "news", "--config", str(file)))
    assert "error='--queue news: the namespace has a topic of this name'" in told

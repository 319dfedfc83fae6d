"""Partitioned entities over restarts, at their quota, and when they are deleted and exported."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from postbus.model.partitioning import FRAGMENTS, fragment_of
from tests.support.administration import Administration
from tests.support.bus import Bus, gather_messages, text
from tests.support.server import COMMAND, Server


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_r_part_13_a_key_has_its_fragment_after_a_restart_too(
    server: Server, open_bus: Callable[..., Bus], ending: str
) -> None:
    """R-PART-13."""
    administration = Administration(server.connection_string)
    administration.partitioned = True
    queue, sessions = administration.make_queue(), administration.make_queue(requires_session=True)
    topic = administration.make_topic()
    subscription = administration.make_subscription(topic)
    keys = [f"k{n}" for n in range(10)]

    async def send() -> None:
        bus = open_bus(server)
        for entity in (queue, topic):
            await bus.send(entity, *(ServiceBusMessage(key, partition_key=key) for key in keys))
            await bus.send(entity, *(ServiceBusMessage("") for _ in range(FRAGMENTS)))
        await bus.send(sessions, *(ServiceBusMessage(key, session_id=key) for key in keys))

    await send()
    if ending == "stop":
        assert server.stop() == 0
    else:
        server.kill()
    server.start()
    assert administration.client.get_queue(queue).enable_partitioning is True
    assert administration.counts(queue).active_message_count == len(keys) + FRAGMENTS
    await send()
    bus = open_bus(server)
    for source in (queue, subscription):
        found = await bus.receive(source, 2 * (len(keys) + FRAGMENTS))
        numbers = [message.sequence_number for message in found]
        assert len(set(numbers)) == len(found) == 2 * (len(keys) + FRAGMENTS)
        keyed = {text(message): message.sequence_number >> 48 for message in found}
        keyed.pop("")
        assert keyed == {key: fragment_of(key) for key in keys}
    async with bus.receiver(sessions, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        found = await gather_messages(receiver, 2)
        assert len(found) == 2 and len({message.session_id for message in found}) == 1


async def test_r_part_20_a_namespace_has_a_hundred_partitioned_entities(server: Server) -> None:
    """R-PART-20."""
    administration = Administration(server.connection_string)
    queues = [administration.make_queue(enable_partitioning=True) for _ in range(99)]
    administration.make_topic(enable_partitioning=True)
    with pytest.raises(HttpResponseError, match="100 partitioned entities and may have no more"):
        administration.make_queue(enable_partitioning=True)
    administration.make_queue()
    administration.client.delete_queue(queues[0])
    administration.make_topic(enable_partitioning=True)


async def test_a_deleted_partitioned_queue_is_gone_in_all_fragments(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    queue = administration.make_queue(enable_partitioning=True)
    bus = open_bus(server)
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(FRAGMENTS)))
    receiver = await bus.open_receiver(queue)
    administration.client.delete_queue(queue)
    with pytest.raises(MessagingEntityNotFoundError):
        await receiver.receive_messages(max_wait_time=10)
    with pytest.raises(ResourceNotFoundError):
        administration.client.get_queue(queue)
    administration.client.create_queue(queue)
    assert await open_bus(server).peek(queue) == []


def test_an_export_says_which_entities_are_partitioned(server: Server) -> None:
    administration = Administration(server.connection_string)
    queue = administration.make_queue(enable_partitioning=True, max_size_in_megabytes=2_048)
    done = subprocess.run(
        [COMMAND, "export", "--format", "toml", "--data", server.data],
        capture_output=True,
        text=True,
        check=True,
    )
    written = done.stdout.partition(queue)[2].partition("[queues")[0]
    assert "enable_partitioning = true" in written
    assert "max_size_in_megabytes = 2048" in written

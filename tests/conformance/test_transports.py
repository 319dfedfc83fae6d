"""The official Python SDK over TLS and WebSockets; its administration clients over https."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from tests.support.bus import FLAVOURS, Bus, gather_messages, receive_one, text, texts, whole_text
from tests.support.carriers import CARRIERS, carried_by, encrypted, local_ca
from tests.support.server import Server

PROGRAM = Path(__file__).parent / "programs" / "administer.py"

pytestmark = pytest.mark.parametrize("flavour", FLAVOURS)


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bus(flavour: str, carrier: str, server: Server, open_bus: Callable[..., Bus]) -> Bus:
    return open_bus(flavour, **carried_by(carrier, server))


async def test_messages_are_sent_received_and_settled(bus: Bus, queue: str) -> None:
    sender = await bus.open_sender(queue)
    await sender.send_messages([ServiceBusMessage(str(n)) for n in range(20)])
    receiver = await bus.open_receiver(queue, prefetch_count=5)
    received = await gather_messages(receiver, 20)
    assert texts(received) == [str(n) for n in range(20)]
    for message in received[:18]:
        await receiver.complete_message(message)
    await receiver.abandon_message(received[18])
    await receiver.dead_letter_message(received[19], reason="test")
    again = await receive_one(receiver)
    assert (text(again), again.delivery_count) == ("18", 1)
    assert texts(await bus.peek(f"{queue}/$DeadLetterQueue")) == ["19"]


async def test_a_message_larger_than_a_frame_comes_back_whole(bus: Bus, queue: str) -> None:
    body = bytes(range(256)) * 900
    await bus.send(queue, ServiceBusMessage(body))
    (message,) = await bus.receive(queue)
    assert b"".join(message.body) == body


async def test_management_requests_go_the_same_way(bus: Bus, queue: str) -> None:
    sender = await bus.open_sender(queue)
    await sender.send_messages(ServiceBusMessage("first"))
    receiver = await bus.open_receiver(queue)
    message = await receive_one(receiver)
    assert await receiver.renew_message_lock(message) > message.enqueued_time_utc
    await receiver.defer_message(message)
    (deferred,) = await receiver.receive_deferred_messages([message.sequence_number])
    assert text(deferred) == "first"


async def test_a_wrong_key_is_refused_as_it_is_over_tcp(
    flavour: str, carrier: str, server: Server, open_bus: Callable[..., Bus], queue: str
) -> None:
    options = carried_by(carrier, server)
    wrong = options["connection_string"].replace("SAS_KEY_VALUE", "something else")
    bus = open_bus(flavour, **{**options, "connection_string": wrong})
    # Its own doing: with a custom endpoint the SDK calls a refused token a connection error.
    with pytest.raises(ServiceBusConnectionError) as caught:
        await bus.send(queue, ServiceBusMessage("never"))
    assert "InvalidSignature" in whole_text(caught.value)


@pytest.mark.parametrize("carrier", ["tls", "websocket_tls"], indirect=True)
async def test_a_client_that_does_not_know_the_ca_does_not_connect(
    flavour: str, carrier: str, server: Server, open_bus: Callable[..., Bus], queue: str
) -> None:
    options = carried_by(carrier, server)
    del options["connection_verify"]
    bus = open_bus(flavour, **options)
    with pytest.raises(ServiceBusError) as caught:
        await bus.send(queue, ServiceBusMessage("never"))
    assert "certificate" in whole_text(caught.value).lower()


def test_the_administration_client_works_unmodified_over_https(
    flavour: str, server: Server
) -> None:
    """In a process of its own, because the async one reads its variable when it is imported."""
    variable = {"sync": "REQUESTS_CA_BUNDLE", "async": "SSL_CERT_FILE"}[flavour]
    inherited: dict[str, Any] = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), flavour, encrypted(server.connection_string)],
        env={**inherited, variable: str(local_ca(server))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["created", "read", "updated", "listed", "counted", "deleted"]

"""AMQP clients that know nothing of Azure: Proton and rhea, with SASL PLAIN and no $cbs.

The programs in `programs/` have the shape of the first examples that both projects show.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.administration import Administration
from tests.support.bus import Bus
from tests.support.server import Server

PROGRAMS = Path(__file__).parent / "programs"
CLIENTS = ("proton", "rhea")
USER, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


async def run(
    server: Server, client: str, what: str, queue: str, count: int, key: str = KEY
) -> list[str]:
    """Run one of the programs to its end and return the lines it printed."""
    if client == "proton":
        program = [sys.executable, str(PROGRAMS / f"proton_{what}.py")]
        where = f"amqp://localhost:{server.port}"
    else:
        program = [str(Path(sys.executable).with_name("node")), str(PROGRAMS / f"rhea_{what}.mjs")]
        where = str(server.port)
    done = await asyncio.to_thread(
        subprocess.run,
        [*program, where, USER, key, queue, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.fixture
async def bus(server: Server, open_bus: Callable[..., Bus]) -> Bus:
    return open_bus(server)


@pytest.mark.parametrize("sender", CLIENTS)
@pytest.mark.parametrize("receiver", CLIENTS)
async def test_what_one_sends_the_other_receives(
    server: Server, sender: str, receiver: str
) -> None:
    """R-SETTLE-01, R-SETTLE-03, R-SETTLE-09."""
    administration = Administration(server.connection_string)
    queue = administration.make_queue()
    assert (await run(server, sender, "send", queue, 200))[0] == "200 accepted"
    assert administration.counts(queue).active_message_count == 200

    lines = await run(server, receiver, "receive", queue, 200)
    assert lines[:200] == [f"{n} {n}" for n in range(1, 201)]
    assert administration.counts(queue).active_message_count == 0


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_topic_is_used_by_its_name_and_a_subscription_by_its_path(
    server: Server, client: str
) -> None:
    """wire §3.1."""
    administration = Administration(server.connection_string)
    topic = administration.make_topic()
    subscription = administration.make_subscription(topic)
    assert (await run(server, client, "send", topic, 50))[0] == "50 accepted"
    assert administration.counts(subscription).active_message_count == 50
    path = f"{topic}/Subscriptions/{subscription.name}"
    lines = await run(server, client, "receive", path, 50)
    assert lines == [f"{n} {n}" for n in range(1, 51)]
    administration.close()


@pytest.mark.parametrize("client", CLIENTS)
async def test_messages_pass_between_the_official_sdk_and_generic_clients(
    server: Server, bus: Bus, client: str
) -> None:
    queue = Administration(server.connection_string).make_queue()
    await run(server, client, "send", queue, 3)
    messages = await bus.receive(queue, 3)
    assert [message.raw_amqp_message.body[b"sequence"] for message in messages] == [1, 2, 3]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_wrong_key_is_refused_by_sasl(server: Server, bus: Bus, client: str) -> None:
    """R-SETTLE-02: at the SASL layer, before anything is opened."""
    queue = Administration(server.connection_string).make_queue()
    lines = await run(server, client, "send", queue, 1, key="another")
    assert lines
    assert "accepted" not in "".join(lines)
    assert await bus.peek(queue) == []


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_unknown_queue_is_refused_by_name(server: Server, client: str) -> None:
    """wire §3.4: attach without a terminus, then detach with the error."""
    lines = await run(server, client, "send", "no-such-queue", 1)
    assert "no-such-queue" in "".join(lines)
    assert "amqp:not-found" in "".join(lines)

"""The `$management` node of a part of a queue acts on that part (wire §6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from postbus.amqp.codec.types import AmqpArray, Long
from postbus.amqp.events import MessageReceived
from postbus.amqp.sections import encode_data
from tests.support.access import Caller
from tests.support.administration import Administration
from tests.support.server import Server

DEAD = "$DeadLetterQueue/$management"
_UUID = 0x98
_LONG = 0x81


@pytest.fixture
def server(make_server: Callable[..., Server]) -> Server:
    return make_server().start()


@pytest.fixture
def queue(server: Server) -> str:
    return Administration(server.connection_string).make_queue()


def locked(caller: Caller, queue: str) -> UUID:
    """Sends a message, receives it and returns its lock."""
    caller.sender(queue).send(b"1", (encode_data(b"x"),), settled=True)
    link = caller.receiver(queue)
    link.grant(1)
    caller.write()
    while True:
        event = caller.until(MessageReceived)
        if event.link is link:
            return UUID(bytes_le=event.delivery.tag)


def ask(caller: Caller, node: str, operation: str, value: dict[str, Any]) -> tuple[int, str]:
    status, text, _ = caller.call(node, {"operation": f"com.microsoft:{operation}"}, value)
    return status, text


def test_a_lock_is_used_at_its_own_part_of_the_queue_only(server: Server, queue: str) -> None:
    with Caller(server, "RootManageSharedAccessKey", "SAS_KEY_VALUE") as caller:
        tokens = {"lock-tokens": AmqpArray(_UUID, [locked(caller, queue)])}
        settle = {**tokens, "disposition-status": "completed"}
        for operation, value in (("renew-lock", tokens), ("update-disposition", settle)):
            status, text = ask(caller, f"{queue}/{DEAD}", operation, value)
            assert status == 410 and "lock" in text, operation
        assert ask(caller, f"{queue}/$management", "renew-lock", tokens)[0] == 200
        assert ask(caller, f"{queue}/$management", "update-disposition", settle)[0] == 200


def test_nothing_is_cancelled_by_way_of_the_dead_letter_queue(server: Server, queue: str) -> None:
    with Caller(server, "RootManageSharedAccessKey", "SAS_KEY_VALUE") as caller:
        numbers = {"sequence-numbers": AmqpArray(_LONG, [Long(1)])}
        status, text = ask(caller, f"{queue}/{DEAD}", "cancel-scheduled-message", numbers)
        assert status == 403 and "cannot be scheduled" in text

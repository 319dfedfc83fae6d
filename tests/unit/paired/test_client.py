"""What can be paired, and the thread that a client without asyncio runs its loop in."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient

from postbus.paired import PairedServiceBusClient, SendAvailability
from postbus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from postbus.paired.loop_thread import LoopThread

KEY = "SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
ONE, TWO = (f"Endpoint=sb://localhost:{port};{KEY}" for port in (1, 2))
NAMED = SendAvailability(primary_name="one")


class NoQueues:
    async def make(self, path: str) -> None:
        raise AssertionError("nothing is made before the pairing")


def ready(text: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(text)


def pair(primary: Any, secondary: Any, **options: Any) -> AsyncPairedServiceBusClient:
    options.setdefault("options", NAMED)
    return AsyncPairedServiceBusClient(primary, secondary, administration=NoQueues(), **options)


@pytest.mark.parametrize("kind", [PairedServiceBusClient, AsyncPairedServiceBusClient])
def test_r_pair_01_a_namespace_is_not_paired_with_itself(kind: Any) -> None:
    """R-PAIR-01."""
    with pytest.raises(ValueError, match="itself"):
        kind.from_connection_string(ONE, secondary=ONE.replace("localhost", "LOCALHOST"))
    with pytest.raises(ValueError, match="itself"):
        pair(ready(ONE), ready(ONE))


@pytest.mark.parametrize("kind", [PairedServiceBusClient, AsyncPairedServiceBusClient])
def test_r_pair_02_a_primary_without_a_name_needs_one(kind: Any) -> None:
    """R-PAIR-02."""
    with pytest.raises(ValueError, match="primary_name"):
        kind.from_connection_string(ONE, secondary=TWO)


def test_r_pair_01_a_client_is_paired_once() -> None:
    """R-PAIR-01."""
    primary = ready(ONE)
    paired = pair(primary, ready(TWO))
    with pytest.raises(ValueError, match="already"):
        pair(primary, ready(TWO))
    with pytest.raises(TypeError, match="PairedServiceBusClient"):
        pair(paired, ready(TWO))


def test_a_syphon_needs_keys() -> None:
    with pytest.raises(ValueError, match="enable_syphon"):
        pair(
            ready(ONE),
            ready(TWO),
            options=SendAvailability(primary_name="one", enable_syphon=True),
        )


def test_a_closed_sender_or_client_sends_no_more() -> None:
    client = PairedServiceBusClient.from_connection_string(ONE, secondary=TWO, options=NAMED)
    sender = client.get_queue_sender("orders")
    sender.close()
    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages({"body": "x"})
    with pytest.raises(ValueError, match="greater than 0"):
        client.get_queue_sender("orders").send_messages({"body": "x"}, timeout=0)
    client.close()
    client.close()
    assert "postbus-paired" not in {each.name for each in threading.enumerate()}


def test_the_loop_has_the_callers_context_and_ends_with_its_thread() -> None:
    loop = LoopThread()
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    trace.set("t1")

    async def inside() -> tuple[str, str]:
        return trace.get(), threading.current_thread().name

    assert loop.run(inside) == ("t1", "postbus-paired")

    async def within() -> Any:
        return loop.run(inside)

    with pytest.raises(RuntimeError, match="on_change"):
        loop.run(within)
    with pytest.raises(TimeoutError):
        loop.run(lambda: asyncio.sleep(10), 0.05)
    loop.stop()
    assert "postbus-paired" not in {each.name for each in threading.enumerate()}


def test_a_loop_of_before_a_fork_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = LoopThread()

    async def nothing() -> None:
        pass

    loop.run(nothing)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="fork"):
            loop.run(nothing)
    loop.stop()

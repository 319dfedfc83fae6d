"""Who may connect, and what the SDK raises for those who may not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from urllib.parse import quote_plus

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.support.administration import administration_client
from tests.support.bus import FLAVOURS, Bus, texts, whole_text
from tests.support.server import Server

DENIED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)


def signature(resource: str, key: str, name: str, lasts_s: int = 3600) -> str:
    """A SAS token by hand (wire §2.3)."""
    encoded, expiry = quote_plus(resource), str(int(time.time()) + lasts_s)
    digest = hmac.new(key.encode(), f"{encoded}\n{expiry}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={encoded}&sig={sig}&se={expiry}&skn={name}"


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("SAS_KEY_VALUE", "another"), ("RootManageSharedAccessKey", "NoSuchKey")],
    ids=["wrong key", "unknown key name"],
)
async def test_a_wrong_key_is_refused(
    open_bus: Callable[..., Bus], queue: str, server: Server, flavour: str, right: str, wrong: str
) -> None:
    """R-SETTLE-02; wire §2.2: 401."""
    bus = open_bus(flavour, connection_string=server.connection_string.replace(right, wrong))
    with pytest.raises(DENIED):
        await bus.send(queue, ServiceBusMessage("x"))
    with pytest.raises(DENIED):
        await bus.receive(queue)


async def test_the_administration_api_refuses_a_wrong_key(server: Server, queue: str) -> None:
    """wire §9.5: 401."""
    wrong = server.connection_string.replace("SAS_KEY_VALUE", "another")
    with (
        administration_client(wrong, retry_total=0) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        client.get_queue(queue)


def with_token(server: Server, token: str) -> str:
    endpoint = server.connection_string.split(";", 1)[0]
    return f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"


async def test_a_token_made_elsewhere_is_accepted(
    open_bus: Callable[..., Bus], queue: str, server: Server, flavour: str
) -> None:
    """wire §2.3: whoever has the key can make tokens, for an entity or for all."""
    for resource in (f"sb://localhost:{server.port}/{queue}", f"sb://localhost:{server.port}"):
        token = signature(resource, "SAS_KEY_VALUE", "RootManageSharedAccessKey")
        bus = open_bus(flavour, connection_string=with_token(server, token))
        await bus.send(queue, ServiceBusMessage("x"))
        assert texts(await bus.receive(queue)) == ["x"]


async def test_an_expired_token_is_refused(
    open_bus: Callable[..., Bus], queue: str, server: Server, flavour: str
) -> None:
    resource = f"sb://localhost:{server.port}/{queue}"
    token = signature(resource, "SAS_KEY_VALUE", "RootManageSharedAccessKey", lasts_s=-60)
    bus = open_bus(flavour, connection_string=with_token(server, token))
    with pytest.raises(DENIED):
        await bus.send(queue, ServiceBusMessage("x"))


async def test_a_token_for_another_queue_is_refused(
    open_bus: Callable[..., Bus],
    queue: str,
    make_queue: Callable[..., str],
    server: Server,
    flavour: str,
) -> None:
    """wire §2.2: the audience covers its own path and what lies below."""
    resource = f"sb://localhost:{server.port}/{make_queue()}"
    token = signature(resource, "SAS_KEY_VALUE", "RootManageSharedAccessKey")
    bus = open_bus(flavour, connection_string=with_token(server, token))
    with pytest.raises(DENIED):
        await bus.send(queue, ServiceBusMessage("x"))


async def test_a_tampered_token_is_refused(
    open_bus: Callable[..., Bus], queue: str, server: Server, flavour: str
) -> None:
    token = signature(f"sb://localhost:{server.port}", "SAS_KEY_VALUE", "RootManageSharedAccessKey")
    head, _, expiry = token.partition("&se=")
    seconds, _, rest = expiry.partition("&")
    later = f"{head}&se={int(seconds) + 100}&{rest}"
    bus = open_bus(flavour, connection_string=with_token(server, later))
    with pytest.raises(DENIED):
        await bus.send(queue, ServiceBusMessage("x"))


@pytest.mark.parametrize("use", ["send", "receive", "peek"])
async def test_an_unknown_queue_is_not_found(bus: Bus, use: str) -> None:
    """wire §2.2, §7.2: refused at put-token, as Azure does, and the text says which."""
    attempts = {
        "send": lambda: bus.send("no-such-queue", ServiceBusMessage("x")),
        "receive": lambda: bus.receive("no-such-queue"),
        "peek": lambda: bus.peek("no-such-queue"),
    }
    with pytest.raises(ServiceBusAuthenticationError) as refused:
        await attempts[use]()
    said = whole_text(refused.value)
    assert "The messaging entity 'sb://" in said
    assert "no-such-queue' could not be found." in said
    assert "TrackingId:" in said


async def test_other_clients_do_not_notice_a_refusal(
    open_bus: Callable[..., Bus], queue: str, server: Server
) -> None:
    """Bad input on one connection is that connection's own affair."""
    good = open_bus("async")
    sender = await good.open_sender(queue)
    await sender.send_messages(ServiceBusMessage("before"))
    wrong = server.connection_string.replace("SAS_KEY_VALUE", "another")
    with pytest.raises(ServiceBusError):
        await open_bus("async", connection_string=wrong).send(queue, ServiceBusMessage("x"))
    await sender.send_messages(ServiceBusMessage("after"))
    assert texts(await good.peek(queue)) == ["before", "after"]

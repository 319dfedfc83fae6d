"""The same keys over every carrier, on topics and subscriptions, and on messages over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from postbus.amqp.events import Closed
from tests.support.access import Caller, Refused, ask, sas, with_key
from tests.support.administration import administration_client
from tests.support.bus import Bus, whole_text
from tests.support.carriers import CARRIERS, carried_by, local_ca
from tests.support.keyed import KEYS, OTHERS, SECONDARY, keyed_server
from tests.support.server import Server

DENIED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
UNAUTHORIZED = "amqp:unauthorized-access"
TOKEN = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = keyed_server(tmp_path_factory.mktemp("elsewhere"))
    yield server
    server.discard()


def refused(caller: Caller, kind: str, address: str) -> str:
    answer = caller.attach(kind, address)
    assert isinstance(answer, Refused), f"{kind} {address}"
    assert answer.condition == UNAUTHORIZED
    return answer.text


def attached(caller: Caller, kind: str, address: str) -> Any:
    answer = caller.attach(kind, address)
    assert not isinstance(answer, Refused), answer
    return answer


# -- TLS and WebSockets ------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_key_opens_no_more_over_another_carrier(server: Server, carrier: str) -> None:
    listens = sas("a-listens", KEYS["a-listens"])
    with Caller(server, carrier=carrier) as caller:
        refused(caller, "receive", "a")
        assert caller.put_token("sb://localhost/a", listens).status == 202
        attached(caller, "receive", "a")
        assert "'Send' claim(s) are required" in refused(caller, "send", "a")
        for other in OTHERS:
            assert caller.put_token(f"sb://localhost/{other}", listens).status == 401
            refused(caller, "receive", other)
            refused(caller, "send", other)
        for operation, status in (("schedule-message", 401), ("peek-message", 400)):
            asked = {"operation": f"com.microsoft:{operation}"}
            assert caller.call("a/$management", asked, {})[0] == status
    with Caller(server, "a-sends", SECONDARY["a-sends"], carrier) as caller:
        attached(caller, "send", "a")
        refused(caller, "receive", "a")
        refused(caller, "send", "b")
    with Caller(server, "a-sends", KEYS["a-listens"], carrier) as caller:
        assert not caller.until(Closed).clean


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_the_official_client_has_the_rights_of_its_key_over_another_carrier(
    server: Server, carrier: str
) -> None:
    for name, sends in (("a-sends", True), ("all-listens", False)):
        options = carried_by(carrier, server)
        string = options.pop("connection_string")
        string = string.replace("RootManageSharedAccessKey", name)
        bus = Bus("async", string.replace("SAS_KEY_VALUE", KEYS[name]), **options)
        try:
            if sends:
                await bus.send("a", ServiceBusMessage("x"))
                with pytest.raises(DENIED) as denied:
                    await bus.peek("a")
            else:
                assert await bus.peek("a")
                with pytest.raises(DENIED) as denied:
                    await bus.send("a", ServiceBusMessage("x"))
            assert "claim(s) are required" in whole_text(denied.value)
            # With a custom endpoint the SDK calls a refused token a connection error.
            with pytest.raises((*DENIED, ServiceBusConnectionError)) as denied:
                await bus.send("a/b", ServiceBusMessage("x"))
            assert "401" in whole_text(denied.value) or "claim(s)" in whole_text(denied.value)
        finally:
            await bus.close()


def test_the_administration_client_has_the_rights_of_its_key_over_https(server: Server) -> None:
    from azure.servicebus.management import ServiceBusAdministrationClient

    string = with_key(server, "a-owns", KEYS["a-owns"])
    options = {"connection_verify": str(local_ca(server)), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(string, **options) as admin:
        assert admin.get_queue("a").name == "a"
        with pytest.raises(ClientAuthenticationError):
            admin.get_queue("ab")
        with pytest.raises(ClientAuthenticationError):
            admin.create_queue("a/new")


# -- topics ------------------------------------------------------------------------------------


def test_the_keys_of_a_topic_open_its_subscriptions_and_no_other_topic(server: Server) -> None:
    sub = "t/Subscriptions/s"
    with Caller(server, "t-listens", KEYS["t-listens"]) as caller:
        attached(caller, "receive", sub)
        attached(caller, "receive", "t/subscriptions/S/$deadletterqueue")
        refused(caller, "send", "t")
        for address in ("t2", "t2/Subscriptions/s", "a"):
            refused(caller, "receive", address)
        add = {"operation": "com.microsoft:add-rule"}
        status, text, _ = caller.call(f"{sub}/$management", add, {})
        assert status == 401 and "'Manage' claim(s) are required" in text
    with Caller(server, "t-sends", KEYS["t-sends"]) as caller:
        attached(caller, "send", "t")
        refused(caller, "receive", sub)
        refused(caller, "send", "t2")
    with Caller(server, "t-owns", KEYS["t-owns"]) as caller:
        attached(caller, "receive", sub)
        status, _, _ = caller.call(f"{sub}/$management", add, {})
        assert status == 400  # it was read, and is empty


def test_a_token_for_one_subscription_opens_neither_its_topic_nor_another(server: Server) -> None:
    with administration_client(server.connection_string, retry_total=0) as admin:
        admin.create_subscription("t", "s2")
    for name in ("t-owns", "all-owns"):
        with Caller(server) as caller:
            token = sas(name, KEYS[name], "sb://localhost/t/Subscriptions/s")
            assert caller.put_token("sb://localhost/t/subscriptions/s", token).status == 202
            attached(caller, "receive", "t/Subscriptions/s")
            refused(caller, "receive", "t/Subscriptions/s2")
            refused(caller, "send", "t")
            assert caller.put_token("sb://localhost/t", token).status == 401


def test_who_manages_one_topic_manages_what_lies_below_it(server: Server) -> None:
    own = sas("t-owns", KEYS["t-owns"])
    listens = sas("t-listens", KEYS["t-listens"])
    below = ("t", "t/Subscriptions", "t/Subscriptions/s", "t/Subscriptions/s/Rules/$Default")
    for path in below:
        assert ask(server, "GET", path, own).status == 200, path
        assert ask(server, "GET", path, listens).status == 401, path
        other = path.replace("t", "t2", 1)
        assert ask(server, "GET", other, own).status == 401, other
    text = ask(server, "GET", "t/Subscriptions/s", listens).text
    assert "Unauthorized access for 'GetSubscription' operation" in text


# -- messages over HTTP ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("POST", "a/messages", "Send"),
        ("POST", "a/messages/head", "Listen"),
        ("DELETE", "a/messages/head", "Listen"),
        ("DELETE", f"a/messages/1/{TOKEN}", "Listen"),
        ("PUT", f"a/messages/1/{TOKEN}", "Listen"),
        ("POST", f"a/messages/1/{TOKEN}", "Listen"),
        ("DELETE", "a/$DeadLetterQueue/messages/head", "Listen"),
    ],
)
def test_each_request_for_messages_needs_its_right(
    server: Server, method: str, path: str, right: str
) -> None:
    lacking, having = ("listens", "sends") if right == "Send" else ("sends", "listens")
    for owner in ("all", "a"):
        name = f"{owner}-{lacking}"
        for uri in ("https://localhost", "https://localhost/a", f"https://localhost/{path}"):
            answer = ask(server, method, path, sas(name, KEYS[name], uri), b"x")
            assert answer.status == 401
            assert f"'{right}' claim(s) are required" in answer.text
        name = f"{owner}-{having}"
        for uri in ("https://localhost", f"https://localhost/{path}"):
            token = sas(name, KEYS[name], uri)
            assert ask(server, method, f"{path}?timeout=0", token, b"x").status != 401
    # nor does a key of this queue, or a token for it, serve for another
    for other in OTHERS:
        moved = other + path[1:]
        narrow = sas("all-owns", KEYS["all-owns"], "https://localhost/a")
        for token in (sas("a-owns", KEYS["a-owns"]), narrow):
            assert ask(server, method, moved, token, b"x").status == 401


def test_a_token_for_the_messages_of_a_queue_does_not_manage_it(server: Server) -> None:
    token = sas("a-owns", KEYS["a-owns"], "https://localhost/a/messages")
    assert ask(server, "POST", "a/messages", token, b"x").status == 201
    assert ask(server, "GET", "a", token).status == 401
    assert ask(server, "POST", "a/$DeadLetterQueue/messages/head", token).status == 401
    with Caller(server) as caller:
        assert caller.put_token("sb://localhost/a", token).status == 401

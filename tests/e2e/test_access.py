"""A key opens what it is for and nothing else: every operation, over AMQP and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from postbus.amqp.events import Closed
from tests.support.access import Caller, Refused, ask, sas, with_key
from tests.support.administration import administration_client
from tests.support.bus import DEAD_LETTERS, Bus, manage, texts, whole_text
from tests.support.keyed import KEYS, OTHERS, SECONDARY, keyed_server
from tests.support.server import Server

DENIED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
UNAUTHORIZED = "amqp:unauthorized-access"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = keyed_server(tmp_path_factory.mktemp("access"))
    yield server
    server.discard()


@pytest.fixture
async def open_as(server: Server) -> AsyncIterator[Callable[..., Bus]]:
    """Opens the official client with one of the keys."""
    opened: list[Bus] = []

    def make(name: str, flavour: str = "async", secondary: bool = False) -> Bus:
        value = SECONDARY[name] if secondary else KEYS[name]
        opened.append(Bus(flavour, with_key(server, name, value)))
        return opened[-1]

    yield make
    for bus in opened:
        await bus.close()


def root(server: Server) -> ServiceBusAdministrationClient:
    return administration_client(server.connection_string, retry_total=0)


async def denied(attempt: Awaitable[Any]) -> str:
    with pytest.raises(DENIED) as refused:
        await attempt
    return whole_text(refused.value)


# -- AMQP, by the official client --------------------------------------------------------------


@pytest.mark.parametrize("name", ["all-sends", "a-sends"])
async def test_who_may_send_can_do_nothing_else(open_as: Callable[..., Bus], name: str) -> None:
    bus = open_as(name)
    await bus.send("a", ServiceBusMessage("x"))
    said = await denied(bus.receive("a"))
    assert "'Listen' claim(s) are required to perform this operation" in said
    assert "Resource: 'sb://localhost/a'" in said
    await denied(bus.receive("a", sub_queue=DEAD_LETTERS))
    await denied(bus.peek("a"))


@pytest.mark.parametrize("name", ["all-listens", "a-listens"])
async def test_who_may_listen_can_do_nothing_else(open_as: Callable[..., Bus], name: str) -> None:
    bus = open_as(name)
    assert await bus.peek("a") is not None
    assert await bus.peek("a", sub_queue=DEAD_LETTERS) == []
    said = await denied(bus.send("a", ServiceBusMessage("x")))
    assert "'Send' claim(s) are required to perform this operation" in said


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("secondary", [False, True], ids=["primary", "secondary"])
@pytest.mark.parametrize("name", ["all-owns", "a-owns"])
async def test_who_may_manage_can_do_all_of_it_with_either_key(
    open_as: Callable[..., Bus], server: Server, name: str, secondary: bool, flavour: str
) -> None:
    bus = open_as(name, flavour, secondary)
    await bus.send("a", ServiceBusMessage(name))
    async with bus.receiver("a") as receiver:
        assert await receiver.peek_messages()
        [message] = await receiver.receive_messages(max_message_count=1)
        await receiver.complete_message(message)
    async with bus.sender("a") as sender:
        later = datetime.now(UTC) + timedelta(days=1)
        numbers = await sender.schedule_messages(ServiceBusMessage("later"), later)
        await sender.cancel_scheduled_messages(numbers)
    value = SECONDARY[name] if secondary else KEYS[name]
    with administration_client(with_key(server, name, value), retry_total=0) as admin:
        admin.update_queue(admin.get_queue("a"))


OPERATIONS = {
    "renew-lock": "Listen",
    "peek-message": "Listen",
    "receive-by-sequence-number": "Listen",
    "update-disposition": "Listen",
    "batch-delete-messages": "Listen",
    "schedule-message": "Send",
    "cancel-scheduled-message": "Send",
}


@pytest.mark.parametrize("name", ["all-sends", "a-sends", "all-listens", "a-listens"])
async def test_each_management_operation_needs_its_right(
    open_as: Callable[..., Bus], name: str
) -> None:
    """An empty question is enough: without the right it is not even read (wire §2.4)."""
    bus = open_as(name)
    has = "Send" if name.endswith("sends") else "Listen"
    async with bus.sender("a") if has == "Send" else bus.receiver("a") as handler:
        for operation, right in OPERATIONS.items():
            reply = await manage(handler, operation, {})
            if right == has:
                assert reply.status == 400
            else:
                assert (reply.status, reply.condition) == (401, UNAUTHORIZED)
                assert f"'{right}' claim(s) are required" in (reply.description or "")


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["a-sends", "a-listens", "a-owns"])
async def test_the_key_of_a_queue_does_not_open_another(
    open_as: Callable[..., Bus], name: str, other: str
) -> None:
    """Path boundaries: `ab` begins with `a`, and `a/b` lies below it, and neither is it."""
    bus = open_as(name)
    await denied(bus.send(other, ServiceBusMessage("x")))
    await denied(bus.receive(other))
    await denied(bus.peek(other, sub_queue=DEAD_LETTERS))


@pytest.mark.parametrize("signed_for", ["a", "A/", "a/$management"])
async def test_a_token_for_a_queue_does_not_open_another(server: Server, signed_for: str) -> None:
    """Also where a key of the whole namespace has made it."""
    token = sas("all-owns", KEYS["all-owns"], f"sb://localhost/{signed_for}")
    with Caller(server) as caller:
        assert caller.put_token(f"sb://localhost/{signed_for}", token).status == 202
        for other in OTHERS:
            answer = caller.put_token(f"sb://localhost/{other}", token)
            assert answer.status == 401 and "InvalidAudience" in answer.text
            for kind in ("send", "receive"):
                for address in (other, f"{other}/$DeadLetterQueue", f"{other}/$management"):
                    refused = caller.attach(kind, address)
                    assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED


def test_a_token_for_a_part_of_a_queue_does_not_open_the_rest(server: Server) -> None:
    token = sas("all-owns", KEYS["all-owns"], "sb://localhost/a/$DeadLetterQueue")
    with Caller(server) as caller:
        assert caller.put_token("sb://localhost/a/$DeadLetterQueue", token).status == 202
        assert not isinstance(caller.attach("receive", "a/$DeadLetterQueue"), Refused)
        for kind in ("send", "receive"):
            refused = caller.attach(kind, "a")
            assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED


def test_two_tokens_of_one_connection_stand_beside_each_other(server: Server) -> None:
    """One for each audience, both made for the whole namespace (wire §2.2)."""
    with Caller(server) as caller:
        listens = sas("all-listens", KEYS["all-listens"])
        sends = sas("all-sends", KEYS["all-sends"])
        assert caller.put_token("sb://localhost/a", listens).status == 202
        receiving = caller.attach("receive", "a")
        assert caller.put_token("sb://localhost/b", sends).status == 202
        assert not isinstance(caller.attach("send", "b"), Refused)
        assert not isinstance(receiving, Refused) and receiving.attached


# -- AMQP, by name and key ---------------------------------------------------------------------


def test_a_login_with_the_key_of_a_queue_opens_that_queue(server: Server) -> None:
    with Caller(server, "a-listens", KEYS["a-listens"]) as caller:
        assert not isinstance(caller.attach("receive", "a"), Refused)
        assert not isinstance(
            caller.attach("receive", "amqp://localhost/A/$DeadLetterQueue"), Refused
        )
        for kind, address in (
            ("send", "a"),
            *(("receive", other) for other in OTHERS),
            *(("send", other) for other in OTHERS),
        ):
            refused = caller.attach(kind, address)
            assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED, address
        peek = {"operation": "com.microsoft:peek-message"}
        status, _, _ = caller.call(
            "a/$management", peek, {"from-sequence-number": 0, "message-count": 1}
        )
        assert status in (200, 204)


def test_a_login_needs_the_key_that_goes_with_the_name(server: Server) -> None:
    for name, value in (
        ("a-listens", KEYS["a-sends"]),
        ("all-listens", KEYS["a-listens"]),
        ("nobody", KEYS["a-sends"]),
    ):
        with Caller(server, name, value) as caller:
            assert not caller.until(Closed).clean


# -- HTTP --------------------------------------------------------------------------------------

ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
READ = "Manage,EntityRead claims required for this operation"
WRITE = "Authorization failed for specified action: Manage,EntityWrite"
DELETE = "Authorization failed for specified action: Manage,EntityDelete."
REQUESTS = [
    ("GET", "a", READ),
    ("GET", "$Resources/queues", READ),
    ("GET", "$Resources/topics", READ),
    ("GET", "$namespaceinfo", READ),
    ("PUT", "new", WRITE),
    ("UPDATE", "a", WRITE),
    ("DELETE", "a", DELETE),
]


@pytest.mark.parametrize(("method", "path", "text"), REQUESTS)
@pytest.mark.parametrize("name", ["all-sends", "all-listens"])
def test_who_may_not_manage_is_told_so(
    server: Server, name: str, method: str, path: str, text: str
) -> None:
    """semantics A §6."""
    answer = ask(server, method, path, sas(name, KEYS[name]), ENTRY)
    assert answer.status == 401
    assert f"<Detail>SubCode=40100. {text}" in answer.text


@pytest.mark.parametrize(("method", "path", "text"), [REQUESTS[0], *REQUESTS[5:]])
@pytest.mark.parametrize("name", ["a-sends", "a-listens"])
def test_the_key_of_a_queue_needs_the_right_as_well(
    server: Server, name: str, method: str, path: str, text: str
) -> None:
    answer = ask(server, method, path, sas(name, KEYS[name]), ENTRY)
    assert answer.status == 401
    assert f"<Detail>SubCode=40100. {text}" in answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, other) for other in OTHERS for method in ("GET", "UPDATE", "DELETE")),
        ("PUT", "a/new"),
        ("PUT", "new"),
        ("GET", "$Resources/queues"),
        ("GET", "$namespaceinfo"),
    ],
)
def test_who_manages_one_queue_manages_no_other(server: Server, method: str, path: str) -> None:
    own = sas("a-owns", KEYS["a-owns"])
    assert ask(server, "GET", "a", own).status == 200
    assert ask(server, method, path, own, ENTRY).status == 401
    for uri in (f"https://localhost/{path}", "https://localhost/a"):
        assert ask(server, method, path, sas("a-owns", KEYS["a-owns"], uri), ENTRY).status == 401
    # nor does a token for that queue by whoever manages all of them
    narrow = sas("all-owns", KEYS["all-owns"], "https://localhost/a")
    assert ask(server, method, path, narrow, ENTRY).status == 401
    assert ask(server, "GET", "a", narrow).status == 200


@pytest.mark.parametrize(
    ("token", "code", "text"),
    [
        (None, 40102, "MissingToken"),
        (sas("all-owns", KEYS["all-owns"], lasts_s=-1), 40106, "ExpiredToken"),
        (sas("all-owns", KEYS["all-sends"]), 40103, "InvalidSignature"),
        (sas("a-owns", SECONDARY["a-sends"]), 40103, "InvalidSignature"),
        ("SharedAccessSignature sr=x", 40105, "MalformedToken"),
        ("Bearer eyJhbGciOi.x.y", 40100, "no issuer of other tokens (JWT) is configured"),
    ],
    ids=["none", "expired", "wrong key", "key of another rule", "malformed", "bearer"],
)
def test_a_token_that_is_not_good_is_told_why(
    server: Server, token: str | None, code: int, text: str
) -> None:
    answer = ask(server, "GET", "a", token)
    assert answer.status == 401
    assert f"SubCode={code}. " in answer.text and text in answer.text
    if token is not None:
        assert "claim is empty or token is invalid" in answer.text
        with Caller(server) as caller:
            answer = caller.put_token("sb://localhost/a", token)
            assert answer.status == 401 and text in answer.text
            refused = caller.attach("receive", "a")
            assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED


def test_the_administration_client_raises_its_own_errors(server: Server) -> None:
    for name in ("all-sends", "all-listens", "a-sends", "a-listens"):
        with administration_client(with_key(server, name, KEYS[name]), retry_total=0) as admin:
            for attempt in (
                lambda: admin.get_queue("a"),
                lambda: admin.delete_queue("a"),
                lambda: admin.create_queue("new"),
                lambda: list(admin.list_queues()),
                admin.get_namespace_properties,
            ):
                with pytest.raises(ClientAuthenticationError):
                    attempt()
    with root(server) as admin:
        assert [queue.name for queue in admin.list_queues()] == ["a", "a/b", "ab", "b"]


def test_keys_are_seen_only_by_who_may_change_them(server: Server) -> None:
    shown = ask(server, "GET", "a", sas("a-owns", SECONDARY["a-owns"])).text
    assert KEYS["a-sends"] in shown
    for name in ("a-sends", "all-listens"):
        assert KEYS["a-sends"] not in ask(server, "GET", "a", sas(name, KEYS[name])).text
    logged = server.log.read_text()
    assert not [value for value in (*KEYS.values(), *SECONDARY.values()) if value in logged]


async def test_a_connection_string_for_one_queue_works_as_the_portal_gives_it(
    server: Server, open_as: Callable[..., Bus]
) -> None:
    text = with_key(server, "a-owns", KEYS["a-owns"])
    string = text.replace(";UseDevelopmentEmulator", ";EntityPath=a;UseDevelopmentEmulator")
    bus = Bus("async", string)
    try:
        await bus.send("a", ServiceBusMessage("by entity path"))
        assert "by entity path" in texts(await bus.peek("a"))
        with pytest.raises((ServiceBusError, ValueError)):
            await bus.send("b", ServiceBusMessage("x"))
    finally:
        await bus.close()

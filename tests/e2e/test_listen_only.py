"""A client with Listen only receives, and cannot send, manage or read another entity.

All its ways in are tried: AMQP over TCP, TLS and WebSockets, with a token and with a login, by hand
and by the official client; messages and management over HTTP. Its key is one of the namespace, of a
queue, or of a topic, whose subscriptions are parts of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)
from azure.servicebus.management import AuthorizationRule

from tests.support.access import Caller, Refused, ask, sas, with_key
from tests.support.administration import administration_client
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic, manage, text, whole_text
from tests.support.carriers import CARRIERS, carried_by, make_local_ca
from tests.support.keyed import key
from tests.support.rest import RestClient
from tests.support.server import Server

DENIED = (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    # in whose place the SDK has this one if its endpoint is given, as for WebSockets and TLS
    ServiceBusConnectionError,
)
UNAUTHORIZED = "amqp:unauthorized-access"
QUEUES = ("q", "q/r", "qq")
TOPICS = ("t", "t/u", "tt")
"""Names that begin alike, and lie below each other, and are not each other."""
SUBSCRIPTIONS = tuple(f"{topic}/Subscriptions/{name}" for topic in TOPICS for name in ("s", "s2"))
READABLE = (*QUEUES, *SUBSCRIPTIONS)


def entity_of(path: str) -> str:
    return path.partition("/Subscriptions/")[0]


class Holder(NamedTuple):
    """Somebody with a key, what that is for, and what it is not for."""

    name: str
    key: str
    reads: tuple[str, ...]

    @property
    def others(self) -> list[str]:
        return [each for each in READABLE if each not in self.reads]

    @property
    def entities(self) -> set[str]:
        """The queues and topics of that."""
        return set(map(entity_of, self.reads))

    @property
    def pair(self) -> tuple[str, str]:
        return self.name, self.key


OF_NAMESPACE = Holder("of-namespace", key(1), READABLE)
OF_QUEUE = Holder("of-queue", key(2), ("q",))
OF_TOPIC = Holder("of-topic", key(3), ("t/Subscriptions/s", "t/Subscriptions/s2"))

holders = pytest.mark.parametrize(
    "holder", [OF_NAMESPACE, OF_QUEUE, OF_TOPIC], ids=lambda holder: holder.name
)
carriers = pytest.mark.parametrize("carrier", ["tcp", *CARRIERS])


def rule(holder: Holder) -> list[AuthorizationRule]:
    kind = "SharedAccessAuthorizationRule"
    name, value = holder.pair
    return [
        AuthorizationRule(
            type=kind, key_name=name, primary_key=value, secondary_key=value, rights=["Listen"]
        )
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("listen-only")
    make_local_ca(folder / "data")
    config = folder / "postbus.toml"
    config.write_text(
        f'[[namespace.authorization_rules]]\nkey_name = "{OF_NAMESPACE.name}"\n'
        f'rights = ["Listen"]\nprimary_key = "{OF_NAMESPACE.key}"\n'
    )
    server = Server(folder / "data", "--config", str(config)).start()
    with administration_client(server.connection_string, retry_total=0) as admin:
        for name in QUEUES:
            admin.create_queue(name, authorization_rules=rule(OF_QUEUE) if name == "q" else None)
        for name in TOPICS:
            admin.create_topic(name, authorization_rules=rule(OF_TOPIC) if name == "t" else None)
            for subscription in ("s", "s2"):
                admin.create_subscription(name, subscription)
    with RestClient(server.connection_string) as client:
        for name in (*QUEUES, *TOPICS):
            assert client.send(name, b"there before").status == 201
    yield server
    server.discard()


@pytest.fixture
def unchanged(server: Server) -> Iterator[None]:
    """Whatever was tried has left no trace."""
    before = state(server)
    yield
    assert state(server) == before


def state(server: Server) -> dict[str, Any]:
    with administration_client(server.connection_string, retry_total=0) as admin:
        found: dict[str, Any] = {}
        for queue in admin.list_queues():
            counts = admin.get_queue_runtime_properties(queue.name)
            found[queue.name] = counts.total_message_count, counts.updated_at_utc
        for topic in admin.list_topics():
            runtime = admin.get_topic_runtime_properties(topic.name)
            found[topic.name] = runtime.scheduled_message_count, runtime.updated_at_utc
            for each in admin.list_subscriptions_runtime_properties(topic.name):
                rules = [one.name for one in admin.list_rules(topic.name, each.name)]
                of = each.total_message_count, each.updated_at_utc, rules
                found[f"{topic.name}|{each.name}"] = of
        return found


def is_refused(answer: Any, right: str) -> bool:
    return (
        isinstance(answer, Refused)
        and answer.condition == UNAUTHORIZED
        and f"'{right}' claim(s) are required" in answer.text
    )


# -- AMQP, by hand -----------------------------------------------------------------------------


def with_tokens(server: Server, holder: Holder, carrier: str) -> Caller:
    """A connection that has put all the tokens that its key is good for, and tried the others."""
    caller = Caller(server, carrier=carrier)
    token = sas(*holder.pair)
    for path in READABLE:
        status = caller.put_token(f"sb://localhost/{path}", token).status
        assert status == (202 if path in holder.reads else 401)
    return caller


@holders
@carriers
@pytest.mark.usefixtures("unchanged")
def test_over_amqp_links_are_for_receiving_and_for_what_the_key_is_for(
    server: Server, holder: Holder, carrier: str
) -> None:
    with with_tokens(server, holder, carrier) as caller:
        for path in holder.reads:
            assert not isinstance(caller.attach("receive", path), Refused)
            assert not isinstance(caller.attach("receive", f"{path}/$DeadLetterQueue"), Refused)
        for path in (*READABLE, *TOPICS, "absent", "t/Subscriptions/absent"):
            assert is_refused(caller.attach("send", path), "Send")
        others = [*holder.others, "absent"] if holder.others else []
        for path in others:
            for part in ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue", "/$management"):
                assert is_refused(caller.attach("receive", path + part), "Listen"), path + part
            assert is_refused(caller.attach("send", f"{path}/$management"), "Listen")


OPERATIONS = {
    "renew-lock": "Listen",
    "peek-message": "Listen",
    "receive-by-sequence-number": "Listen",
    "update-disposition": "Listen",
    "batch-delete-messages": "Listen",
    "schedule-message": "Send",
    "cancel-scheduled-message": "Send",
    "add-rule": "Manage",
    "remove-rule": "Manage",
    "enumerate-rules": "Manage",
}


@holders
@carriers
@pytest.mark.usefixtures("unchanged")
def test_over_amqp_a_management_node_answers_what_a_receiver_may_ask(
    server: Server, holder: Holder, carrier: str
) -> None:
    """An empty question is enough: without the right it is not even read."""
    nodes = sorted({*holder.reads, *holder.entities})
    with Caller(server, *holder.pair, carrier=carrier) as caller:
        assert is_refused(caller.attach("send", nodes[0]), "Send")
        for path in nodes:
            for operation, right in OPERATIONS.items():
                if right == "Manage" and path not in SUBSCRIPTIONS:
                    continue
                asked = {"operation": f"com.microsoft:{operation}"}
                status, said, _ = caller.call(f"{path}/$management", asked, {})
                assert status == (400 if right == "Listen" else 401), (path, operation, said)
                assert right == "Listen" or f"'{right}' claim(s) are required" in said


# -- AMQP, by the official client --------------------------------------------------------------


def client(server: Server, holder: Holder, carrier: str) -> Bus:
    options = {} if carrier == "tcp" else carried_by(carrier, server)
    options["connection_string"] = with_key(server, *holder.pair)
    return Bus("async", **options)


async def denied(attempt: Awaitable[Any]) -> None:
    with pytest.raises(DENIED) as refused:
        await attempt
    said = whole_text(refused.value)
    assert "claim(s) are required" in said or "invalid signature" in said


def source_of(path: str) -> str | Subscription:
    topic, _, name = path.partition("/Subscriptions/")
    return Subscription(Topic(topic), name) if name else path


@holders
@pytest.mark.parametrize("carrier", ["tcp", "websocket"])
@pytest.mark.usefixtures("unchanged")
async def test_the_official_client_is_told_so_in_its_own_errors(
    server: Server, holder: Holder, carrier: str
) -> None:
    bus = client(server, holder, carrier)
    own = source_of(holder.reads[-1])
    try:
        async with bus.receiver(own) as receiver:
            [message] = await receiver.receive_messages(max_message_count=1)
            assert text(message) == "there before"
            await receiver.abandon_message(message)
            if isinstance(own, Subscription):
                for operation in ("add-rule", "remove-rule", "enumerate-rules"):
                    assert (await manage(receiver, operation, {})).status == 401
        assert await bus.peek(own, sub_queue=DEAD_LETTERS) == []
        await asyncio.gather(
            *(denied(bus.send(name, ServiceBusMessage("x"))) for name in ("q", Topic("t"))),
            *(denied(bus.receive(source_of(path))) for path in holder.others),
            *(denied(bus.peek(source_of(path), sub_queue=DEAD_LETTERS)) for path in holder.others),
        )
    finally:
        await bus.close()


# -- HTTP --------------------------------------------------------------------------------------

GUID = "6d3bcd7f-3f3a-4c5b-9d1e-0c3a5f1b2d4e"
RECEIVING = [
    ("POST", "messages/head?timeout=0"),
    ("DELETE", "messages/head?timeout=0"),
    ("DELETE", f"messages/1/{GUID}"),
    ("PUT", f"messages/1/{GUID}"),
    ("POST", f"messages/1/{GUID}"),
]


@holders
@pytest.mark.usefixtures("unchanged")
def test_over_http_messages_are_received_and_not_sent_nor_read_elsewhere(
    server: Server, holder: Holder
) -> None:
    with RestClient(server.connection_string, key=holder.pair) as caller:
        for path in holder.reads:
            locked = caller.lock(path, 0)
            assert (locked.status, locked.body) == (201, b"there before")
            assert caller.request("POST", locked.location).status == 200
            assert caller.request("PUT", locked.location).status == 200
        for path in (*READABLE, *TOPICS, "absent"):
            reply = caller.send(path, b"x")
            assert reply.status == 401
            # of a key that is not the entity's nobody says more than that
            known = holder is OF_NAMESPACE or entity_of(path) in holder.entities
            assert ("'Send' claim(s)" if known else "InvalidSignature") in reply.detail
            assert caller.send_batch(path, [{"Body": "x"}]).status == 401
        for path in holder.others:
            for part in ("", "$DeadLetterQueue/"):
                for method, rest in RECEIVING:
                    reply = caller.request(method, f"/{path}/{part}{rest}")
                    assert reply.status == 401, (method, path, part, rest)
                    assert "InvalidSignature" in reply.detail


@holders
@pytest.mark.usefixtures("unchanged")
def test_over_http_the_feed_is_read_of_what_the_key_is_for_and_nothing_else(
    server: Server, holder: Holder
) -> None:
    """R-PIPE-02: a feed shows all that its entity has held, so it is for who may receive it."""
    progress = b'{"offsets": {"0": 0}}'
    with RestClient(server.connection_string, key=holder.pair) as caller:
        for entity in holder.entities:
            assert caller.request("GET", f"/{entity}/$feed").status == 200
            read = caller.request("GET", f"/{entity}/$feed/0?from=0")
            assert read.status == 200 and b"there before" in read.body
            assert caller.request("PUT", f"/{entity}/$feed/readers/r", progress).status == 204
            assert caller.request("GET", f"/{entity}/$feed/readers").status == 200
            assert caller.request("DELETE", f"/{entity}/$feed/readers/r").status == 204
        others = [each for each in (*QUEUES, *TOPICS) if each not in holder.entities]
        for entity in (*others, *(["absent"] if others else [])):
            for method, path in (
                ("GET", "$feed"),
                ("GET", "$feed/0?from=0"),
                ("GET", "$feed/readers"),
                ("PUT", "$feed/readers/r"),
                ("DELETE", "$feed/readers/r"),
            ):
                assert caller.request(method, f"/{entity}/{path}", progress).status == 401


def test_over_http_a_token_for_less_than_the_entity_does_not_read_its_feed(server: Server) -> None:
    """One for a subscription, or for a dead-letter queue, is for a part of the feed only."""
    for uri in ("t/Subscriptions/s", "t/messages", "q"):
        with RestClient(server.connection_string, uri, OF_NAMESPACE.pair) as caller:
            assert caller.request("GET", "/t/$feed").status == 401, uri
            assert caller.request("GET", "/t/$feed/0?from=0").status == 401, uri


@pytest.mark.usefixtures("unchanged")
def test_a_key_that_only_sends_does_not_read_the_feed(server: Server) -> None:
    name, value = "sends", key(9)
    only_send = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        key_name=name,
        primary_key=value,
        secondary_key=value,
        rights=["Send"],
    )
    with administration_client(server.connection_string, retry_total=0) as admin:
        admin.create_queue("sent-to", authorization_rules=[only_send])
        with RestClient(server.connection_string, "sent-to", (name, value)) as caller:
            assert caller.send("sent-to", b"x").status == 201
            for path in ("$feed", "$feed/0?from=0", "$feed/readers"):
                reply = caller.request("GET", f"/sent-to/{path}")
                assert reply.status == 401
                assert "'Listen' claim(s) are required" in reply.detail
        admin.delete_queue("sent-to")


def entry(kind: str) -> bytes:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/>'
        "</content></entry>"
    ).encode()


DESCRIBED = {
    "QueueDescription": ("q", "q/r", "new"),
    "TopicDescription": ("t", "t/u", "new"),
    "SubscriptionDescription": ("t/Subscriptions/s", "t/Subscriptions/new", "tt/Subscriptions/s"),
    "RuleDescription": ("t/Subscriptions/s/Rules/$Default", "t/Subscriptions/s/Rules/new"),
}
LISTS = ("$Resources/queues", "$Resources/topics", "$namespaceinfo", "t/Subscriptions")


@holders
@pytest.mark.usefixtures("unchanged")
def test_over_http_nothing_is_managed(server: Server, holder: Holder) -> None:
    for uri in ("sb://localhost", "https://localhost/t/Subscriptions/s", "https://localhost/q"):
        token = sas(*holder.pair, uri)
        for path in (*LISTS, "t/Subscriptions/s/Rules"):
            assert ask(server, "GET", path, token).status == 401, path
        for kind, paths in DESCRIBED.items():
            for path in paths:
                for method in ("GET", "PUT", "UPDATE", "DELETE"):
                    answer = ask(server, method, path, token, entry(kind))
                    assert answer.status == 401, (method, path, answer.text)

"""What was proven ends: by time, by an update of the rules, and never by a renewal."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from postbus.amqp.events import Closed
from tests.support.access import Caller, Refused, ask, sas, with_key
from tests.support.administration import administration_client
from tests.support.bus import Bus, whole_text
from tests.support.raw_socket import connect
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until

DENIED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
UNAUTHORIZED = "amqp:unauthorized-access"
FIRST, SECOND, THIRD = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
ALL = ("Manage", "Send", "Listen")
PEEK = {"operation": "com.microsoft:peek-message"}
PEEK_BODY = {"from-sequence-number": 0, "message-count": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("revocation") / "data"
    server = Server(data, "--authentication-timeout-ms", "1500").start()
    yield server
    server.discard()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[ServiceBusAdministrationClient]:
    with administration_client(server.connection_string, retry_total=0) as admin:
        yield admin


@pytest.fixture
def queue(admin: ServiceBusAdministrationClient) -> Iterator[str]:
    """A queue with two keys: `k`, which may do everything, and `other`."""
    rules = [rule("k", FIRST, SECOND), rule("other", THIRD, THIRD)]
    admin.create_queue("q", authorization_rules=rules)
    yield "q"
    admin.delete_queue("q")


def rule(name: str, primary: str, secondary: str, rights: Any = ALL) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        key_name=name,
        primary_key=primary,
        secondary_key=secondary,
        rights=list(rights),
    )


def change(admin: ServiceBusAdministrationClient, *rules: AuthorizationRule) -> None:
    properties = admin.get_queue("q")
    properties.authorization_rules = list(rules)
    admin.update_queue(properties)


def attached(caller: Caller, kind: str, address: str) -> Any:
    link = caller.attach(kind, address)
    assert not isinstance(link, Refused), link
    return link


def holding(server: Server, key: str = FIRST, name: str = "k", lasts_s: float = 3_600) -> Caller:
    """A connection with a token for the queue, made for the whole namespace."""
    caller = Caller(server)
    assert caller.put_token("sb://localhost/q", sas(name, key, lasts_s=lasts_s)).status == 202
    return caller


def test_a_key_that_is_taken_away_ends_its_links_at_once(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with holding(server) as caller:
        links = [
            attached(caller, "send", queue),
            attached(caller, "receive", queue),
            attached(caller, "receive", f"{queue}/$DeadLetterQueue"),
        ]
        assert caller.call(f"{queue}/$management", PEEK, PEEK_BODY)[0] == 204
        change(admin, rule("other", THIRD, THIRD))
        for link, right in zip(links, ("Send", "Listen", "Listen"), strict=True):
            refused = caller.detached(link)
            assert refused.condition == UNAUTHORIZED
            assert "Code: RenewToken" in refused.text
            assert f"'{right}' claim(s) are required" in refused.text
        # the dead-letter queue by its own name
        assert "Resource: 'sb://localhost/q/$DeadLetterQueue'" in refused.text
        status, text, _ = caller.call(f"{queue}/$management", PEEK, PEEK_BODY)
        assert status == 401 and "'Listen' claim(s) are required" in text
        refused = caller.attach("send", queue)
        assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED
        # a token of the key that is gone is none any more
        assert caller.put_token("sb://localhost/q", sas("k", FIRST)).status == 401
        assert ask(server, "GET", "q", sas("k", FIRST)).status == 401
        # another is as good as ever, on the same connection
        assert caller.put_token("sb://localhost/q", sas("other", THIRD)).status == 202
        attached(caller, "send", queue)


def test_a_value_that_is_replaced_ends_what_it_proved_and_not_what_the_other_did(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with holding(server, FIRST) as by_first, holding(server, SECOND) as by_second:
        lost, kept = attached(by_first, "send", queue), attached(by_second, "send", queue)
        # the second moves to first place, as in a rotation of keys
        change(admin, rule("K", SECOND, THIRD))
        assert by_first.detached(lost).condition == UNAUTHORIZED
        # every update of an entity ends its links; the client may attach again (R-SETTLE-10)
        assert by_second.detached(kept).condition == "amqp:link:detach-forced"
        attached(by_second, "send", queue)
        assert isinstance(by_first.attach("send", queue), Refused)


def test_a_receive_over_http_that_waits_ends_with_its_key(
    server: Server, admin: ServiceBusAdministrationClient, queue: str
) -> None:
    by_first = RestClient(server.connection_string, "q", ("k", FIRST))
    by_second = RestClient(server.connection_string, "q", ("k", SECOND))
    with by_first as loses, by_second as keeps:
        for client in (loses, keeps):
            client.begin("POST", "/q/messages/head?timeout=30")
        change(admin, rule("k", THIRD, SECOND))
        assert loses.reply().status == 401
        with RestClient(server.connection_string) as sender:
            assert sender.request("POST", "/q/messages", b"1").status == 201
        assert keeps.reply().body == b"1"


@pytest.mark.parametrize(
    "asked", ["POST /q/messages HTTP/1.1", "PUT /q?api-version=2021-05 HTTP/1.1\r\nIf-Match: *"]
)
def test_what_is_asked_over_http_is_refused_if_its_body_comes_when_its_key_is_gone(
    server: Server, queue: str, admin: ServiceBusAdministrationClient, asked: str
) -> None:
    """Else whoever lost a key could write the rules of the queue as they were."""
    head = (
        f"{asked}\r\nHost: localhost\r\nAuthorization: {sas('k', FIRST)}\r\n"
        "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    with connect(server, "tcp") as client:
        client.sendall(head.encode())
        assert client.recv(1_000).startswith(b"HTTP/1.1 100")  # it was let in
        change(admin, rule("k", SECOND, SECOND))
        client.sendall(b"late")
        assert client.recv(1_000).startswith(b"HTTP/1.1 401")
    assert admin.get_queue_runtime_properties("q").total_message_count == 0


def test_a_wait_for_news_of_a_feed_ends_with_its_key(
    server: Server, admin: ServiceBusAdministrationClient, queue: str
) -> None:
    """R-PIPE-02."""
    by_first = RestClient(server.connection_string, "q", ("k", FIRST))
    by_second = RestClient(server.connection_string, "q", ("k", SECOND))
    with by_first as loses, by_second as keeps:
        for client in (loses, keeps):
            client.begin("GET", "/q/$feed/0?from=0&timeout=30")
        change(admin, rule("k", THIRD, SECOND))
        assert loses.reply().status == 401
        with RestClient(server.connection_string) as sender:
            assert sender.request("POST", "/q/messages", b"1").status == 201
        reply = keeps.reply()
        assert (reply.status, reply.headers["postbus-next"]) == (200, "1")


def test_a_right_that_is_taken_away_ends_the_links_that_need_it(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with holding(server) as caller:
        sending, receiving = attached(caller, "send", queue), attached(caller, "receive", queue)
        change(admin, rule("k", FIRST, SECOND, ["Listen"]))
        assert caller.detached(sending).condition == UNAUTHORIZED
        assert caller.detached(receiving).condition == "amqp:link:detach-forced"
        attached(caller, "receive", queue)
        assert isinstance(caller.attach("send", queue), Refused)
        schedule = {"operation": "com.microsoft:schedule-message"}
        assert caller.call(f"{queue}/$management", schedule, {})[0] == 401


def test_a_login_ends_with_its_key_and_the_connection_after_it(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with Caller(server, "k", SECOND) as caller:
        link = attached(caller, "receive", queue)
        change(admin, rule("k", FIRST, THIRD))
        assert caller.detached(link).condition == UNAUTHORIZED
        closed = caller.until(Closed)
        assert closed.error is not None
        assert "no valid token for 1500 milliseconds" in str(closed.error.description)


def test_keys_of_the_namespace_are_not_touched_by_a_queues(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with holding(server, "SAS_KEY_VALUE", "RootManageSharedAccessKey") as caller:
        link = attached(caller, "send", queue)
        change(admin)
        assert caller.detached(link).condition == "amqp:link:detach-forced"
        attached(caller, "send", queue)


def test_a_queue_made_anew_does_not_know_the_old_tokens(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    with holding(server) as caller:
        link = attached(caller, "send", queue)
        admin.delete_queue(queue)
        assert caller.detached(link).condition == "amqp:not-found"
        admin.create_queue(queue, authorization_rules=[rule("k", THIRD, THIRD)])
        refused = caller.attach("send", queue)
        assert isinstance(refused, Refused) and refused.condition == UNAUTHORIZED


def test_the_keys_of_a_topic_end_with_it_for_its_subscriptions_too(
    server: Server, admin: ServiceBusAdministrationClient
) -> None:
    admin.create_topic("t", authorization_rules=[rule("k", FIRST, SECOND)])
    admin.create_subscription("t", "s")
    address = "t/Subscriptions/s"
    with Caller(server, "k", FIRST) as by_first, Caller(server, "k", SECOND) as by_second:
        lost = [
            attached(by_first, "receive", address),
            attached(by_first, "receive", f"{address}/$DeadLetterQueue"),
            attached(by_first, "send", "t"),
        ]
        kept = attached(by_second, "receive", address)
        assert by_first.call(f"{address}/$management", PEEK, PEEK_BODY)[0] == 204
        topic = admin.get_topic("t")
        topic.authorization_rules = [rule("k", SECOND, THIRD)]
        admin.update_topic(topic)
        for link in lost:
            assert by_first.detached(link).condition == UNAUTHORIZED
        assert by_first.call(f"{address}/$management", PEEK, PEEK_BODY)[0] == 401
        # an update of the topic leaves its subscriptions alone
        assert by_second.call(f"{address}/$management", PEEK, PEEK_BODY)[0] == 204
        assert kept.attached
        admin.delete_topic("t")
        assert by_second.detached(kept).condition == "amqp:not-found"
        assert ask(server, "GET", "t", sas("k", SECOND)).status == 401


def test_rules_outlast_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = Server(tmp_path_factory.mktemp("restart") / "data").start()
    try:
        with administration_client(server.connection_string, retry_total=0) as admin:
            admin.create_queue("q", authorization_rules=[rule("k", FIRST, SECOND, ["Send"])])
            admin.create_topic("t", authorization_rules=[rule("k", FIRST, SECOND, ["Listen"])])
            admin.create_subscription("t", "s")
        server.kill()
        server.start()
        with holding(server, SECOND) as caller:
            attached(caller, "send", "q")
            assert isinstance(caller.attach("receive", "q"), Refused)
        with Caller(server, "k", SECOND) as caller:
            attached(caller, "receive", "t/Subscriptions/s")
            assert isinstance(caller.attach("send", "t"), Refused)
        with administration_client(server.connection_string, retry_total=0) as admin:
            [kept] = admin.get_queue("q").authorization_rules or []
            assert (kept.primary_key, kept.rights) == (FIRST, ["Send"])
    finally:
        server.discard()


# -- time --------------------------------------------------------------------------------------


def test_links_end_with_the_token_they_were_opened_by(server: Server, queue: str) -> None:
    """wire §2.4; a whole second, because that is how tokens count."""
    with holding(server, lasts_s=2) as caller:
        links = [attached(caller, "send", queue), attached(caller, "receive", queue)]
        assert caller.call(f"{queue}/$management", PEEK, PEEK_BODY)[0] == 204
        for link in links:
            refused = caller.detached(link)
            assert refused.condition == UNAUTHORIZED and "Code: RenewToken" in refused.text
        status, text, _ = caller.call(f"{queue}/$management", PEEK, PEEK_BODY)
        assert status == 401 and "'Listen' claim(s) are required" in text
        # there is time to put another before the connection is closed
        assert caller.put_token("sb://localhost/q", sas("k", FIRST)).status == 202
        attached(caller, "send", queue)


def test_a_connection_whose_tokens_have_all_run_out_is_closed_after_a_while(
    server: Server, queue: str
) -> None:
    with holding(server, lasts_s=2) as caller:
        closed = caller.until(Closed)
        assert closed.error is not None and closed.error.condition == "amqp:connection:forced"


def test_a_token_that_is_renewed_in_time_disturbs_nothing(server: Server, queue: str) -> None:
    with holding(server, lasts_s=2) as caller, holding(server, lasts_s=2) as careless:
        link, doomed = attached(caller, "send", queue), attached(careless, "send", queue)
        assert caller.put_token("sb://localhost/q", sas("k", SECOND)).status == 202
        careless.detached(doomed)  # so the time of the first tokens is over
        assert caller.call(f"{queue}/$management", PEEK, PEEK_BODY)[0] == 204
        assert link.attached and link.sendable


def test_a_renewal_that_proves_less_ends_what_it_no_longer_proves(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    change(admin, rule("k", FIRST, FIRST), rule("listens", SECOND, SECOND, ["Listen"]))
    with holding(server) as caller:
        sending, receiving = attached(caller, "send", queue), attached(caller, "receive", queue)
        assert caller.put_token("sb://localhost/q", sas("listens", SECOND)).status == 202
        assert caller.detached(sending).condition == UNAUTHORIZED
        assert receiving.attached


async def test_the_official_client_is_told_that_its_key_is_gone(
    server: Server, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    """After the detach it connects again by itself, and its token is refused then."""
    bus = Bus("async", with_key(server, "k", FIRST))
    try:
        sender = await bus.open_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        change(admin, rule("other", THIRD, THIRD))

        async def refusal() -> str:
            try:
                await sender.send_messages(ServiceBusMessage("after"))
            except DENIED as refused:
                return whole_text(refused)
            except ServiceBusError:
                pass  # the send that was under way when the link went
            return ""

        assert "invalid signature" in await until("the sender is refused", refusal)
        assert admin.get_queue_runtime_properties(queue).active_message_count == 1
    finally:
        await bus.close()

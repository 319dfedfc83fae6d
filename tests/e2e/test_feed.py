"""R-PIPE-02: the change feed of a real broker, with traffic made by the official SDK."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.support import feed
from tests.support.administration import administration_client
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, Topic
from tests.support.rest import RestClient
from tests.support.server import Server, SmallServer

pytestmark = pytest.mark.small_limits


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = SmallServer(tmp_path_factory.mktemp("feed") / "data").start()
    yield server
    server.discard()


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[ServiceBusAdministrationClient]:
    with administration_client(server.connection_string, retry_total=0) as admin:
        yield admin


@pytest.fixture
def client(server: Server) -> Iterator[RestClient]:
    with RestClient(server.connection_string) as client:
        yield client


@pytest.fixture
def queue(admin: ServiceBusAdministrationClient) -> Iterator[str]:
    name = f"feed/q-{time.monotonic_ns()}"
    admin.create_queue(name)
    yield name
    if name in {each.name for each in admin.list_queues()}:
        admin.delete_queue(name)


def operations(found: list[dict[str, Any]]) -> list[str]:
    return [each["operation"] for each in found]


async def test_every_durable_event_of_a_queue_is_in_its_feed_in_order(
    server: Server, client: RestClient, queue: str, open_bus: Callable[..., Bus]
) -> None:
    bus = open_bus(server)
    message = ServiceBusMessage(
        "hello",
        message_id="m1",
        subject="greeting",
        correlation_id="c1",
        content_type="text/plain",
        to="there",
        reply_to="back",
        partition_key="p1",
        application_properties={"n": 7, "yes": True, "text": "x"},
        time_to_live=timedelta(hours=1),
    )
    await bus.send(queue, message)
    async with bus.receiver(queue) as receiver:
        [taken] = await receiver.receive_messages(max_message_count=1)
        await receiver.abandon_message(taken)
        [taken] = await receiver.receive_messages(max_message_count=1)
        await receiver.defer_message(taken)
        [taken] = await receiver.receive_deferred_messages([taken.sequence_number])
        await receiver.dead_letter_message(taken, reason="broken", error_description="no total")
    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        [taken] = await receiver.receive_messages(max_message_count=1)
        await receiver.complete_message(taken)
    async with bus.sender(queue) as sender:
        later = datetime.now(UTC) + timedelta(hours=1)
        [number] = await sender.schedule_messages(ServiceBusMessage("later"), later)
        await sender.cancel_scheduled_messages(number)

    found = feed.events(client, queue)
    assert operations(found) == [
        *("enqueued", "abandoned", "deferred", "dead-lettered", "completed"),
        *("scheduled", "cancelled"),
    ]
    enqueued, abandoned, _, dead, completed, scheduled, cancelled = found
    assert {name: enqueued[name] for name in ("messageId", "subject", "correlationId", "to")} == {
        "messageId": "m1",
        "subject": "greeting",
        "correlationId": "c1",
        "to": "there",
    }
    assert (enqueued["contentType"], enqueued["replyTo"]) == ("text/plain", "back")
    assert enqueued["partitionKey"] == "p1"
    assert enqueued["properties"] == {"n": "7", "yes": "true", "text": "x"}
    assert enqueued["bodyText"] == "hello"
    assert enqueued["timeToLive"] == 3_600_000
    assert abandoned["deliveryCount"] == 1
    assert abandoned["deliveredTime"] >= enqueued["enqueuedTime"]
    assert "body" not in abandoned
    assert (dead["subQueue"], dead["deadLetterReason"]) == ("deadletter", "broken")
    assert dead["deadLetterErrorDescription"] == "no total"
    assert completed["subQueue"] == "deadletter"
    assert {each["messageId"] for each in found[:5]} == {"m1"}
    assert scheduled["scheduledEnqueueTime"] == cancelled["scheduledEnqueueTime"]
    assert "enqueuedTime" not in scheduled
    assert [each["offset"] for each in found] == list(range(7))


async def test_a_topic_and_its_subscriptions_share_one_feed(
    server: Server,
    client: RestClient,
    admin: ServiceBusAdministrationClient,
    open_bus: Callable[..., Bus],
) -> None:
    topic = Topic(f"news-{time.monotonic_ns()}")
    admin.create_topic(topic)
    for name in ("europe", "asia"):
        admin.create_subscription(topic, name)
    bus = open_bus(server)
    await bus.send(topic, ServiceBusMessage("hello"))
    async with bus.receiver(Subscription(topic, "asia")) as receiver:
        [taken] = await receiver.receive_messages(max_message_count=1)
        await receiver.complete_message(taken)

    page = feed.described(client, topic)
    assert page["kind"] == "topic"
    names = {(each["subscription"], each["subQueue"]) for each in page["subqueues"].values()}
    assert {(None, ""), ("asia", "deadletter"), ("europe", ""), ("europe", "deadletter")} <= names
    found = feed.events(client, topic)
    assert operations(found) == ["published", "distributed", "distributed", "completed"]
    assert {each.get("subscription") for each in found[1:3]} == {"asia", "europe"}
    assert found[3]["subscription"] == "asia"
    assert found[0]["bodyText"] == "hello"

    admin.delete_subscription(topic, "europe")
    assert [each.get("subscription") for each in feed.events(client, topic)[:4]].count(None) == 2
    reply = client.request("GET", f"/{topic}/Subscriptions/asia/$feed")
    assert reply.status == 400
    assert f"it is in that of '{topic}'" in reply.detail


def fill(client: RestClient, queue: str, count: int, size: int = 10) -> None:
    items = [{"Body": f"{number:08}" + "x" * size} for number in range(count)]
    for start in range(0, count, 100):
        assert client.send_batch(queue, items[start : start + 100]).status == 201


def test_small_questions_give_what_one_large_one_gives(client: RestClient, queue: str) -> None:
    fill(client, queue, 1_000)
    whole = feed.read_all(client, queue)
    assert [each.offset for each in whole] == list(range(1_000))
    assert feed.read_all(client, queue, max=1) == whole
    assert feed.read_all(client, queue, max=30_000) == whole
    assert feed.read_all(client, queue, 777, max=9_999) == whole[777:]
    lines = feed.events(client, queue, 777)
    assert [each["offset"] for each in lines] == list(range(777, 1_000))
    page = feed.fragment_of(client, queue)
    assert (page["first"], page["next"], page["fragment"]) == (0, 1_000, 0)
    assert page["firstTime"] == whole[0].at and page["lastTime"] == whole[-1].at


def test_an_offset_is_found_by_the_time_of_its_commit(client: RestClient, queue: str) -> None:
    for body in (b"1", b"2", b"3"):
        client.send(queue, body)
        time.sleep(0.005)
    stored = feed.read_all(client, queue)
    for each in stored:
        reply = client.request("GET", f"/{queue}/$feed/0?at={each.at}&max=0")
        assert (reply.status, reply.body) == (200, b"")
        assert reply.headers["postbus-from"] == str(each.offset)
        assert reply.headers["postbus-next"] == str(each.offset)
    reply = client.request("GET", f"/{queue}/$feed/0?at={stored[1].at}")
    assert [each.offset for each in feed.records(reply.body)] == [1, 2]
    reply = client.request("GET", f"/{queue}/$feed/0?at={stored[-1].at + 1}")
    assert (reply.headers["postbus-from"], reply.body) == ("3", b"")


def test_an_offset_that_does_not_exist_yet_is_told_with_the_end(
    client: RestClient, queue: str
) -> None:
    client.send(queue, b"1")
    reply = feed.read(client, queue, 2)
    assert reply.status == 416
    told = json.loads(reply.body)
    assert (told["error"], told["first"], told["next"]) == ("offset ahead", 0, 1)
    assert told["trackingId"] in told["detail"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("$feed/0", 400, "one of the query options"),
        ("$feed/0?from=1&at=2", 400, "one of the query options"),
        ("$feed/0?from=x", 400, "'from' must be a whole number, not 'x'"),
        ("$feed/0?from=-1", 400, "'from'"),
        ("$feed/0?from=0&max=8388609", 400, "'max' must be a whole number of at most 8388608"),
        ("$feed/0?from=0&timeout=61", 400, "'timeout'"),
        ("$feed/0?from=0&limit=3", 400, "'limit' is unknown"),
        ("$feed/1?from=0", 404, "could not be found"),
        ("$feed/one?from=0", 404, "Endpoint not found"),
        ("$feed/00?from=0", 404, "Endpoint not found"),
        ("$feed/0/1?from=0", 404, "Endpoint not found"),
        ("$feed/readers/a/b", 404, "Endpoint not found"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_by_name(
    client: RestClient, queue: str, path: str, status: int, said: str
) -> None:
    reply = client.request("GET", f"/{queue}/{path}")
    assert reply.status == status
    assert said in reply.detail


def test_methods_types_and_entities_that_are_not_there_are_refused(
    client: RestClient, queue: str
) -> None:
    assert client.request("POST", f"/{queue}/$feed").status == 405
    assert client.request("DELETE", f"/{queue}/$feed/0?from=0").status == 405
    refused = client.request("GET", f"/{queue}/$feed/0?from=0", headers={"Accept": "text/csv"})
    assert refused.status == 406
    assert client.request("GET", "/absent/$feed").status == 404
    assert client.request("GET", "/absent/$feed/0?from=0").status == 404


# -- waiting -----------------------------------------------------------------------------------


def test_a_wait_ends_with_the_commit_that_brings_records(
    server: Server, client: RestClient, queue: str
) -> None:
    client.send(queue, b"before")
    client.begin("GET", f"/{queue}/$feed/0?from=1&timeout=30")
    with RestClient(server.connection_string) as sender:
        began = time.monotonic()
        sender.send(queue, b"after")
    reply = client.reply()
    assert time.monotonic() - began < 5
    assert [each.offset for each in feed.records(reply.body)] == [1]
    assert (reply.headers["postbus-next"], reply.headers["postbus-head"]) == ("2", "2")


def test_a_wait_for_nothing_ends_empty_when_its_time_is_up(client: RestClient, queue: str) -> None:
    client.send(queue, b"before")
    began = time.monotonic()
    reply = feed.read(client, queue, 1, timeout=1)
    assert 0.9 < time.monotonic() - began < 5
    assert (reply.status, reply.body, reply.headers["postbus-next"]) == (200, b"", "1")


def test_a_wait_ends_with_the_entity(
    client: RestClient, queue: str, admin: ServiceBusAdministrationClient
) -> None:
    client.send(queue, b"before")
    client.begin("GET", f"/{queue}/$feed/0?from=1&timeout=30")
    admin.delete_queue(queue)
    reply = client.reply()
    assert reply.status == 404
    assert "could not be found" in reply.detail


def test_a_hundred_waits_hold_nobody_up(server: Server, client: RestClient, queue: str) -> None:
    waiting = [RestClient(server.connection_string) for _ in range(100)]
    for each in waiting:
        each.begin("GET", f"/{queue}/$feed/0?from=0&timeout=30")
    began = time.monotonic()
    assert client.send(queue, b"1").status == 201
    replies = [each.reply() for each in waiting]
    assert time.monotonic() - began < 10
    assert {(reply.status, len(feed.records(reply.body))) for reply in replies} == {(200, 1)}
    for each in waiting:
        each.close()


def test_a_wait_ends_when_the_broker_stops(make_server: Callable[..., Server]) -> None:
    server = make_server().start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("q")
    with RestClient(server.connection_string) as client:
        client.begin("GET", "/q/$feed/0?from=0&timeout=60")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert client.reply().status == 503
        stopping.join(20)


def test_a_namespace_in_memory_has_feeds_too(make_server: Callable[..., Server]) -> None:
    server = make_server("--ephemeral").start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("q")
    with RestClient(server.connection_string) as client:
        fill(client, "q", 300)
        whole = feed.read_all(client, "q")
        assert [each.offset for each in whole] == list(range(300))
        assert feed.read_all(client, "q", max=5_000) == whole
        client.begin("GET", "/q/$feed/0?from=300&timeout=30")
        with RestClient(server.connection_string) as sender:
            assert sender.send("q", b"1").status == 201
        assert len(feed.records(client.reply().body)) == 1


# -- a broker that is killed -------------------------------------------------------------------


def test_offsets_are_dense_and_what_was_read_never_changes_over_kills(
    make_server: Callable[..., Server],
) -> None:
    server = make_server().start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("q")
    known: list[feed.Stored] = []
    sent = 0
    for _ in range(3):
        stop = threading.Event()
        counts: list[int] = []
        threads = [
            threading.Thread(target=_send_until, args=(server, stop, counts)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        with RestClient(server.connection_string) as client:
            target = len(known) + 60
            while len(known) < target:
                known += feed.read_all(client, "q", len(known), timeout=5)
        server.kill()
        stop.set()
        for thread in threads:
            thread.join(20)
        sent += sum(counts)
        server.start()
        with RestClient(server.connection_string) as client:
            again = feed.read_all(client, "q")
        assert again[: len(known)] == known, "what was given out once stays as it was"
        assert [each.offset for each in again] == list(range(len(again)))
        known = again
    assert len(known) >= sent, "every send that was answered is there"


def _send_until(server: Server, stop: threading.Event, counts: list[int]) -> None:
    count = 0
    try:
        with RestClient(server.connection_string) as client:
            # Not without end: with small limits it takes many answers to read them again.
            while not stop.is_set() and count < 100:
                if client.send("q", b"x" * 500).status == 201:
                    count += 1
    except OSError:
        pass
    finally:
        counts.append(count)


def test_a_new_entity_of_an_old_name_has_new_offsets_and_another_id(
    client: RestClient, admin: ServiceBusAdministrationClient
) -> None:
    ids = []
    for _ in range(2):
        admin.create_queue("again")
        client.send("again", b"1")
        page = feed.fragment_of(client, "again")
        assert (page["first"], page["next"]) == (0, 1)
        ids.append(page["id"])
        admin.delete_queue("again")
    assert ids[0] != ids[1]

"""Azure's REST API for messages, over real HTTP, alone and beside AMQP (semantics A §7)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, receive_none, receive_one, texts
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking


@pytest.fixture
def rest(server: Server) -> Iterator[RestClient]:
    with RestClient(server.connection_string) as client:
        yield client


@pytest.fixture
def other(server: Server) -> Iterator[RestClient]:
    """A second connection."""
    with RestClient(server.connection_string) as client:
        yield client


@pytest.fixture
def amqp(open_bus: Callable[..., Bus]) -> Bus:
    return open_bus()


def seconds_left(when: str) -> float:
    return (parsedate_to_datetime(when) - datetime.now(UTC)).total_seconds()


# -- by itself -----------------------------------------------------------------------------------


def test_a_message_is_sent_locked_and_completed(rest: RestClient, queue: str) -> None:
    sent = rest.send(queue, b"tea", headers={"Content-Type": "text/x-tea", "Priority": '"High"'})
    assert (sent.status, sent.body) == (201, b"")

    locked = rest.lock(queue)
    assert (locked.status, locked.body) == (201, b"tea")
    assert locked.headers["content-type"] == "text/x-tea"
    assert locked.headers["Priority"] == '"High"'
    told = locked.properties
    assert list(told) == sorted(told)
    assert (told["DeliveryCount"], told["EnqueuedSequenceNumber"]) == (1, 0)
    assert (told["State"], told["SequenceNumber"]) == ("Active", 1)
    assert len(told["MessageId"]) == 32
    assert locked.location == f"/{queue}/messages/1/{told['LockToken']}"
    assert 28 < seconds_left(told["LockedUntilUtc"]) <= 30
    assert abs(seconds_left(told["EnqueuedTimeUtc"])) < 5

    assert rest.request("DELETE", locked.location).status == 200
    assert rest.take(queue, timeout_s=0).status == 204
    gone = rest.request("DELETE", locked.location)
    assert gone.status == 410
    assert "The lock supplied is invalid" in gone.detail


def test_a_message_is_removed_by_receiving_it(rest: RestClient, queue: str) -> None:
    rest.send(queue, b"\x00\xff", broker={"TimeToLive": 40, "MessageId": "m"})
    taken = rest.take(queue)
    assert (taken.status, taken.body) == (200, b"\x00\xff")
    assert not {"LockToken", "LockedUntilUtc"} & set(taken.properties)
    assert "Location" not in taken.headers
    assert taken.properties["TimeToLive"] == 40
    assert rest.take(queue, timeout_s=0).status == 204


def test_an_unlocked_message_counts_its_delivery(rest: RestClient, queue: str) -> None:
    rest.send(queue, b"x")
    first = rest.lock(queue)
    assert rest.request("PUT", first.location).status == 200
    second = rest.lock(queue)
    assert second.properties["DeliveryCount"] == 2
    assert second.properties["LockToken"] != first.properties["LockToken"]
    assert rest.request("DELETE", first.location).status == 410
    assert rest.request("DELETE", second.location).status == 200


def test_a_locked_message_goes_by_its_id_too(rest: RestClient, queue: str) -> None:
    rest.send(queue, b"x", broker={"MessageId": "order 5/a"})
    token = rest.lock(queue).properties["LockToken"]
    wrong = rest.request("DELETE", f"/{queue}/messages/another/{token}")
    assert (wrong.status, "is not 'another'" in wrong.detail) == (404, True)
    assert rest.request("DELETE", f"/{queue}/messages/order%205%2Fa/{token}").status == 200


def test_a_lock_is_renewed(rest: RestClient, make_queue: Callable[..., str]) -> None:
    queue = make_queue(lock_s=5)
    rest.send(queue, b"x")
    locked = rest.lock(queue)
    for _ in range(3):
        time.sleep(2)
        renewed = rest.request("POST", locked.location)
        assert (renewed.status, renewed.body) == (200, b"")
    assert rest.request("DELETE", locked.location).status == 200


def test_a_lock_runs_out(rest: RestClient, make_queue: Callable[..., str]) -> None:
    queue = make_queue(lock_s=5)
    rest.send(queue, b"x")
    first = rest.lock(queue)
    second = rest.lock(queue, timeout_s=15)
    assert (second.status, second.properties["DeliveryCount"]) == (201, 2)
    for method in ("DELETE", "PUT", "POST"):
        assert rest.request(method, first.location).status == 410


def test_a_lock_outlives_the_connection_it_came_over(
    server: Server, rest: RestClient, queue: str
) -> None:
    """wire §3.6: locks taken over HTTP belong to no connection."""
    rest.send(queue, b"x")
    with RestClient(server.connection_string) as first:
        locked = first.lock(queue)
    assert rest.lock(queue, timeout_s=1).status == 204
    assert rest.request("DELETE", locked.location).status == 200


def test_a_wait_ends_when_a_message_comes(rest: RestClient, other: RestClient, queue: str) -> None:
    rest.begin("POST", f"/{queue}/messages/head?timeout=60")
    time.sleep(0.3)
    began = time.monotonic()
    other.send(queue, b"now")
    locked = rest.reply()
    assert (locked.status, locked.body) == (201, b"now")
    assert time.monotonic() - began < 5


def test_a_wait_for_nothing_ends_on_time(rest: RestClient, queue: str) -> None:
    began = time.monotonic()
    assert rest.take(queue, timeout_s=1).status == 204
    assert 0.9 < time.monotonic() - began < 5


def test_a_message_comes_when_it_is_due(rest: RestClient, queue: str) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    when = due.strftime("%a, %d %b %Y %H:%M:%S GMT")
    rest.send(queue, b"later", broker={"ScheduledEnqueueTimeUtc": when})
    assert rest.take(queue, timeout_s=0).status == 204
    taken = rest.take(queue, timeout_s=20)
    assert (taken.status, taken.properties["ScheduledEnqueueTimeUtc"]) == (200, when)
    assert datetime.now(UTC) >= due


def test_a_message_is_gone_after_its_time(rest: RestClient, queue: str) -> None:
    rest.send(queue, b"x", broker={"TimeToLive": 0.2})
    time.sleep(0.3)
    assert rest.take(queue, timeout_s=0).status == 204


def test_a_batch_is_stored_whole_or_not_at_all(rest: RestClient, queue: str) -> None:
    items: list[Any] = [
        {"Body": "1", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "2", "UserProperties": {"Priority": "Low", "Count": 3}},
    ]
    assert rest.send_batch(queue, items).status == 201
    refused = rest.send_batch(queue, [*items, {"BrokerProperties": {"MessageId": "x" * 129}}])
    assert refused.status == 400
    first, second = rest.take(queue), rest.take(queue)
    assert (first.body, first.properties["Label"], first.properties["TimeToLive"]) == (
        b"1",
        "M1",
        40,
    )
    assert (second.body, second.headers["Priority"], second.headers["Count"]) == (
        b"2",
        '"Low"',
        "3",
    )
    assert first.headers["content-type"] == "application/xml; charset=utf-8"
    assert rest.take(queue, timeout_s=0).status == 204


def test_a_message_is_as_large_as_its_queue_takes(rest: RestClient, queue: str) -> None:
    large = b"x" * (255 * 1024)
    assert rest.send(queue, large).status == 201
    assert rest.take(queue).body == large
    for body in (b"x" * (256 * 1024), b"x" * (300 * 1024)):
        refused = rest.send(queue, body)
        assert refused.status == 403
        assert "exceeds the limit (262144 bytes)" in refused.detail
    assert rest.send(queue, b"the connection goes on").status == 201


def test_what_is_not_there_is_404(rest: RestClient) -> None:
    for method, path in (
        ("POST", "messages"),
        ("POST", "messages/head"),
        ("DELETE", "messages/head"),
    ):
        reply = rest.request(method, f"/absent/{path}")
        assert reply.status == 404
        assert "The messaging entity" in reply.detail


def test_a_disabled_queue_is_403(
    rest: RestClient, administration: Administration, queue: str
) -> None:
    rest.send(queue, b"x")
    locked = rest.lock(queue)
    administration.update(queue, status="Disabled")
    for reply in (
        rest.send(queue, b"x"),
        rest.lock(queue),
        rest.request("DELETE", locked.location),
    ):
        assert reply.status == 403
        assert "is currently disabled" in reply.detail


def test_nobody_is_let_in_elsewhere(server: Server, rest: RestClient, queue: str) -> None:
    rest.send(queue, b"x")
    with RestClient(server.connection_string, uri="another") as stranger:
        for method, path in (
            ("POST", "messages"),
            ("POST", "messages/head?timeout=0"),
            ("DELETE", "messages/head?timeout=0"),
            ("DELETE", f"messages/1/{UUID(int=1)}"),
        ):
            assert stranger.request(method, f"/{queue}/{path}").status == 401


def test_a_queue_that_is_deleted_ends_the_wait(
    rest: RestClient, administration: Administration, queue: str
) -> None:
    rest.begin("POST", f"/{queue}/messages/head?timeout=60")
    time.sleep(0.3)
    administration.client.delete_queue(queue)
    assert rest.reply().status == 404


def test_what_is_done_is_counted(server: Server, rest: RestClient, queue: str) -> None:
    """R-COST-01."""
    rest.send(queue, b"x" * 1_000)
    rest.send(queue, b"x", broker={"TimeToLive": -1})
    rest.request("POST", rest.lock(queue).location)
    rest.take(queue, timeout_s=0)
    rest.take(queue, timeout_s=0)
    wanted = {
        "sends_total": 1,
        "receives_total": 1,
        "empty_receives_total": 2,
        "lock_renewals_total": 1,
    }
    lines = rest.request("GET", "/metrics").body.decode().splitlines()
    found = {
        line.split("{")[0].removeprefix("postbus_"): float(line.rsplit(" ", 1)[1])
        for line in lines
        if f'entity="{queue}"' in line
    }
    assert wanted.items() <= found.items()
    assert found["in_bytes_total"] == found["out_bytes_total"] > 1_000
    assert found["refusals_total"] == 1


# -- clients that go away ------------------------------------------------------------------------


def hang_up(rest: RestClient, method: str, path: str) -> None:
    """Ask, and close the connection without reading."""
    host, _, port = rest.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as wire:
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {rest.token}\r\n\r\n"
        )
        wire.sendall(request.encode())
        time.sleep(0.2)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_who_hangs_up_gives_up_its_place(rest: RestClient, queue: str, method: str) -> None:
    hang_up(rest, method, f"/{queue}/messages/head?timeout=60")
    rest.send(queue, b"x")
    locked = rest.lock(queue, timeout_s=10)
    assert (locked.status, locked.properties["DeliveryCount"]) == (201, 1)


# -- beside AMQP ---------------------------------------------------------------------------------


async def test_a_message_sent_over_http_arrives_over_amqp(
    rest: RestClient, amqp: Bus, queue: str
) -> None:
    rest.send(
        queue,
        b"tea",
        headers={
            "Content-Type": "text/plain",
            "OrderId": "42",
            "Large": "8555111000",
            "Share": "3.14",
            "Urgent": "true",
            "Note": '"say \\"hi\\" \\u00e9"',
            "traceparent": "00-4bf92f-01",
            "When": '"Tue, 30 Jun 2015 20:53:02 GMT"',
        },
        broker={
            "MessageId": "m",
            "CorrelationId": "c",
            "Label": "l",
            "To": "t",
            "ReplyTo": "r",
            "ReplyToSessionId": "rs",
            "SessionId": "s",
            "PartitionKey": "s",
            "TimeToLive": 5_000_000,
        },
    )
    [message] = await amqp.receive(queue)
    assert message.body_type is AmqpMessageBodyType.DATA
    assert b"".join(message.body) == b"tea"
    assert message.content_type == "text/plain"
    assert (message.message_id, message.correlation_id, message.subject) == ("m", "c", "l")
    assert (message.to, message.reply_to, message.reply_to_session_id) == ("t", "r", "rs")
    assert (message.session_id, message.partition_key) == ("s", "s")
    lasts = message.expires_at_utc - message.enqueued_time_utc
    assert lasts == timedelta(seconds=4_294_967.295), "as much as AMQP can say"
    assert message.application_properties == {
        b"OrderId": 42,
        b"Large": 8_555_111_000,
        b"Share": 3.14,
        b"Urgent": True,
        b"Note": 'say "hi" é'.encode(),
        b"traceparent": b"00-4bf92f-01",
        b"When": 1_435_697_582_000,
    }


async def test_a_message_sent_over_amqp_arrives_over_http(
    rest: RestClient, amqp: Bus, queue: str
) -> None:
    message = ServiceBusMessage(
        "tea",
        content_type="text/plain",
        message_id="m",
        correlation_id="c",
        subject="l",
        session_id="s",
        to="t",
        reply_to="r",
        time_to_live=timedelta(seconds=90),
        application_properties={
            "OrderId": 42,
            "Share": 2.5,
            "Urgent": False,
            "Note": 'say "hi" é',
            "an odd name": UUID(int=7),
        },
    )
    await amqp.send(queue, message)
    taken = rest.take(queue)
    assert (taken.status, taken.body) == (200, b"tea")
    assert taken.headers["content-type"] == "text/plain"
    expected = {
        "MessageId": "m",
        "CorrelationId": "c",
        "Label": "l",
        "SessionId": "s",
        "To": "t",
        "ReplyTo": "r",
        "TimeToLive": 90,
    }
    assert expected.items() <= taken.properties.items()
    assert taken.headers["OrderId"] == "42"
    assert taken.headers["Share"] == "2.5"
    assert taken.headers["Urgent"] == "false"
    assert taken.headers["Note"] == '"say \\"hi\\" \\u00e9"'
    assert taken.headers["UserProperties"] == f'{{"an odd name":"{UUID(int=7)}"}}'


@pytest.mark.parametrize(
    ("body", "text", "content_type"),
    [
        ({"value_body": "tea"}, b"tea", "text/plain; charset=utf-8"),
        ({"value_body": {"cups": 2}}, b'{"cups":2}', "application/json"),
        ({"sequence_body": [1, None, "x"]}, b'[1,null,"x"]', "application/json"),
        ({"data_body": [b"a", b"b"]}, b"ab", "application/xml; charset=utf-8"),
    ],
)
async def test_a_body_of_any_kind_arrives_over_http(
    rest: RestClient, amqp: Bus, queue: str, body: dict[str, Any], text: bytes, content_type: str
) -> None:
    await amqp.send(queue, AmqpAnnotatedMessage(**body))
    taken = rest.take(queue)
    assert (taken.body, taken.headers["content-type"]) == (text, content_type)


async def test_both_kinds_of_receivers_stand_in_one_line(
    rest: RestClient, amqp: Bus, queue: str
) -> None:
    rest.begin("DELETE", f"/{queue}/messages/head?timeout=60")
    await asyncio.sleep(0.3)
    receiver = await amqp.open_receiver(queue, receive_mode="receiveanddelete")
    waiting = asyncio.ensure_future(receive_one(receiver))
    await asyncio.sleep(0.3)
    await amqp.send(queue, ServiceBusMessage("1"), ServiceBusMessage("2"))
    assert (await asyncio.to_thread(rest.reply)).body == b"1"
    assert texts([await waiting]) == ["2"]


async def test_a_dead_letter_is_read_over_http(rest: RestClient, amqp: Bus, queue: str) -> None:
    rest.send(queue, b"x", headers={"Colour": '"red"'})
    async with amqp.receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.dead_letter_message(message, reason="why", error_description="because")
    dead = f"{queue}/$DeadLetterQueue"
    locked = rest.lock(dead)
    assert (locked.status, locked.body) == (201, b"x")
    assert locked.headers["DeadLetterReason"] == '"why"'
    assert locked.headers["DeadLetterErrorDescription"] == '"because"'
    assert locked.headers["Colour"] == '"red"'
    # The lock is the dead-letter queue's, and not to be had through the queue itself.
    reference = locked.location.partition("/messages/")[2]
    assert rest.request("DELETE", f"/{queue}/messages/{reference}").status == 410
    assert rest.request("DELETE", locked.location).status == 200
    assert rest.send(dead, b"x").status == 403


async def test_a_message_unlocked_too_often_is_a_dead_letter(
    rest: RestClient, amqp: Bus, make_queue: Callable[..., str]
) -> None:
    queue = make_queue(max_delivery_count=2)
    rest.send(queue, b"x")
    for _ in range(2):
        assert rest.request("PUT", rest.lock(queue).location).status == 200
    assert rest.lock(queue, timeout_s=0).status == 204
    [message] = await amqp.peek(queue, sub_queue=DEAD_LETTERS)
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_a_lock_taken_over_http_holds_against_amqp(
    rest: RestClient, amqp: Bus, queue: str
) -> None:
    rest.send(queue, b"x")
    locked = rest.lock(queue)
    async with amqp.receiver(queue) as receiver:
        await receive_none(receiver)
        assert rest.request("PUT", locked.location).status == 200
        assert (await receive_one(receiver)).delivery_count == 1


def test_many_clients_get_each_message_once(server: Server, queue: str) -> None:
    clients = [RestClient(server.connection_string) for _ in range(8)]
    try:
        for client in clients[:4]:
            client.begin("DELETE", f"/{queue}/messages/head?timeout=20")
        for number in range(40):
            assert clients[4].send(queue, b"%d" % number).status == 201
        bodies = [client.reply().body for client in clients[:4]]
        bodies += [clients[5].take(queue, timeout_s=5).body for _ in range(36)]
        assert sorted(map(int, bodies)) == list(range(40))
        until_blocking("nothing is left", lambda: clients[6].take(queue, 0).status == 204)
    finally:
        for client in clients:
            client.close()

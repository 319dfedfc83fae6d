"""Dead letters of the official SDK, repaired and sent again over HTTP: exactly once (R-DLQ-08)."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from tests.support.administration import Administration
from tests.support.bus import DEAD_LETTERS, Bus, Subscription, gather_messages, receive_one, text
from tests.support.keyed import KEYS, keyed_server
from tests.support.rest import Reply, RestClient
from tests.support.server import Server
from tests.support.waiting import until, until_blocking

pytestmark = pytest.mark.small_limits

COUNT = 2_000
AT_ONCE = 100
KILLS = 3


def path_of(source: str | Subscription) -> str:
    if isinstance(source, Subscription):
        return f"/{source.topic}/subscriptions/{source.name}/$DeadLetterQueue"
    return f"/{source}/$DeadLetterQueue"


def ask(
    client: RestClient, source: str | Subscription, body: object, verb: str = "$resubmit"
) -> Reply:
    return client.request("POST", f"{path_of(source)}/{verb}", json.dumps(body).encode())


def outcomes(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.body
    return [each["outcome"] for each in json.loads(reply.body)["results"]]


async def move_to_dead_letters(bus: Bus, source: str | Subscription, count: int) -> list[int]:
    """Dead-letter what is there; returns the numbers."""
    numbers: list[int] = []
    async with bus.receiver(source) as receiver:
        while len(numbers) < count:
            messages = await receiver.receive_messages(min(count - len(numbers), 500), 5)
            assert messages, f"{len(numbers)} of {count} came"
            await asyncio.gather(
                *(receiver.dead_letter_message(m, "broken", "in a test") for m in messages)
            )
            numbers += [message.sequence_number for message in messages]
    return numbers


# -- what arrives ------------------------------------------------------------------------------


async def test_a_dead_letter_comes_back_as_it_was_sent(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    sent = AmqpAnnotatedMessage(
        value_body={"a": [1, "two"]},
        properties={"message_id": "m", "subject": "tea", "correlation_id": "c"},
        application_properties={"kind": "order", "tries": 3},
        annotations={"x-mine": "kept"},
        header={"priority": 7, "durable": True, "time_to_live": 3_600_000},
    )
    await bus.send(queue, sent)
    [number] = await move_to_dead_letters(bus, queue, 1)
    with RestClient(server.connection_string) as client:
        asked = {"messages": [{"sequenceNumber": number}]}
        assert outcomes(ask(client, queue, asked)) == ["moved"]
        assert outcomes(ask(client, queue, asked)) == ["not found"]
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        raw = message.raw_amqp_message
        assert raw.body_type == AmqpMessageBodyType.VALUE
        assert raw.body == {b"a": [1, b"two"]}
        assert raw.annotations[b"x-mine"] == b"kept"
        assert raw.header.priority == 7 and raw.header.durable
        assert (message.message_id, message.subject, message.correlation_id) == ("m", "tea", "c")
        assert message.application_properties == {b"kind": b"order", b"tries": 3}
        assert (message.delivery_count, message.sequence_number > number) == (0, True)
        assert message.dead_letter_reason is None and message.dead_letter_source is None
        await receiver.complete_message(message)
    assert await bus.peek(queue, sub_queue=DEAD_LETTERS) == []


async def test_an_edited_one_is_what_it_was_made(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    properties = {"kind": "order", "broken": True}
    await bus.send(queue, ServiceBusMessage("coffee", application_properties=properties))
    [number] = await move_to_dead_letters(bus, queue, 1)
    edits = {
        "body": b64encode(b"tea").decode(),
        "properties": {"broken": None, "repaired": "yes", "tries": 2},
        "subject": "repaired",
        "messageId": "new id",
        "timeToLive": 60_000,
    }
    with RestClient(server.connection_string) as client:
        body = {"to": None, "messages": [{"sequenceNumber": number, "edits": edits}]}
        assert outcomes(ask(client, queue, body)) == ["moved"]
    async with bus.receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert text(message) == "tea"
        expected = {b"kind": b"order", b"repaired": b"yes", b"tries": 2}
        assert message.application_properties == expected
        assert (message.subject, message.message_id) == ("repaired", "new id")
        assert message.time_to_live.total_seconds() == 60
        await receiver.complete_message(message)


async def test_a_locked_one_stays_with_its_receiver_and_others_are_thrown_away(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    queue = Administration(server.connection_string).make_queue()
    bus = open_bus(server)
    await bus.send(queue, *(ServiceBusMessage(name) for name in ("a", "b")))
    first, second = await move_to_dead_letters(bus, queue, 2)
    async with bus.receiver(queue, sub_queue=DEAD_LETTERS) as receiver:
        locked = await receive_one(receiver)
        assert locked.sequence_number == first
        with RestClient(server.connection_string) as client:
            asked = {"messages": [{"sequenceNumber": first}]}
            assert outcomes(ask(client, queue, asked)) == ["locked"]
            reply = ask(client, queue, {"sequenceNumbers": [first, second, 99]}, "$discard")
            assert outcomes(reply) == ["locked", "removed", "not found"]
        await receiver.complete_message(locked)
    assert Administration(server.connection_string).counts(queue).dead_letter_message_count == 0


async def test_a_session_queue_wants_a_session_id(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    plain, sessions = administration.make_queue(), administration.make_queue(requires_session=True)
    bus = open_bus(server)
    await bus.send(plain, ServiceBusMessage("tea"))
    [number] = await move_to_dead_letters(bus, plain, 1)
    with RestClient(server.connection_string) as client:
        body: dict[str, Any] = {"to": sessions, "messages": [{"sequenceNumber": number}]}
        reply = ask(client, plain, body)
        assert outcomes(reply) == ["refused"]
        assert "SessionId was not set" in json.loads(reply.body)["results"][0]["detail"]
        body["messages"][0]["edits"] = {"sessionId": "s"}
        assert outcomes(ask(client, plain, body)) == ["moved"]
    async with bus.receiver(sessions, session_id="s") as receiver:
        assert text(await receive_one(receiver)) == "tea"


async def test_a_topic_can_have_it_and_a_subscription_gets_its_own_back(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    topic, other = administration.make_topic(), administration.make_topic()
    one, two = administration.make_subscription(topic), administration.make_subscription(topic)
    third = administration.make_subscription(other)
    bus = open_bus(server)
    await bus.send(topic, *(ServiceBusMessage(name) for name in ("a", "b", "c")))
    numbers = await move_to_dead_letters(bus, one, 3)
    with RestClient(server.connection_string) as client:
        for number, to in zip(numbers, (None, topic, other), strict=True):
            asked = {"to": to, "messages": [{"sequenceNumber": number}]}
            assert outcomes(ask(client, one, asked)) == ["moved"]
    for subscription, expected in ((one, ["a", "b"]), (two, ["a", "b", "b", "c"]), (third, ["c"])):
        async with bus.receiver(subscription) as receiver:
            found = sorted(text(each) for each in await gather_messages(receiver, len(expected)))
        assert found == expected, subscription
    assert await bus.peek(one, sub_queue=DEAD_LETTERS) == []


async def test_it_is_no_duplicate_of_itself_here_or_where_it_was_seen(
    server: Server, open_bus: Callable[..., Bus]
) -> None:
    administration = Administration(server.connection_string)
    here = administration.make_queue(requires_duplicate_detection=True)
    there = administration.make_queue(requires_duplicate_detection=True)
    bus = open_bus(server)
    for queue in (here, there):
        await bus.send(queue, ServiceBusMessage("tea", message_id="m"))
    with RestClient(server.connection_string) as client:
        for to, expected in ((None, [1, 1]), (there, [0, 2])):
            [number] = await move_to_dead_letters(bus, here, 1)
            asked = {"to": to, "messages": [{"sequenceNumber": number}]}
            assert outcomes(ask(client, here, asked)) == ["moved"]

            def arrived(expected: list[int] = expected) -> bool:
                counts = [administration.counts(each) for each in (here, there)]
                return [each.active_message_count for each in counts] == expected

            await asyncio.to_thread(until_blocking, "it arrives", arrived)


ABSENT = [
    ("/none/$DeadLetterQueue", None, 404, "could not be found"),
    ("/{queue}/$DeadLetterQueue", "none", 404, "could not be found"),
    ("/{queue}/$DeadLetterQueue", "{topic}/subscriptions/s", 403, "cannot be sent to"),
    ("/{queue}/$DeadLetterQueue", "{queue}/$DeadLetterQueue", 403, "cannot be sent to"),
    ("/{topic}/$DeadLetterQueue", None, 403, "no dead-letter queue"),
    ("/{queue}/$Transfer/$DeadLetterQueue", None, 400, "say 'to' which"),
]


async def test_what_is_not_there_cannot_be_asked(server: Server) -> None:
    administration = Administration(server.connection_string)
    names = {"queue": administration.make_queue(), "topic": administration.make_topic()}
    administration.client.create_subscription(names["topic"], "s")
    with RestClient(server.connection_string) as client:
        for path, to, status, told in ABSENT:
            asked = {"to": to and to.format(**names), "messages": [{"sequenceNumber": 1}]}
            body = json.dumps(asked).encode()
            reply = client.request("POST", f"{path.format(**names)}/$resubmit", body)
            assert reply.status == status and told in reply.detail, (path, to)


# -- rights ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = keyed_server(tmp_path_factory.mktemp("keyed"))
    yield server
    server.discard()


@pytest.mark.parametrize("verb", ["$resubmit", "$discard"])
@pytest.mark.parametrize(
    ("key", "entity", "status"),
    [
        *((key, "a", 401) for key in ("all-sends", "all-listens", "a-sends", "a-listens")),
        ("all-owns", "a", 200),
        ("a-owns", "a", 200),
        ("a-owns", "b", 401),
        ("a-owns", "a/b", 401),
        ("t-owns", "t/subscriptions/s", 200),
        ("t-owns", "t2/subscriptions/s", 401),
    ],
)
async def test_only_who_manages_an_entity_may_repair_it(
    keyed: Server, key: str, entity: str, status: int, verb: str
) -> None:
    owner = key.partition("-")[0]
    uri = "" if owner == "all" else owner
    with RestClient(keyed.connection_string, uri, (key, KEYS[key])) as client:
        body: object = {"messages": [{"sequenceNumber": 1}]}
        if verb == "$discard":
            body = {"sequenceNumbers": [1]}
        reply = client.request(
            "POST", f"/{entity}/$DeadLetterQueue/{verb}", json.dumps(body).encode()
        )
    assert reply.status == status, reply.body


@pytest.mark.parametrize(("key", "uri", "status"), [("a-owns", "a", 401), ("all-owns", "", 200)])
async def test_who_sends_them_elsewhere_must_be_allowed_to_send_there(
    keyed: Server, key: str, uri: str, status: int
) -> None:
    with RestClient(keyed.connection_string, uri, (key, KEYS[key])) as client:
        reply = ask(client, "a", {"to": "b", "messages": [{"sequenceNumber": 1}]})
    assert reply.status == status
    if status == 401:
        assert "'Send' claim(s) are required" in reply.detail


# -- killed in the middle ----------------------------------------------------------------------


def repair(
    server: Server, source: str, to: str | None, numbers: list[int], told: Counter[str]
) -> None:
    """One run over all of them, as far as the broker lives."""
    try:
        with RestClient(server.connection_string) as client:
            for start in range(0, len(numbers), AT_ONCE):
                messages = [
                    {"sequenceNumber": number, "edits": {"properties": {"repaired": "yes"}}}
                    for number in numbers[start : start + AT_ONCE]
                ]
                told.update(outcomes(ask(client, source, {"to": to, "messages": messages})))
    except (OSError, HTTPException):
        told["cut off"] += 1


async def _moved(told: Counter[str], count: int) -> bool:
    return told["moved"] >= count


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_killed_in_the_middle_and_run_again_each_is_there_exactly_once(
    server: Server, open_bus: Callable[..., Bus], elsewhere: bool
) -> None:
    """R-DLQ-08: kill -9 while requests are under way; a run is repeated until it is through."""
    administration = Administration(server.connection_string)
    source = administration.make_queue(max_delivery_count=1)
    target = administration.make_queue() if elsewhere else source
    bus = open_bus(server)
    names = [f"m{place}" for place in range(COUNT)]
    async with bus.sender(source) as sender:
        for start in range(0, COUNT, 200):
            await sender.send_messages(
                [ServiceBusMessage(name, message_id=name) for name in names[start : start + 200]]
            )
    numbers = await move_to_dead_letters(bus, source, COUNT)
    to = target if elsewhere else None
    cut_off = moved = 0
    for turn in range(KILLS + 1):
        told: Counter[str] = Counter()
        run = asyncio.create_task(asyncio.to_thread(repair, server, source, to, numbers, told))
        if turn < KILLS:
            await until("some are moved", partial(_moved, told, 2 * AT_ONCE))
            server.kill()
        await run
        cut_off += told["cut off"]
        moved += told["moved"]
        if turn < KILLS:
            server.start()
    assert told["moved"] + told["not found"] == COUNT, told
    assert cut_off > 0, "no kill came while it ran"
    assert moved <= COUNT

    found: Counter[str] = Counter()
    bus = open_bus(server)
    async with bus.receiver(target, receive_mode="receiveanddelete") as receiver:
        while sum(found.values()) < COUNT:
            messages = await receiver.receive_messages(500, 5)
            assert messages, f"{sum(found.values())} of {COUNT} are there"
            for message in messages:
                assert message.application_properties == {b"repaired": b"yes"}
                found[message.message_id] += 1
        assert await receiver.receive_messages(10, 1) == []
    assert found == Counter(names)
    counts = Administration(server.connection_string).counts(source)
    assert (counts.dead_letter_message_count, counts.transfer_message_count) == (0, 0)

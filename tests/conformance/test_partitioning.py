"""Partitioned queues and topics: keys, fragments, and requests that several fragments answer.

R-PART-02, R-PART-05, R-PART-06, R-PART-08, R-PART-09, R-PART-10, R-PART-11, R-PART-12, R-PART-14,
R-PART-21.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.utils import amqp_array_value
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
)

from postbus.amqp.frames.outcomes import Accepted, Rejected
from postbus.model.partitioning import FRAGMENTS, fragment_of
from tests.support.administration import Administration
from tests.support.bus import Bus, Topic, gather_messages, manage, receive_none, text, texts
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.transacting import Refused, Transacting, message

LATER = timedelta(hours=1)

MakeBus = Callable[..., Bus]


@pytest.fixture
def entity_kind() -> str:
    return "partitioned"


def fragment(message: Any) -> int:
    number: int = message.sequence_number
    return number >> 48


def spread(messages: list[Any]) -> Counter[int]:
    return Counter(map(fragment, messages))


async def messages_of_each_fragment(bus: Bus, queue: str) -> None:
    """One message in each of the fragments, numbered by its fragment."""
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(FRAGMENTS)))


# -- creation ------------------------------------------------------------------------------------


def test_r_part_02_a_partitioned_entity_is_described_as_such(
    administration: Administration,
) -> None:
    client = administration.client
    queue, topic = administration.make_queue(), administration.make_topic()
    assert client.get_queue(queue).enable_partitioning is True
    assert client.get_topic(topic).enable_partitioning is True
    classic = administration.make_queue(enable_partitioning=False)
    assert client.get_queue(classic).enable_partitioning is False


def test_r_part_09_partitioning_is_fixed_at_creation(administration: Administration) -> None:
    client, queue = administration.client, administration.make_queue()
    description = client.get_queue(queue)
    description.enable_partitioning = False
    with pytest.raises(HttpResponseError, match="Partitioning cannot be changed for Queue"):
        client.update_queue(description, lock_duration=timedelta(seconds=45))
    assert client.get_queue(queue).enable_partitioning is True
    assert client.get_queue(queue).lock_duration == timedelta(seconds=30)


def test_r_part_10_the_size_of_a_fragment_is_chosen_and_the_total_shown(
    administration: Administration,
) -> None:
    client = administration.client
    queue = administration.make_queue(max_size_in_megabytes=3_072)
    assert client.get_queue(queue).max_size_in_megabytes == 49_152
    administration.update(queue, lock_duration=timedelta(seconds=45))
    assert client.get_queue(queue).max_size_in_megabytes == 49_152
    administration.update(queue, max_size_in_megabytes=1_024)
    assert client.get_queue(queue).max_size_in_megabytes == 16_384


def test_what_is_not_there_yet_is_refused_by_name(administration: Administration) -> None:
    classic = administration.make_queue(enable_partitioning=False)
    partitioned = administration.make_queue()
    topic = administration.make_topic()
    refused = "forwarding from or to partitioned entities yet"
    with pytest.raises(HttpResponseError, match=refused):
        administration.make_queue(forward_to=classic)
    with pytest.raises(HttpResponseError, match=refused):
        administration.make_queue(enable_partitioning=False, forward_to=partitioned)
    with pytest.raises(HttpResponseError, match=refused):
        administration.make_subscription(topic, forward_to=classic)
    with pytest.raises(HttpResponseError, match=refused):
        administration.update(classic, forward_dead_lettered_messages_to=partitioned)


# -- sending -------------------------------------------------------------------------------------


async def test_r_part_14_messages_without_a_key_are_dealt_evenly(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(5 * FRAGMENTS)))
    found = await bus.peek(queue, 250)
    assert spread(found) == dict.fromkeys(range(FRAGMENTS), 5)
    assert administration.counts(queue).active_message_count == 5 * FRAGMENTS


async def test_r_part_05_r_part_13_a_key_chooses_the_fragment(
    open_bus: MakeBus, queue: str
) -> None:
    bus = open_bus()
    keys = ["a", "A", "order-42", "é", "session-1"] * 2
    await bus.send(queue, *(ServiceBusMessage(key, partition_key=key) for key in keys))
    found = await bus.peek(queue, 100)
    assert len(found) == len(keys)
    assert all(fragment(each) == fragment_of(text(each)) for each in found)


async def test_r_part_11_a_message_id_is_a_key_where_duplicates_are_found(
    open_bus: MakeBus, queue: str, make_queue: Callable[..., str]
) -> None:
    """R-PART-13: so the copies of an id meet."""
    bus = open_bus()
    once = make_queue(requires_duplicate_detection=True)
    ids = [f"m-{n}" for n in range(20)]
    for entity in (queue, once):
        await bus.send(entity, *(ServiceBusMessage(i, message_id=i) for i in ids * 2))
    found = await bus.peek(once, 100)
    assert sorted(texts(found)) == sorted(ids)
    assert all(fragment(each) == fragment_of(each.message_id) for each in found)
    assert spread(await bus.peek(queue, 100)) == Counter(n % FRAGMENTS for n in range(40))


async def test_r_part_12_a_partition_key_beside_a_session_id_must_equal_it(
    open_bus: MakeBus, make_queue: Callable[..., str], administration: Administration
) -> None:
    bus, queue = open_bus(), make_queue(requires_session=True)
    odd = ServiceBusMessage("x", session_id="s")
    odd.partition_key = "s"
    odd._raw_amqp_message.annotations[b"x-opt-partition-key"] = "other"
    with pytest.raises(ServiceBusError, match="must be equal"):
        await bus.send(queue, odd)
    assert administration.counts(queue).total_message_count == 0


async def batch_of(bus: Bus, queue: str, messages: list[ServiceBusMessage]) -> None:
    async with bus.sender(queue) as sender:
        batch: ServiceBusMessageBatch = await sender.create_message_batch()
        for message in messages:
            batch.add_message(message)
        await sender.send_messages(batch)


@pytest.mark.parametrize("keys", [("a", "b"), ("a", None), (None, "a")])
async def test_a_batch_has_one_key(
    open_bus: MakeBus, queue: str, keys: tuple[str | None, ...]
) -> None:
    """semantics B §9."""
    bus = open_bus()
    with pytest.raises(ServiceBusError, match="distinct SessionId or PartitionKey"):
        await batch_of(bus, queue, [ServiceBusMessage("x", partition_key=key) for key in keys])
    assert await bus.peek(queue) == []
    await batch_of(bus, queue, [ServiceBusMessage("x", partition_key="a") for _ in range(3)])
    assert spread(await bus.peek(queue)) == {fragment_of("a"): 3}


async def test_a_batch_with_several_ids_is_refused_where_duplicates_are_found(
    open_bus: MakeBus, make_queue: Callable[..., str]
) -> None:
    """semantics B §6: in Azure's words."""
    bus, queue = open_bus(), make_queue(requires_duplicate_detection=True)
    with pytest.raises(ServiceBusError, match="partitioning and duplicate detection enabled"):
        await batch_of(bus, queue, [ServiceBusMessage(i, message_id=i) for i in "ab"])
    keyed = [ServiceBusMessage(i, message_id=i, partition_key="k") for i in "aba"]
    await batch_of(bus, queue, keyed)
    assert texts(await bus.peek(queue)) == ["a", "b"]


# -- receiving -----------------------------------------------------------------------------------


async def test_r_part_06_r_part_07_a_receiver_gets_the_messages_of_all_fragments(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    await bus.send(queue, *(ServiceBusMessage(f"{n}") for n in range(4 * FRAGMENTS)))
    async with bus.receiver(queue, prefetch_count=10) as receiver:
        found = await gather_messages(receiver, 4 * FRAGMENTS)
        assert spread(found) == dict.fromkeys(range(FRAGMENTS), 4)
        for message in found:
            await receiver.complete_message(message)
        await receive_none(receiver)
    assert administration.counts(queue).total_message_count == 0


async def test_no_fragment_is_left_behind_by_receives_of_one_message(
    open_bus: MakeBus, queue: str
) -> None:
    bus = open_bus()
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(4 * FRAGMENTS)))
    async with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        found: list[Any] = []
        for _ in range(FRAGMENTS):
            found += await receiver.receive_messages(max_message_count=1, max_wait_time=10)
    assert len(spread(found)) == FRAGMENTS


async def test_messages_with_one_key_come_in_order(open_bus: MakeBus, queue: str) -> None:
    bus = open_bus()
    sent = [f"{n}" for n in range(40)]
    await bus.send(queue, *(ServiceBusMessage(each, partition_key="k") for each in sent))
    assert texts(await bus.receive(queue, len(sent))) == sent


async def test_a_subscription_gets_the_messages_of_all_fragments(
    open_bus: MakeBus, administration: Administration, topic: Topic
) -> None:
    bus = open_bus()
    taken = administration.make_subscription(topic, "kind = 'a'")
    keyed = [("a", f"k{n}") for n in range(20)] + [("b", "k")]
    await bus.send(
        topic,
        *(
            ServiceBusMessage(key, partition_key=key, application_properties={"kind": kind})
            for kind, key in keyed
        ),
    )
    assert administration.counts(taken).active_message_count == 20
    found = await bus.receive(taken, 20)
    assert sorted(texts(found)) == sorted(f"k{n}" for n in range(20))
    assert all(fragment(each) == fragment_of(text(each)) for each in found)


async def test_dead_letters_of_all_fragments_are_in_one_queue(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    await messages_of_each_fragment(bus, queue)
    async with bus.receiver(queue) as receiver:
        for message in await gather_messages(receiver, FRAGMENTS):
            await receiver.dead_letter_message(message, reason="test")
    assert administration.counts(queue).dead_letter_message_count == FRAGMENTS
    found = await bus.receive(queue, FRAGMENTS, sub_queue="deadletter")
    assert sorted(map(fragment, found)) == list(range(FRAGMENTS))


# -- messages by number and by lock --------------------------------------------------------------


async def test_a_peek_that_goes_on_behind_the_last_number_sees_all(
    open_bus: MakeBus, queue: str
) -> None:
    bus = open_bus()
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(3 * FRAGMENTS)))
    async with bus.receiver(queue) as receiver:
        numbers: list[int] = []
        while more := await receiver.peek_messages(max_message_count=5):
            numbers += [each.sequence_number for each in more]
        assert len(numbers) == 3 * FRAGMENTS
        assert numbers == sorted(set(numbers))
        found = await receiver.peek_messages(max_message_count=99, sequence_number=5 << 48)
        assert {fragment(each) for each in found} == set(range(5, FRAGMENTS))


async def test_deferred_messages_of_several_fragments_come_in_the_order_asked(
    open_bus: MakeBus, queue: str
) -> None:
    bus = open_bus()
    await messages_of_each_fragment(bus, queue)
    async with bus.receiver(queue) as receiver:
        found = await gather_messages(receiver, FRAGMENTS)
        for message in found:
            await receiver.defer_message(message)
        numbers = [each.sequence_number for each in found]
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([*numbers, numbers[0] + 1_000])
        # Nothing is locked by the request that failed.
        again = await receiver.receive_deferred_messages(numbers[::-1])
        assert [each.sequence_number for each in again] == numbers[::-1]
        for message in again[:8]:
            await receiver.complete_message(message)
        for message in again[8:]:
            await receiver.abandon_message(message)
    async with bus.receiver(queue, receive_mode="receiveanddelete") as receiver:
        last = [each.sequence_number for each in again[8:]]
        taken = await receiver.receive_deferred_messages(last)
        assert [each.sequence_number for each in taken] == last
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(last)


async def test_scheduled_messages_of_several_fragments_are_cancelled_together_or_not_at_all(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    due = datetime.now(UTC) + LATER
    async with bus.sender(queue) as sender:
        keyed = [ServiceBusMessage("x", partition_key=key) for key in "ab"]
        with pytest.raises(ServiceBusError, match="distinct SessionId or PartitionKey"):
            await sender.schedule_messages(keyed, due)
        together = await sender.schedule_messages([ServiceBusMessage("x") for _ in range(3)], due)
        assert len({number >> 48 for number in together}) == 1
        others = [(await sender.schedule_messages(ServiceBusMessage("x"), due))[0] for _ in "abcd"]
        assert len({number >> 48 for number in others}) == 4
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages([*others, others[0] + 1_000])
        assert administration.counts(queue).scheduled_message_count == 7
        await sender.cancel_scheduled_messages([*others, *together])
    assert administration.counts(queue).scheduled_message_count == 0


async def test_locks_of_several_fragments_are_renewed_and_settled_by_one_request(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    await messages_of_each_fragment(bus, queue)
    async with bus.receiver(queue) as receiver:
        found = await gather_messages(receiver, FRAGMENTS)
        tokens = amqp_array_value([each.lock_token for each in found])
        renewed = await manage(receiver, "renew-lock", {"lock-tokens": tokens})
        assert (renewed.status, len(renewed.value[b"expirations"])) == (200, FRAGMENTS)
        body = {"disposition-status": "completed", "lock-tokens": tokens}
        assert (await manage(receiver, "update-disposition", body)).status == 200
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(found[0])
    assert administration.counts(queue).total_message_count == 0


async def test_messages_of_all_fragments_are_purged(
    open_bus: MakeBus, queue: str, administration: Administration
) -> None:
    bus = open_bus()
    await bus.send(queue, *(ServiceBusMessage("x") for _ in range(2 * FRAGMENTS)))
    async with bus.receiver(queue) as receiver:
        reply = await manage(receiver, "batch-delete-messages", {"message-count": 20})
        assert reply.value[b"message-count"] == 20
        reply = await manage(receiver, "batch-delete-messages", {"message-count": 4_000})
        assert reply.value[b"message-count"] == 12
    assert administration.counts(queue).total_message_count == 0


# -- sessions ------------------------------------------------------------------------------------


async def test_a_session_is_in_the_fragment_of_its_id_and_in_order(
    open_bus: MakeBus, make_queue: Callable[..., str]
) -> None:
    bus, queue = open_bus(), make_queue(requires_session=True)
    ids = ["", "a", "session-1", "é"]
    for n in range(3):
        await bus.send(queue, *(ServiceBusMessage(f"{n}", session_id=each) for each in ids))
    for each in ids:
        async with bus.receiver(queue, session_id=each) as receiver:
            found = await gather_messages(receiver, 3)
            assert texts(found) == ["0", "1", "2"]
            assert {fragment(message) for message in found} == {fragment_of(each)}
            session = bus.session(receiver)
            await session.set_state(b"state of " + each.encode())
            assert await session.get_state() == b"state of " + each.encode()
            await session.renew_lock()
            for message in found:
                await receiver.complete_message(message)


async def test_the_next_session_comes_from_any_fragment_and_only_once(
    open_bus: MakeBus, make_queue: Callable[..., str]
) -> None:
    bus, queue = open_bus(), make_queue(requires_session=True)
    ids = [f"s{n}" for n in range(12)]

    async def accept() -> str:
        receiver = await bus.open_receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
        await gather_messages(receiver, 1)
        session_id: str = receiver.session.session_id
        return session_id

    waiting = [asyncio.create_task(accept()) for _ in ids]
    await asyncio.sleep(0.5)
    await bus.send(queue, *(ServiceBusMessage("x", session_id=each) for each in ids))
    # Each has one session, and there is none left.
    assert sorted(await asyncio.gather(*waiting)) == sorted(ids)
    late = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    with pytest.raises(OperationTimeoutError):
        await late.__aenter__()


async def test_a_batch_of_one_session_names_its_partition_key_too(
    open_bus: MakeBus, make_queue: Callable[..., str]
) -> None:
    """As in the SDK's own tests."""
    bus, queue = open_bus(), make_queue(requires_session=True)
    batch = [ServiceBusMessage(each, session_id="mine", partition_key="mine") for each in "12"]
    async with bus.sender(queue) as sender:
        await sender.send_messages(batch)
        with pytest.raises(ServiceBusError, match="distinct SessionId or PartitionKey"):
            await sender.send_messages([ServiceBusMessage("x", session_id=each) for each in "ab"])
    async with bus.receiver(queue, session_id="mine") as receiver:
        found = await gather_messages(receiver, 2)
    assert [(text(each), each.partition_key) for each in found] == [("1", "mine"), ("2", "mine")]


# -- costs ---------------------------------------------------------------------------------------


async def test_r_part_08_partitioning_adds_no_billable_operation(
    open_bus: MakeBus, queue: str, make_queue: Callable[..., str], server: Server
) -> None:
    bus, classic = open_bus(), make_queue(enable_partitioning=False)
    costs = []
    for entity in (queue, classic):
        await bus.send(entity, *(ServiceBusMessage("x") for _ in range(20)))
        async with bus.receiver(entity, receive_mode="receiveanddelete") as receiver:
            for _ in range(20):
                assert len(await receiver.receive_messages(max_message_count=1)) == 1
            await receive_none(receiver)
            await receiver.peek_messages(max_message_count=5)
        with RestClient(server.connection_string) as rest:
            [cost] = json.loads(rest.request("GET", f"/{entity}/$usage").body)["entities"]
        del cost["entity"]
        costs.append(cost)
    assert costs[0] == costs[1]
    assert (costs[0]["sends"], costs[0]["receives"], costs[0]["emptyReceives"]) == (20, 20, 1)


# -- transactions and the feed, which are not there yet ------------------------------------------


def test_transactions_and_sends_through_an_entity_are_refused_by_name(
    server: Server, queue: str, make_queue: Callable[..., str], administration: Administration
) -> None:
    """Nothing of such a transaction happens."""
    classic = make_queue(enable_partitioning=False)
    client, other = Transacting(server), Transacting(server)
    coordinator = client.coordinator()
    transaction = client.declare(coordinator)
    refused = client.transfer(client.sender(queue), message("x"), transaction)
    assert isinstance(refused, Rejected) and refused.error is not None
    assert refused.error.condition == "amqp:not-implemented"
    assert "transactions" in (refused.error.description or "")
    with pytest.raises(Refused):
        client.discharge(coordinator, transaction)
    client.fill(queue, "kept")
    delivery = client.next(client.receiver(queue))
    transaction = client.declare(coordinator)
    refused = client.settle_in(delivery, Accepted(), transaction)
    assert isinstance(refused, Rejected) and refused.error is not None
    assert refused.error.condition == "amqp:not-implemented"
    for through, destination in ((queue, classic), (classic, queue)):
        with pytest.raises(Refused, match="partitioned"):
            other.sender(through, destination=destination)
    for each in (client, other):
        each.socket.close()
    assert administration.counts(queue).active_message_count == 1


def test_the_feed_is_refused_by_name(server: Server, queue: str) -> None:
    with RestClient(server.connection_string) as rest:
        reply = rest.request("GET", f"/{queue}/$feed")
    assert reply.status == 400
    assert "does not support the change feed of partitioned entities yet" in reply.body.decode()


# -- over HTTP -----------------------------------------------------------------------------------


async def test_r_part_21_messages_of_all_fragments_over_http(server: Server, queue: str) -> None:
    with RestClient(server.connection_string) as rest:
        sent = {f"{n}" for n in range(2 * FRAGMENTS)}
        for body in sorted(sent):
            assert rest.send(queue, body.encode()).status == 201
        found = set()
        for n in range(len(sent)):
            if n % 2:
                reply = rest.take(queue)
            else:
                reply = rest.lock(queue)
                assert rest.request("POST", reply.location).status == 200
                assert rest.request("DELETE", reply.location).status == 200
            found.add(reply.body.decode())
        assert found == sent
        assert rest.take(queue, 0).status == 204

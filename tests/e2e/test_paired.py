"""A paired client with two real namespaces: sends survive what happens to the primary.

R-PAIR-01, R-PAIR-02, R-PAIR-03, R-PAIR-04, R-PAIR-05, R-PAIR-06, R-PAIR-07, R-PAIR-08, R-PAIR-09.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from postbus.paired import (
    BacklogUnavailableError,
    DivertedMessageSizeExceededError,
    PathBrokenError,
    PathState,
    SendAvailability,
)
from postbus.paired.aio import PairedServiceBusClient
from tests.support.administration import Administration
from tests.support.bus import FLAVOURS, texts
from tests.support.paired import PairedBus, drain, ids, sent, until
from tests.support.server import Server

HEALTHY, SUSPECT = PathState.HEALTHY, PathState.SUSPECT
FAILED_OVER, BROKEN = PathState.FAILED_OVER, PathState.BROKEN
Open = Callable[..., PairedBus]


waits_long = pytest.mark.parametrize(
    "open_pair", ["async", pytest.param("sync", marks=pytest.mark.long)], indirect=True
)
"""Waits for intervals and time-outs, which the facade of the sync flavour does not change."""


@pytest.fixture(scope="module")
def secondary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("secondary") / "data").start()
    yield server
    server.discard()


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "primary", "--queue", "orders", "--topic", "news/audit").start()
    yield server
    server.discard()


@pytest.fixture(params=FLAVOURS)
async def open_pair(
    request: pytest.FixtureRequest, primary: Server, secondary: Server
) -> AsyncIterator[Open]:
    """Makes paired clients; none outlives the test, and none leaves a thread or a task."""
    opened: list[PairedBus] = []
    threads = set(threading.enumerate())

    def make(**options: Any) -> PairedBus:
        ends = options.pop("primary", primary.connection_string), secondary.connection_string
        opened.append(PairedBus(request.param, *ends, **options))
        return opened[-1]

    yield make
    for pair in opened:
        await pair.close()
    named = [each for each in threading.enumerate() if each.name == "postbus-paired"]
    assert not set(named) - threads
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "postbus/paired" in str(task.get_coro())]


@pytest.fixture
def administration(secondary: Server) -> Iterator[Administration]:
    administration = Administration(secondary.connection_string)
    yield administration
    administration.close()


@waits_long
async def test_r_pair_01_while_the_primary_is_healthy_nothing_changes(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair()
    assert await pair.call("pair") == 2
    async with pair.sender("orders") as sender, pair.sender("news", "topic") as news:
        await sender.send_messages(sent(1, time_to_live=timedelta(hours=1)))
        await sender.send_messages(sent(number) for number in (2, 3))
        await sender.send_messages([{"body": "four", "message_id": "id-4"}])
        batch = await sender.create_message_batch()
        batch.add_message(sent(5))
        await sender.send_messages(batch)
        await sender.send_messages([])
        due = datetime.now(UTC) + timedelta(hours=1)
        [number] = await sender.schedule_messages(sent(6), due)
        await sender.cancel_scheduled_messages(number)
        await news.send_messages(ServiceBusMessage("tea"))
        assert sender.entity_name == "orders"
    plain = pair.client.get_queue_sender("orders", client_identifier="me")
    assert str(plain) == "Sender client id: me, entity: orders"
    assert ids(await drain(primary, "orders")) == [f"id-{number}" for number in range(1, 6)]
    assert await drain(secondary, pair.backlog(0), pair.backlog(1)) == []
    assert pair.changes == []


async def test_r_pair_01_receivers_are_those_of_the_primary(
    open_pair: Open, primary: Server
) -> None:
    pair = open_pair()
    async with pair.sender("orders") as sender:
        await sender.send_messages(sent(1))

    def receive() -> list[str]:
        with pair.client.get_queue_receiver("orders", max_wait_time=10) as receiver:
            return texts(receiver.receive_messages())

    if hasattr(pair.client, "__enter__"):
        assert await asyncio.to_thread(receive) == ["body 1"]
    else:
        async with pair.client.get_queue_receiver("orders", max_wait_time=10) as receiver:
            assert texts(await receiver.receive_messages()) == ["body 1"]


async def test_r_pair_02_pairing_makes_the_backlog_queues(
    open_pair: Open, administration: Administration
) -> None:
    pair = open_pair(backlog_queue_count=3)
    assert pair.client.backlog_queues == ()
    assert await pair.call("pair") == 3
    assert pair.client.backlog_queues == tuple(pair.backlog(index) for index in range(3))
    made = administration.client.get_queue(pair.backlog(2))
    assert made.max_size_in_megabytes == 5_120 and made.max_delivery_count == 2**31 - 1
    assert made.lock_duration == timedelta(minutes=1)
    assert made.dead_lettering_on_message_expiration and made.enable_batched_operations
    assert made.default_message_time_to_live > timedelta(days=10_000_000)
    assert made.auto_delete_on_idle > timedelta(days=10_000_000)


async def test_r_pair_03_queues_that_exist_are_used_as_they_are_and_others_left_alone(
    open_pair: Open, administration: Administration
) -> None:
    pair = open_pair(failover_interval=0)
    lock = timedelta(seconds=30)
    for index in (1, 2):
        administration.client.create_queue(pair.backlog(index), lock_duration=lock)
    assert await pair.call("pair") == 2
    assert administration.client.get_queue(pair.backlog(1)).lock_duration == lock
    assert administration.client.get_queue(pair.backlog(0)).lock_duration != lock
    assert pair.client.backlog_queues == (pair.backlog(0), pair.backlog(1))
    assert administration.counts(pair.backlog(2)).total_message_count == 0


async def test_r_pair_02_a_backlog_queue_that_cannot_be_made_is_left_out(
    open_pair: Open, administration: Administration
) -> None:
    pair = open_pair()
    administration.client.create_topic(pair.backlog(0))
    assert await pair.call("pair") == 1
    assert pair.client.backlog_queues == (pair.backlog(1),)


async def test_r_pair_02_no_backlog_queue_at_all_is_an_error(
    open_pair: Open, administration: Administration, primary: Server
) -> None:
    pair = open_pair(backlog_queue_count=1, failover_interval=0)
    administration.client.create_topic(pair.backlog(0))
    with pytest.raises(BacklogUnavailableError):
        await pair.call("pair")
    async with pair.sender("orders") as sender:
        await sender.send_messages(sent(1))
        primary.kill()
        with pytest.raises(BacklogUnavailableError):
            await sender.send_messages(sent(2))


@waits_long
async def test_r_pair_04_callers_get_the_error_until_the_interval_is_over(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=3)
    await pair.call("pair")
    async with pair.sender("orders") as sender:
        await sender.send_messages(sent(1))
        primary.kill()
        errors, accepted = 0, []
        for number in range(2, 200):
            try:
                await sender.send_messages(sent(number))
                accepted.append(f"id-{number}")
            except ServiceBusConnectionError:
                errors += 1
                assert not accepted, "an error after failover"
            if len(accepted) == 3:
                break
            await asyncio.sleep(0.2)
    assert errors >= 1
    assert pair.states == [SUSPECT, FAILED_OVER]
    assert pair.changes[0].path == "orders" and pair.changes[0].error is not None
    assert sorted(ids(await drain(secondary, *pair.client.backlog_queues))) == sorted(accepted)
    [status] = await pair.call("status")
    assert (status.path, status.state, status.diverted) == ("orders", FAILED_OVER, 3)


@waits_long
async def test_r_pair_05_07_a_failover_ends_with_the_first_good_ping(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    """Interval 0: the failing call itself goes to the backlog."""
    pair = open_pair(failover_interval=0)
    async with pair.sender("orders") as sender, pair.sender("orders") as other:
        await other.send_messages(sent(0))
        primary.kill()
        await sender.send_messages(sent(1))
        await sender.send_messages([sent(2), sent(3)])
        assert pair.states == [SUSPECT, FAILED_OVER]
        await asyncio.sleep(2)  # pings fail meanwhile
        primary.start()
        await until(lambda: pair.states[-1] is HEALTHY)
        await sender.send_messages(sent(4))
        await other.send_messages(sent(5))
    assert ids(await drain(primary, "orders")) == ["id-0", "id-4", "id-5"], "and no ping"
    assert ids(await drain(secondary, *pair.client.backlog_queues)) == ["id-1", "id-2", "id-3"]
    [status] = await pair.call("status")
    assert status.pings >= 1 and status.diverted == 3


@waits_long
async def test_a_frozen_primary_holds_no_send_longer_than_its_timeout(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=0)
    await pair.call("pair")
    async with pair.sender("orders") as sender, pair.sender("news", "topic") as fresh:
        await sender.send_messages(sent(1))
        primary.signal(signal.SIGSTOP)
        await sender.send_messages(sent(2), timeout=6)
        await sender.send_messages([sent(3)], timeout=6)
        await fresh.send_messages(sent(4), timeout=6)
        batch = await fresh.create_message_batch()
        batch.add_message(sent(5))
        await fresh.send_messages(batch)
        with pytest.raises(OperationTimeoutError):
            await sender.schedule_messages(sent(6), datetime.now(UTC), timeout=2)
        primary.signal(signal.SIGCONT)
        await until(lambda: pair.states.count(HEALTHY) == 2)
        await sender.send_messages(sent(7))
    diverted = await drain(secondary, *pair.client.backlog_queues)
    assert sorted(ids(diverted)) == ["id-2", "id-3", "id-4", "id-5"]
    paths = {each.application_properties[b"x-ms-path"] for each in diverted}
    assert paths == {b"orders", b"news"}
    assert {"id-1", "id-7"} <= set(ids(await drain(primary, "orders")))


@waits_long
async def test_a_call_under_way_when_failover_begins_goes_on_to_the_backlog(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    """R-PAIR-04."""
    pair = open_pair(failover_interval=1)
    await pair.call("pair")
    async with pair.sender("orders") as sender, pair.sender("orders") as other:
        await sender.send_messages(sent(1))
        await other.send_messages(sent(2))
        primary.signal(signal.SIGSTOP)
        slow = asyncio.create_task(other.send_messages(sent(3), timeout=30))
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(sent(4), timeout=2)
        await slow
        assert pair.states == [SUSPECT, FAILED_OVER]
        primary.signal(signal.SIGCONT)
    assert ids(await drain(secondary, *pair.client.backlog_queues)) == ["id-3"]


@waits_long
async def test_r_pair_07_a_queue_that_is_gone_is_no_outage_and_breaks_its_path(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=0, ping_primary_interval=8)
    await pair.call("pair")
    administration = Administration(primary.connection_string)
    administration.client.create_queue("short")
    async with pair.sender("nowhere") as sender, pair.sender("short") as short:
        with pytest.raises(ServiceBusError):
            await sender.send_messages(sent(1))
        assert pair.changes == []
        primary.signal(signal.SIGSTOP)
        await short.send_messages(sent(2), timeout=4)
        # The thaw and the deletion take less than the interval to the first ping.
        primary.signal(signal.SIGCONT)
        administration.client.delete_queue("short")
        await until(lambda: pair.states[-1] is BROKEN)
        with pytest.raises(PathBrokenError) as refused:
            await short.send_messages(sent(3))
        assert refused.value.inner_exception is not None
        administration.client.create_queue("short")
        await until(lambda: pair.states[-1] is HEALTHY)
        await short.send_messages(sent(4))
    administration.close()
    assert ids(await drain(secondary, *pair.client.backlog_queues)) == ["id-2"]
    assert ids(await drain(primary, "short")) == ["id-4"]


async def test_r_pair_04_a_wrong_key_is_no_outage(open_pair: Open, primary: Server) -> None:
    wrong = primary.connection_string.replace("SharedAccessKey=", "SharedAccessKey=A")
    pair = open_pair(primary=wrong, failover_interval=0)
    async with pair.sender("orders") as sender:
        with pytest.raises(ServiceBusAuthenticationError):
            await sender.send_messages(sent(1))
    assert pair.changes == []


async def test_r_pair_06_a_backlog_queue_that_fails_is_replaced_for_every_sender(
    open_pair: Open, primary: Server, secondary: Server, administration: Administration
) -> None:
    pair = open_pair(failover_interval=0, backlog_queue_count=3, ping_primary_interval=600)
    await pair.call("pair")
    primary.kill()
    async with pair.sender("orders") as sender, pair.sender("orders") as other:
        await sender.send_messages(sent(1))
        [used] = [
            each
            for each in pair.client.backlog_queues
            if administration.counts(each).total_message_count
        ]
        left = [each for each in pair.client.backlog_queues if each != used]
        administration.update(used, status="SendDisabled")
        await sender.send_messages(sent(2))
        for number in range(3, 6):
            await other.send_messages(sent(number))
        assert sum(administration.counts(each).total_message_count for each in left) == 4
        for each in left:
            administration.update(each, status="SendDisabled")
        with pytest.raises(ServiceBusError):
            await sender.send_messages(sent(6))
        with pytest.raises(BacklogUnavailableError):
            await other.send_messages(sent(7))


async def test_r_pair_08_a_diverted_message_keeps_what_it_was(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=0)
    await pair.call("pair")
    primary.kill()
    due = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    message = ServiceBusMessage(
        b"\x00\xff",
        message_id="m",
        session_id="s",
        time_to_live=timedelta(days=40),
        scheduled_enqueue_time_utc=due,
        subject="tea",
        application_properties={"n": 7},
    )
    async with pair.sender("orders") as sender:
        await sender.send_messages(message)
        with pytest.raises(ValueError, match="x-ms-path"):
            await sender.send_messages(
                ServiceBusMessage("x", application_properties={"x-ms-path": "y"})
            )
        with pytest.raises(ServiceBusError):
            await sender.schedule_messages(sent(1), due, timeout=5)
    [got] = await drain(secondary, *pair.client.backlog_queues)
    assert (got.session_id, got.time_to_live, got.scheduled_enqueue_time_utc) == (None, None, None)
    assert (got.message_id, got.subject, b"".join(got.body)) == ("m", "tea", b"\x00\xff")
    assert got.application_properties == {
        b"n": 7,
        b"x-ms-path": b"orders",
        b"x-ms-sessionid": b"s",
        b"x-ms-timetolive": 40 * 86_400_000,
        b"x-ms-scheduledenqueuetimeutc": int(due.timestamp()) * 1_000,
    }


async def test_r_pair_09_a_message_too_large_for_the_backlog_is_refused_and_a_batch_is_split(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=0, backlog_queue_count=1)
    await pair.call("pair")
    size = 256 * 1024
    async with pair.sender("orders") as sender:
        while True:
            largest = ServiceBusMessage(b"x" * size)
            try:
                await sender.send_messages(largest)
                break
            except ValueError:
                size -= 4
        batch = await sender.create_message_batch()
        while True:
            try:
                batch.add_message(ServiceBusMessage(b"y" * 900, session_id="s"))
            except ValueError:
                break
        primary.kill()
        with pytest.raises(DivertedMessageSizeExceededError, match="properties that keep"):
            await sender.send_messages(largest)
        await sender.send_messages(batch)
        await sender.send_messages([sent(1)])
    got = await drain(secondary, *pair.client.backlog_queues)
    assert ids(got) == [each.properties.message_id for each in batch.added] + ["id-1"]


async def test_r_pair_01_an_application_may_end_a_failover(
    open_pair: Open, primary: Server
) -> None:
    pair = open_pair(failover_interval=0, ping_primary_interval=600)
    await pair.call("pair")
    primary.kill()
    async with pair.sender("orders") as sender:
        await sender.send_messages(sent(1))
        primary.start()
        await pair.call("mark_healthy", "ORDERS")
        await sender.send_messages(sent(2))
        with pytest.raises(ValueError, match="nowhere"):
            await pair.call("mark_healthy", "nowhere")
    assert pair.states == [SUSPECT, FAILED_OVER, HEALTHY]
    assert ids(await drain(primary, "orders")) == ["id-2"]


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_through_kills_and_freezes(
    open_pair: Open, primary: Server, secondary: Server
) -> None:
    pair = open_pair(failover_interval=0.5, send_timeout=6)
    await pair.call("pair")
    acknowledged: set[str] = set()
    done = False

    async def send_on(first: int) -> None:
        async with pair.sender("orders") as sender:
            number = first
            while not done:
                number += 3
                try:
                    await sender.send_messages([sent(number, session_id=None)])
                except ServiceBusError:
                    await asyncio.sleep(0.05)
                else:
                    acknowledged.add(f"id-{number}")
                    await asyncio.sleep(0.005)

    senders = [asyncio.create_task(send_on(first)) for first in range(3)]
    for _ in range(2):
        await asyncio.sleep(1)
        await asyncio.to_thread(primary.kill)
        await until(lambda: pair.states[-1:] == [FAILED_OVER])
        await asyncio.sleep(1)
        await asyncio.to_thread(primary.start)
        await until(lambda: pair.states[-1] is HEALTHY)
    primary.signal(signal.SIGSTOP)
    await until(lambda: pair.states[-1] is FAILED_OVER)
    await asyncio.sleep(1)
    primary.signal(signal.SIGCONT)
    await until(lambda: pair.states[-1] is HEALTHY)
    done = True
    await asyncio.gather(*senders)
    there = ids(await drain(primary, "orders"))
    diverted = ids(await drain(secondary, *pair.client.backlog_queues))
    assert there and diverted
    assert acknowledged <= {*there, *diverted}


async def test_r_pair_01_two_clients_that_exist_can_be_paired(
    primary: Server, secondary: Server
) -> None:
    """With the SDK's administration client, and so with any of its credentials."""
    administration = ServiceBusAdministrationClient.from_connection_string(
        secondary.connection_string
    )
    administration._impl._client._base_url = "http://{endpoint}"  # see tests.support.administration
    ends = [
        ServiceBusClient.from_connection_string(each.connection_string, retry_total=0)
        for each in (primary, secondary)
    ]
    options = SendAvailability(primary_name="ready", backlog_queue_count=2, failover_interval=0)
    pair = PairedServiceBusClient(*ends, administration=administration, options=options)
    await administration.create_queue("ready/x-servicebus-transfer/1")
    async with pair, administration:
        assert len(pair.backlog_queues) == 2
        made = await administration.get_queue(pair.backlog_queues[0])
        assert made.max_delivery_count == 2**31 - 1
        primary.kill()
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(sent(1))
    assert ids(await drain(secondary, *pair.backlog_queues)) == ["id-1"]

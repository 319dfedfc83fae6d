"""What takes several turns keeps its order, and is done as a whole: with limits so small that
nearly everything does."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from postbus.amqp.events import Disposed
from postbus.amqp.sections import Properties, encode_data, encode_properties
from postbus.messages.batches import BATCH_FORMAT
from tests.e2e.test_held_memory import held
from tests.support.administration import Administration
from tests.support.raw_client import RawClient
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

pytestmark = pytest.mark.small_limits

COUNT = 30


def encoded(name: str) -> bytes:
    return encode_properties(Properties(message_id=name)) + encode_data(name.encode())


def batch_of(*names: str) -> bytes:
    return b"".join(encode_data(encoded(name)) for name in names)


def taken(server: Server, queue: str, count: int) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver,
    ):
        found: list[str] = []
        while len(found) < count and (some := receiver.receive_messages(count, max_wait_time=5)):
            found += [str(message) for message in some]
        return found


@pytest.fixture
def queue(server: Server) -> str:
    return Administration(server.connection_string).make_queue()


@pytest.mark.parametrize("carrier", ["tcp", "websocket"])
def test_what_is_sent_behind_a_batch_stays_behind_it(
    server: Server, queue: str, carrier: str
) -> None:
    names = [f"{n:02}" for n in range(3 * COUNT)]
    with RawClient(server, carrier) as client:
        sender = client.sender(queue)
        for start in range(0, 3 * COUNT, COUNT):
            first = names[start : start + COUNT - 2]
            sender.send(b"b%d" % start, (batch_of(*first),), message_format=BATCH_FORMAT)
            for name in names[start + COUNT - 2 : start + COUNT]:
                sender.send(name.encode(), (encoded(name),))
        client.write()
        while sender.unsettled:
            client.read()
    assert taken(server, queue, len(names)) == names


def test_a_batch_with_one_message_that_cannot_be_read_is_refused_as_a_whole(
    server: Server, queue: str
) -> None:
    with RawClient(server) as client:
        sender = client.sender(queue)
        wrong = batch_of("1", "2", "3") + encode_data(b"\x00\x53\x99\x45")
        sender.send(b"1", (wrong,), message_format=BATCH_FORMAT)
        sender.send(b"2", (encoded("last"),))
        client.write()
        states = []
        while sender.unsettled:
            events = client.read()
            states += [type(e.state).__name__ for e in events if isinstance(e, Disposed)]
        assert sorted(states) == ["Accepted", "Rejected"]
    assert taken(server, queue, 1) == ["last"]


def test_a_client_that_leaves_behind_a_batch_has_sent_it(server: Server, queue: str) -> None:
    """What had come is taken, although it takes longer than its connection lasts."""
    names = [f"{n:02}" for n in range(COUNT)]
    with RawClient(server) as client:
        sender = client.sender(queue)
        sender.send(b"1", (batch_of(*names),), message_format=BATCH_FORMAT)
        client.write()
    assert taken(server, queue, COUNT) == names


def test_the_sdk_does_all_it_does_with_many_messages(server: Server, queue: str) -> None:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        sender, receiver = client.get_queue_sender(queue), client.get_queue_receiver(queue)
        with sender, receiver:
            names = [f"{n:02}" for n in range(COUNT)]
            sender.send_messages([ServiceBusMessage(name) for name in names])
            locked: list[Any] = []
            while len(locked) < COUNT:
                locked += receiver.receive_messages(COUNT, max_wait_time=5)
            for message in locked:
                receiver.defer_message(message)
            numbers: Any = [message.sequence_number for message in locked]
            deferred = receiver.receive_deferred_messages(numbers)
            assert [str(message) for message in deferred] == names
            assert len({message.lock_token for message in deferred}) == COUNT
            for message in deferred:
                receiver.complete_message(message)
            assert not receiver.peek_messages(COUNT)


def test_a_batch_over_http_is_stored_in_its_order(server: Server, queue: str) -> None:
    names = [f"{n:02}" for n in range(COUNT)]
    with RestClient(server.connection_string) as client:
        items = [{"Body": name, "UserProperties": {"a": 1, "b": 2}} for name in names]
        assert client.send_batch(queue, items).status == 201
    assert taken(server, queue, COUNT) == names


def test_frames_that_come_at_once_are_all_heard(server: Server, queue: str) -> None:
    names = [f"{n:03}" for n in range(10 * COUNT)]
    with RawClient(server) as client:
        sender = client.sender(queue)
        for name in names:
            sender.send(name.encode(), (encoded(name),))
        client.write()
        while sender.unsettled:
            client.read()
    assert taken(server, queue, len(names)) == names


def test_what_was_heard_later_is_no_longer_held(server: Server, queue: str) -> None:
    """The budget of unfinished frames closes connections by what they hold now."""
    with RawClient(server) as client:
        sender = client.sender(queue)
        for n in range(10 * COUNT):
            sender.send(b"%d" % n, (encode_data(bytes(400)),))
        client.write()
        while sender.unsettled:
            client.read()
        until_blocking("nothing is held", lambda: held(server, "unfinished") == 0)

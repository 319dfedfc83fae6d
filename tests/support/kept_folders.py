"""Data folders as each format of the past left them, what is in them, and how they are made.

    python -m tests.support.kept_folders NAME

starts the broker that is installed and fills a folder with one of everything. The first half is in
the index, by a stop; the other is in the write-ahead logs only, by a kill. The folder is kept as
`kept/NAME.tar.gz`. To be run before a change that raises a format.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus import ServiceBusSubQueue as Sub

from tests.support.administration import Administration
from tests.support.bus import Subscription, Topic, texts
from tests.support.server import Server

KEPT = Path(__file__).with_name("kept")
NAMES = sorted(path.name.removesuffix(".tar.gz") for path in KEPT.glob("*.tar.gz"))
FAR_AWAY = datetime(2100, 1, 1, tzinfo=UTC)
LARGE = "large " * 20_000
NEWS = Topic("news")


def unpack(name: str, target: Path) -> Path:
    """A folder as it was kept."""
    with tarfile.open(KEPT / f"{name}.tar.gz") as kept:
        kept.extractall(target, filter="data")
    return target


def _fill_first(connection_string: str) -> None:
    _make_entities(Administration(connection_string))
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as bus:
        names = ("completed", "abandoned", "deferred", "dead", "active")
        _send(bus, "orders", *(ServiceBusMessage(name, message_id=name) for name in names))
        with bus.get_queue_receiver("orders") as receiver:
            received = receiver.receive_messages(4, max_wait_time=10)
            assert texts(received) == list(names[:4])
            receiver.complete_message(received[0])
            receiver.abandon_message(received[1])
            receiver.defer_message(received[2])
            receiver.dead_letter_message(received[3], reason="why", error_description="because")
        with bus.get_queue_sender("orders") as sender:
            sender.schedule_messages(ServiceBusMessage("scheduled"), FAR_AWAY)
        _publish(bus, 0, 1)
        _send(bus, "sessions", *_of_session("a"))
        with bus.get_queue_receiver("sessions", session_id="a") as receiver:
            receiver.session.set_state(b"state of a")


def _fill_second(connection_string: str) -> None:
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as bus:
        _send(bus, "large", ServiceBusMessage(LARGE, application_properties={"n": 1, "s": "two"}))
        _send(bus, "once", *(ServiceBusMessage(f"{n}", message_id="same") for n in range(3)))
        _send(bus, "sessions", *_of_session("b"))
        _publish(bus, 2)


def assert_filled(connection_string: str) -> None:
    """All of it is there and can be used: everything is received, and more is sent."""
    admin = Administration(connection_string).client
    assert [queue.name for queue in admin.list_queues()] == ["large", "once", "orders", "sessions"]
    assert [topic.name for topic in admin.list_topics()] == [NEWS]
    assert admin.get_queue("orders").max_delivery_count == 7
    [rule] = list(admin.list_rules(NEWS, "some"))
    assert (rule.name, rule.filter.sql_expression) == ("rule-0", "n > 0")  # type: ignore[union-attr]
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as bus:
        with bus.get_queue_receiver("orders") as receiver:
            peeked = {str(each): each for each in receiver.peek_messages(10)}
            assert peeked.keys() == {"abandoned", "deferred", "active", "scheduled"}
            assert peeked["scheduled"].scheduled_enqueue_time_utc == FAR_AWAY
            number = peeked["deferred"].sequence_number
            assert number is not None
            [deferred] = receiver.receive_deferred_messages(number)
            receiver.complete_message(deferred)
        abandoned, active = _take(bus.get_queue_receiver("orders"), 2)
        assert (str(abandoned), abandoned.delivery_count) == ("abandoned", 1)
        assert (str(active), active.message_id) == ("active", "active")
        [dead] = _take(bus.get_queue_receiver("orders", sub_queue=Sub.DEAD_LETTER), 1)
        assert (str(dead), dead.dead_letter_reason) == ("dead", "why")
        [large] = _take(bus.get_queue_receiver("large"), 1)
        assert str(large) == LARGE
        assert large.application_properties == {b"n": 1, b"s": b"two"}
        assert texts(_take(bus.get_queue_receiver("once"), 1)) == ["0"]
        for session in (NEXT_AVAILABLE_SESSION, "b"):
            receiver = bus.get_queue_receiver("sessions", session_id=session)  # type: ignore[arg-type]
            found = _take(receiver, 3)
            name = found[0].session_id
            assert texts(found) == [f"{name}{n}" for n in range(3)]
        with bus.get_queue_receiver("sessions", session_id="a") as receiver:
            assert receiver.session.get_state() == b"state of a"
        assert texts(_take(bus.get_subscription_receiver(NEWS, "all"), 3)) == ["0", "1", "2"]
        assert texts(_take(bus.get_subscription_receiver(NEWS, "some"), 2)) == ["1", "2"]
        _send(bus, "orders", ServiceBusMessage("after"))
        assert texts(_take(bus.get_queue_receiver("orders"), 1)) == ["after"]


def _make_entities(administration: Administration) -> None:
    client = administration.client
    client.create_queue("orders", max_delivery_count=7)
    client.create_queue("large")
    client.create_queue("once", requires_duplicate_detection=True)
    client.create_queue("sessions", requires_session=True)
    client.create_queue("gone")
    client.delete_queue("gone")
    client.create_topic(NEWS)
    administration.make_subscription(NEWS, name="all")
    some: Subscription = administration.make_subscription(NEWS, "n > 0", name="some")
    assert some.name == "some"


def _send(bus: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with bus.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def _of_session(name: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(f"{name}{n}", session_id=name) for n in range(3)]


def _publish(bus: ServiceBusClient, *numbers: int) -> None:
    with bus.get_topic_sender(NEWS) as sender:
        for n in numbers:
            sender.send_messages(ServiceBusMessage(f"{n}", application_properties={"n": n}))


def _take(receiver: Any, count: int) -> list[Any]:
    found: list[Any] = []
    with receiver:
        while len(found) < count and (some := receiver.receive_messages(count, max_wait_time=10)):
            for message in some:
                receiver.complete_message(message)
            found += some
    assert len(found) == count
    return found


def _keep(name: str) -> None:
    with TemporaryDirectory() as place:
        server = Server(Path(place) / "data").start()
        _fill_first(server.connection_string)
        server.stop()
        _fill_second(server.start().connection_string)
        server.kill()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as kept:
            for file in sorted((Path(place) / "data").iterdir()):
                if file.suffix in (".db", ".db-wal"):
                    kept.add(file, file.name, filter=_anonymous)
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{name}.tar.gz").write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    _keep(sys.argv[1])

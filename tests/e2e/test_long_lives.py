"""A time to live over 49.7 days, however it was given, is kept, told and kept through a restart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from postbus.amqp.events import MessageReceived
from postbus.amqp.sections import (
    Properties,
    encode_data,
    encode_header,
    encode_properties,
    read_annotations,
    read_header,
    read_properties,
    scan,
)
from tests.support.access import Caller
from tests.support.administration import Administration
from tests.support.raw_client import now_ms
from tests.support.rest import RestClient
from tests.support.server import Server

ROOT = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
DAY_MS = 86_400_000
HEADER_MAX = 0xFFFFFFFF


def lives(server: Server, queue: str) -> list[tuple[int | None, int]]:
    """Of each message in it: the time to live in the header, and that between the two times."""
    found = []
    with Caller(server, *ROOT) as caller:
        link = caller.receiver(queue)
        link.grant(10)
        caller.write()
        while sum(isinstance(event, MessageReceived) for event in caller.seen) < 3:
            caller.read()
        for event in caller.seen:
            if not isinstance(event, MessageReceived):
                continue
            payload = event.delivery.payload
            sections = scan(payload)
            properties = read_properties(payload, sections)
            created, expires = properties.creation_time, properties.absolute_expiry_time
            assert created is not None and expires is not None
            assert created == read_annotations(payload, sections)["x-opt-enqueued-time"]
            found.append((read_header(payload, sections).ttl, expires - created))
    return found


def send_all(server: Server, queue: str) -> None:
    """As the SDKs for JavaScript and .NET do, as JMS does, and over HTTP."""
    created = now_ms()
    life = Properties(creation_time=created, absolute_expiry_time=created + 100 * DAY_MS)
    with Caller(server, *ROOT) as caller:
        sender = caller.sender(queue)
        for header in (encode_header(ttl=HEADER_MAX), b""):
            sender.send(b"t", (header, encode_properties(life), encode_data(b"x")), settled=True)
        caller.write()
        caller.attach("receive", f"{queue}/$management")  # an answer: both have been read
    with RestClient(server.connection_string) as client:
        seconds = 100 * DAY_MS // 1_000
        assert client.send(queue, b"x", broker={"TimeToLive": seconds}).status == 201


def test_a_long_time_to_live_outlives_a_restart(make_server: Callable[..., Server]) -> None:
    server = make_server().start()
    queue = Administration(server.connection_string).make_queue()
    send_all(server, queue)
    assert lives(server, queue) == [(HEADER_MAX, 100 * DAY_MS)] * 3
    server.kill()
    server.start()
    assert lives(server, queue) == [(HEADER_MAX, 100 * DAY_MS)] * 3


def test_that_of_the_queue_limits_it(make_server: Callable[..., Server]) -> None:
    server = make_server().start()
    administration = Administration(server.connection_string)
    queue = administration.make_queue(default_message_time_to_live=timedelta(days=60))
    send_all(server, queue)
    assert lives(server, queue) == [(HEADER_MAX, 60 * DAY_MS)] * 3

"""R-PIPE-02: how long a feed goes back is a choice for each entity, also for unmodified SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from tests.support import feed
from tests.support.administration import administration_client
from tests.support.rest import Reply, RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

pytestmark = pytest.mark.small_limits

NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def put(client: RestClient, name: str, kind: str, update: bool, **elements: object) -> Reply:
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in elements.items())
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind}Description xmlns="{NAMESPACE}">{inside}</{kind}Description></content></entry>'
    )
    headers = {"If-Match": "*"} if update else {}
    return client.request("PUT", f"/{name}?api-version=2021-05", body.encode(), headers)


def retention(client: RestClient, name: str) -> tuple[int, int]:
    found = feed.described(client, name)["retention"]
    return found["hours"], found["mb"]


def test_an_entity_has_the_retention_it_was_given_and_keeps_it_through_the_sdk(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--retention-hours", "5").start()
    with (
        RestClient(server.connection_string) as client,
        administration_client(server.connection_string) as admin,
    ):
        for kind, name in (("Queue", "q"), ("Topic", "t")):
            reply = put(client, name, kind, False, RetentionInHours=48, RetentionInMegabytes=7)
            assert reply.status == 201, reply.body
            assert b"<RetentionInHours>48</RetentionInHours>" in reply.body
            assert retention(client, name) == (48, 7)
        # the SDK neither stumbles over the elements nor takes them away
        queue, topic = admin.get_queue("q"), admin.get_topic("t")
        queue.max_delivery_count = 3
        admin.update_queue(queue)
        topic.user_metadata = "x"
        admin.update_topic(topic)
        assert admin.get_queue("q").max_delivery_count == 3
        assert [each.name for each in admin.list_queues()] == ["q"]
        assert retention(client, "q") == retention(client, "t") == (48, 7)
        server.kill()
        server.start()
        with RestClient(server.connection_string) as again:
            assert retention(again, "q") == (48, 7)
            assert put(again, "q", "Queue", True, RetentionInHours=-1).status == 200
            assert retention(again, "q") == (5, 7)
            reply = put(again, "q", "Queue", True, RetentionInHours=87_601)
            assert reply.status == 400
            assert "RetentionInHours" in reply.detail
            # one that says nothing has what the broker was told
            assert put(again, "plain", "Queue", False).status == 201
            assert retention(again, "plain") == (5, 1_024)
            assert b"Retention" not in again.request("GET", "/plain").body


def test_a_file_says_it_too(make_server: Callable[..., Server], tmp_path: Path) -> None:
    config = tmp_path / "postbus.toml"
    config.write_text('[queues."q"]\nretention_in_hours = 2\n[topics."t"]\n')
    server = make_server("--config", str(config)).start()
    with RestClient(server.connection_string) as client:
        assert retention(client, "q") == (2, 1_024)
        assert retention(client, "t") == (24, 1_024)


def test_what_is_past_its_retention_is_gone_and_the_reader_is_told_what_is_left(
    make_server: Callable[..., Server],
) -> None:
    server = make_server().start()
    with RestClient(server.connection_string) as client:
        # given two queues whose messages are gone, one of which keeps nothing of that
        for name, hours in (("short", 0), ("long", 24)):
            assert put(client, name, "Queue", False, RetentionInHours=hours).status == 201
            for number in range(5):
                assert client.send(name, b"%d" % number).status == 201
                assert client.take(name).status == 200
            assert client.send(name, b"stays").status == 201
        # when upkeep has come by
        first = until_blocking(
            "trimmed", lambda: feed.fragment_of(client, "short")["first"], within_s=40
        )

        def what_is_left() -> dict[str, Any] | None:
            # what is gone is said to be, with the first offset that is left
            reply = feed.read(client, "short", 0)
            assert reply.status == 410
            told: dict[str, Any] = json.loads(reply.body)
            assert told["error"] == "offset trimmed"
            assert told["first"] >= first
            assert told["next"] >= 11
            try:
                with RestClient(server.connection_string) as other:
                    left = feed.read(other, "short", told["first"])
            except IncompleteRead:
                return None  # trimmed while it was being read
            if left.status == 410:
                return None  # upkeep came by once more
            # what stays is copied forward behind that, sooner or later
            offsets = [each.offset for each in feed.records(left.body)]
            assert offsets == list(range(told["first"], told["first"] + len(offsets)))
            return told

        until_blocking("read", what_is_left)
        # and nothing is gone from the other, nor is any message
        assert [each.offset for each in feed.read_all(client, "long")] == list(range(11))
        for name in ("short", "long"):
            assert client.take(name).body == b"stays"

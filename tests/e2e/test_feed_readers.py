"""R-PIPE-02: readers of a change feed tell how far they are, and it outlasts the broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import feed
from tests.support.administration import administration_client
from tests.support.rest import Reply, RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking

pytestmark = pytest.mark.small_limits


@pytest.fixture
def running(make_server: Callable[..., Server]) -> Server:
    server = make_server().start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("q")
    return server


@pytest.fixture
def client(running: Server) -> Iterator[RestClient]:
    with RestClient(running.connection_string) as client:
        yield client


def told(client: RestClient, name: str, progress: object) -> Reply:
    return client.request("PUT", f"/q/$feed/readers/{name}", json.dumps(progress).encode())


def readers(client: RestClient, entity: str = "q") -> list[dict[str, Any]]:
    reply = client.request("GET", f"/{entity}/$feed/readers")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = json.loads(reply.body)
    return found


def metric(client: RestClient, line: str) -> str | None:
    for each in client.request("GET", "/metrics").body.decode().splitlines():
        if each.startswith(line + " "):
            return each.removeprefix(line + " ")
    return None


def test_progress_is_shown_with_its_lag_and_outlasts_a_kill(
    running: Server, client: RestClient
) -> None:
    for number in range(5):
        client.send("q", b"%d" % number)
    assert readers(client) == []
    first = {"offsets": {"0": 2}, "query": "archive", "batch": 7}
    assert told(client, "archive%2Feu", first).status == 204
    assert told(client, "report", {"offsets": {"0": 5}}).status == 204

    def check(client: RestClient) -> None:
        behind, ahead = readers(client)
        assert (behind["name"], behind["query"], behind["batch"]) == ("archive/eu", "archive", 7)
        assert (behind["offsets"], behind["head"], behind["lag"]) == ({"0": 2}, {"0": 5}, 3)
        assert behind["lagTime"] > 0
        assert (ahead["name"], ahead["lag"], ahead["lagTime"]) == ("report", 0, 0)
        assert ahead["updated"] >= behind["updated"] > 1_600_000_000_000

    check(client)
    lag = 'postbus_feed_reader_lag_records{entity="q",reader="archive/eu"}'
    assert metric(client, lag) == "3.0"
    running.kill()
    running.start()
    with RestClient(running.connection_string) as again:
        check(again)
        assert metric(again, lag) == "3.0"
        assert again.request("DELETE", "/q/$feed/readers/archive%2Feu").status == 204
        assert again.request("DELETE", "/q/$feed/readers/archive%2Feu").status == 404
        assert [each["name"] for each in readers(again)] == ["report"]
        # a scrape may be that of a moment ago
        until_blocking("no more in the metrics", lambda: metric(again, lag) is None)


def test_a_new_entity_of_the_same_name_has_no_readers(running: Server, client: RestClient) -> None:
    assert told(client, "r", {"offsets": {"0": 0}}).status == 204
    with administration_client(running.connection_string) as admin:
        admin.delete_queue("q")
        assert client.request("GET", "/q/$feed/readers").status == 404
        admin.create_queue("q")
    assert readers(client) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not valid JSON"),
        (b"[" * 60_000, "nested too deeply"),
        (b'{"offsets": {"0": 3}, "query": "\\ud800"}', "printable characters"),
        (b'{"offsets": {"0": 3}, "query": "\\u001b[2J"}', "printable characters"),
        (b"[1]", "must be a JSON object"),
        (b"{}", "'offsets' must be an object"),
        (b'{"offsets": {}}', "'offsets' must be an object"),
        (b'{"offsets": {"1": 3}}', "has no fragment '1'"),
        (b'{"offsets": {"0": -3}}', "must be a whole number"),
        (b'{"offsets": {"0": true}}', "must be a whole number"),
        (b'{"offsets": {"0": 3}, "batch": "x"}', "'batch' must be a whole number"),
        (b'{"offsets": {"0": 3}, "query": 5}', "'query' must be a text"),
        (b'{"offsets": {"0": 3}, "speed": 5}', "has no 'speed'"),
    ],
)
def test_progress_that_makes_no_sense_is_refused(
    client: RestClient, body: bytes, said: str
) -> None:
    reply = client.request("PUT", "/q/$feed/readers/r", body)
    assert reply.status == 400
    assert said in reply.detail
    assert readers(client) == []


def test_readers_are_bounded(client: RestClient) -> None:
    for number in range(64):
        assert told(client, f"r{number}", {"offsets": {"0": number}}).status == 204
    reply = told(client, "one-more", {"offsets": {"0": 1}})
    assert reply.status == 403
    assert "has 64 readers" in reply.detail
    assert told(client, "r0", {"offsets": {"0": 9}}).status == 204, "one that is known goes on"
    assert told(client, "x" * 129, {"offsets": {"0": 1}}).status == 400
    assert client.request("PUT", "/q/$feed/readers/r", b" " * 70_000).status == 413
    assert client.request("POST", "/q/$feed/readers/r", b"{}").status == 405
    assert feed.fragment_of(client, "q")["next"] == 0

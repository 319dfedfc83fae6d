"""R-PIPE-02: `postbus feed` as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.administration import administration_client
from tests.support.carriers import encrypted, make_local_ca
from tests.support.rest import RestClient
from tests.support.server import COMMAND, Server

pytestmark = pytest.mark.small_limits


@pytest.fixture
def running(make_server: Callable[..., Server]) -> Server:
    server = make_server().start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("orders/eu")
        admin.create_topic("news")
    with RestClient(server.connection_string) as client:
        for number in range(3):
            client.send("orders/eu", b"%d" % number)
        progress = b'{"offsets": {"0": 1}, "query": "archive"}'
        client.request("PUT", "/orders/eu/$feed/readers/lake", progress)
    return server


def postbus(server: Server, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    told = {"POSTBUS_CONNECTION_STRING": server.connection_string, **variables}
    return subprocess.run(
        [str(COMMAND), "feed", *arguments],
        env={**os.environ, "COLUMNS": "200", **told},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_status_shows_every_feed_and_its_readers(running: Server) -> None:
    done = postbus(running, "status")
    assert done.returncode == 0, done.stderr
    assert "orders/eu" in done.stdout and "news" in done.stdout
    [reader] = [line for line in done.stdout.splitlines() if line.startswith("lake")]
    assert reader.split()[:4] == ["lake", "orders/eu", "1", "2"]
    assert reader.endswith("archive")


def test_status_is_json_for_programs(running: Server) -> None:
    done = postbus(running, "status", "orders/eu", "--json")
    assert done.returncode == 0, done.stderr
    [page] = json.loads(done.stdout)
    assert page["entity"] == "orders/eu"
    assert page["fragments"][0]["next"] == 3
    assert page["readers"][0]["lag"] == 2


def test_tail_prints_what_there_is(running: Server) -> None:
    done = postbus(running, "tail", "orders/eu", "--from", "1", "--no-follow")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["offset"], each["bodyText"]) for each in lines] == [(1, "1"), (2, "2")]
    first = postbus(running, "tail", "orders/eu", "--from", "first", "--no-follow")
    assert len(first.stdout.splitlines()) == 3
    assert postbus(running, "tail", "news", "--no-follow").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tail", "absent"), "could not be found"),
        (("tail", "orders/eu", "--from", "9"), "does not exist yet; the next one is 3"),
        (("status", "absent"), "could not be found"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    running: Server, arguments: tuple[str, ...], said: str
) -> None:
    done = postbus(running, *arguments)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_a_connection_string_that_is_none_is_refused(running: Server) -> None:
    done = postbus(running, "status", POSTBUS_CONNECTION_STRING="Endpoint=nowhere")
    assert done.returncode == 1
    assert "the connection string has" in done.stderr
    wrong = postbus(running, "tail", "news", "--from", "soon")
    assert wrong.returncode == 2
    assert "none of first, next and a number" in wrong.stderr


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Tail:
    """`postbus feed tail`, read line by line."""

    def __init__(self, server: Server, *arguments: str) -> None:
        told = {"POSTBUS_CONNECTION_STRING": server.connection_string}
        self.process = subprocess.Popen(
            [str(COMMAND), "feed", "tail", *arguments],
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell has what it runs in the background ignore it, and so would these tests' child.
            preexec_fn=_heed_interrupts,  # noqa: PLW1509
        )

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@pytest.fixture
def follow(running: Server) -> Iterator[Callable[..., Tail]]:
    made: list[Tail] = []

    def make(*arguments: str) -> Tail:
        made.append(Tail(running, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.process.kill()
        each.process.communicate(timeout=60)


def test_tail_follows_also_over_a_kill_of_the_broker(
    running: Server, follow: Callable[..., Tail]
) -> None:
    tail = follow("orders/eu", "--from", "2")
    assert tail.next()["offset"] == 2
    with RestClient(running.connection_string) as client:
        client.send("orders/eu", b"live")
    assert tail.next()["bodyText"] == "live"
    running.kill()
    running.start()
    with RestClient(running.connection_string) as client:
        client.send("orders/eu", b"again")
    assert tail.next()["bodyText"] == "again"
    tail.process.send_signal(signal.SIGINT)
    _, said = tail.process.communicate(timeout=60)
    assert "Traceback" not in said
    assert tail.process.returncode == 130


def test_over_tls_too(make_server: Callable[..., Server], tmp_path: Path) -> None:
    authority = make_local_ca(tmp_path / "secure")
    server = make_server(data="secure").start()
    with administration_client(server.connection_string) as admin:
        admin.create_queue("q")
    told = {
        "POSTBUS_CONNECTION_STRING": encrypted(server.connection_string),
        "SSL_CERT_FILE": str(authority),
    }
    assert postbus(server, "status", "q", **told).returncode == 0
    untrusted = postbus(server, "status", "q", **{**told, "SSL_CERT_FILE": "/dev/null"})
    assert "does not answer" in untrusted.stderr

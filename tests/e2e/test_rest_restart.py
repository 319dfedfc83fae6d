"""What was answered over HTTP holds, whatever happens to the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.client import HTTPException

import pytest

from tests.support.administration import Administration
from tests.support.rest import Reply, RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking


def test_a_kill_takes_back_nothing_that_was_answered(server: Server) -> None:
    """R-SETTLE-01, R-SETTLE-05: stored, removed or completed first, answered then."""
    queue = Administration(server.connection_string).make_queue()
    sent: list[int] = []
    taken: list[int] = []

    def send() -> None:
        with RestClient(server.connection_string) as client:
            for number in range(100_000):
                if client.send(queue, b"%d" % number).status != 201:
                    return
                sent.append(number)

    def take() -> None:
        with RestClient(server.connection_string) as client:
            while True:
                if len(taken) % 2:
                    reply = client.take(queue)
                else:
                    reply = client.lock(queue)
                    assert client.request("DELETE", reply.location).status == 200
                taken.append(int(reply.body))

    def until_killed(work: Callable[[], None]) -> None:
        with pytest.raises((OSError, HTTPException)):
            work()

    threads = [threading.Thread(target=until_killed, args=(work,)) for work in (send, take)]
    for thread in threads:
        thread.start()
    until_blocking("both are at work", lambda: len(sent) > 200 and len(taken) > 50)
    server.kill()
    for thread in threads:
        thread.join(30)
    server.start()

    left: list[int] = []
    with RestClient(server.connection_string) as client:
        while (reply := client.take(queue, timeout_s=0)).status == 200:
            left.append(int(reply.body))
    assert left == sorted(set(left))
    assert not set(left) & set(taken), "received twice, although its removal was answered"
    # One send and one receive may have been done and not answered.
    assert set(sent) - set(left) - set(taken) <= {taken[-1] + 1}
    assert len(set(left) | set(taken)) >= len(sent) - 1


def test_a_restart_loses_the_locks(server: Server) -> None:
    """R-SETTLE-10."""
    queue = Administration(server.connection_string).make_queue()
    with RestClient(server.connection_string) as client:
        client.send(queue, b"x")
        locked = client.lock(queue)
    server.kill()
    server.start()
    with RestClient(server.connection_string) as client:
        assert client.request("DELETE", locked.location).status == 410
        again = client.lock(queue)
        assert (again.status, again.body) == (201, b"x")
        assert client.request("DELETE", again.location).status == 200


def test_a_stop_does_not_wait_for_those_who_wait(server: Server) -> None:
    queue = Administration(server.connection_string).make_queue()
    replies: list[Reply] = []

    def wait() -> None:
        with RestClient(server.connection_string) as client:
            replies.append(client.lock(queue, timeout_s=60))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5
    for thread in threads:
        thread.join(10)
    assert [reply.status for reply in replies] == [503] * 3
    assert "shutting down" in replies[0].detail


def test_a_wait_is_as_long_as_the_setting_allows(make_server: Callable[..., Server]) -> None:
    server = make_server("--http-receive-timeout-max-ms", "300").start()
    queue = Administration(server.connection_string).make_queue()
    with RestClient(server.connection_string) as client:
        began = time.monotonic()
        assert client.lock(queue, timeout_s=3_600).status == 204
        assert time.monotonic() - began < 5


def test_a_message_may_be_larger_than_other_bodies(make_server: Callable[..., Server]) -> None:
    server = make_server("--message-size-max-kb", "3072").start()
    queue = Administration(server.connection_string).make_queue()
    body = b"x" * (2 << 20)
    with RestClient(server.connection_string) as client:
        assert client.send(queue, body).status == 201
        assert client.take(queue).body == body

"""Requests sent ahead over HTTP do not cost a message."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.support.administration import Administration
from tests.support.rest import RestClient
from tests.support.server import Server
from tests.support.waiting import until_blocking


def test_a_message_is_not_taken_for_a_client_that_sent_ahead_and_left(
    make_server: Callable[..., Server],
) -> None:
    server = make_server().start()
    administration = Administration(server.connection_string)
    queue = administration.make_queue()
    with RestClient(server.connection_string) as rest:

        def request(method: str, path: str) -> bytes:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
            return f"{head}Authorization: {rest.token}\r\n\r\n".encode()

        poll = request("DELETE", f"/{queue}/messages/head?timeout=30")
        begun, there = _accepted(rest), _open(rest)
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                client.sendall(poll)
                client.sendall(request("GET", f"/{queue}"))
        until_blocking("they were there", lambda: _accepted(rest) == begun + 5)
        until_blocking("they are gone", lambda: _open(rest) == there)
        assert rest.request("POST", f"/{queue}/messages", b"kept").status == 201
        assert administration.counts(queue).active_message_count == 1


def _open(rest: RestClient) -> float:
    return _metric(rest, 'postbus_connections{protocol="http"} ')


def _accepted(rest: RestClient) -> float:
    return _metric(rest, 'postbus_connections_accepted_total{protocol="http"} ')


def _metric(rest: RestClient, name: str) -> float:
    lines = rest.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))

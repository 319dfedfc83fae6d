"""Which requests get a WebSocket, and what the others are told."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from postbus.net.upgrading import UpgradeRefused, answer_upgrade, asks_for_websocket

PATH = b"/$servicebus/websocket"
HEADERS = {
    b"host": b"localhost:5672",
    b"upgrade": b"websocket",
    b"connection": b"Upgrade",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
    b"sec-websocket-version": b"13",
    b"sec-websocket-protocol": b"AMQPWSB10",
}


def ask(
    path: bytes = PATH, method: str = "GET", version: str = "1.1", **changes: bytes | None
) -> bytes:
    wanted = HEADERS | {name.replace("_", "-").encode(): value for name, value in changes.items()}
    headers = [(name, value) for name, value in wanted.items() if value is not None]
    assert asks_for_websocket(path, headers)
    return answer_upgrade(method, path, version, headers)


def refused(*arguments: object, **changes: object) -> UpgradeRefused:
    with pytest.raises(UpgradeRefused) as caught:
        ask(*arguments, **changes)  # type: ignore[arg-type]
    return caught.value


def test_the_key_of_the_standards_example_gets_the_answer_of_the_example() -> None:
    """RFC 6455 1.3."""
    reply = ask().decode()
    assert reply.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in reply
    assert reply.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    "path",
    [
        PATH,
        PATH + b"/",
        PATH + b"?x=y",
        b"/%24servicebus/websocket",
        b"/$ServiceBus/WebSocket/",
    ],
)
def test_the_path_is_taken_as_the_sdks_write_it(path: bytes) -> None:
    assert ask(path).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        (b"AMQPWSB10", b"AMQPWSB10"),
        (b"amqp", b"amqp"),
        (b"chat, amqp", b"amqp"),
        (b"amqp, AMQPWSB10", b"AMQPWSB10"),
    ],
)
def test_the_subprotocol_is_one_that_was_offered(offered: bytes, taken: bytes) -> None:
    reply = ask(sec_websocket_protocol=offered)
    assert b"Sec-WebSocket-Protocol: " + taken + b"\r\n" in reply


@pytest.mark.parametrize("offered", [None, b"mqtt", b"AMQPWSB", b"AMQP"])
def test_without_a_subprotocol_of_ours_there_is_no_websocket(offered: bytes | None) -> None:
    error = refused(sec_websocket_protocol=offered)
    assert error.status is HTTPStatus.BAD_REQUEST
    assert "subprotocol" in str(error)


def test_compression_is_declined() -> None:
    reply = ask(sec_websocket_extensions=b"permessage-deflate; client_max_window_bits")
    assert b"extensions" not in reply.lower()


@pytest.mark.parametrize("path", [b"/", b"/queue", PATH + b"/more", b"/$servicebus", b"*"])
def test_a_websocket_anywhere_else_is_not_found(path: bytes) -> None:
    error = refused(path)
    assert error.status is HTTPStatus.NOT_FOUND
    assert "/$servicebus/websocket" in str(error)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"upgrade": None}, HTTPStatus.UPGRADE_REQUIRED),
        ({"connection": b"keep-alive"}, HTTPStatus.UPGRADE_REQUIRED),
        ({"upgrade": b"h2c"}, HTTPStatus.UPGRADE_REQUIRED),
        ({"method": "POST"}, HTTPStatus.METHOD_NOT_ALLOWED),
        ({"version": "1.0"}, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED),
        ({"sec_websocket_key": None}, HTTPStatus.BAD_REQUEST),
        ({"sec_websocket_key": b"short"}, HTTPStatus.BAD_REQUEST),
        ({"sec_websocket_key": b"\xff\xfe"}, HTTPStatus.BAD_REQUEST),
        ({"sec_websocket_version": b"8"}, HTTPStatus.BAD_REQUEST),
        ({"sec_websocket_protocol": b"\xff,,;"}, HTTPStatus.BAD_REQUEST),
        ({"content_length": b"5"}, HTTPStatus.BAD_REQUEST),
        ({"transfer_encoding": b"chunked"}, HTTPStatus.BAD_REQUEST),
    ],
)
def test_a_request_that_is_no_handshake_is_refused(
    changes: dict[str, object], status: HTTPStatus
) -> None:
    assert refused(**changes).status is status


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (b"localhost:5672", b"http://localhost:5672"),
        (b"LOCALHOST:5672", b"https://localhost:5672"),
        (b"bus.example", b"https://bus.example"),
    ],
)
def test_an_origin_that_is_this_server_is_let_in(host: bytes, origin: bytes) -> None:
    assert ask(host=host, origin=origin).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "origin",
    [
        b"http://evil.example",
        b"http://localhost:3000",
        b"http://localhost",
        b"null",
        b"",
        b"file://",
    ],
)
def test_a_web_page_from_elsewhere_does_not_get_to_the_broker(origin: bytes) -> None:
    assert refused(origin=origin).status is HTTPStatus.FORBIDDEN


def test_a_second_origin_does_not_hide_behind_the_first() -> None:
    headers = [*HEADERS.items(), (b"origin", b"http://localhost:5672"), (b"origin", b"http://e")]
    with pytest.raises(UpgradeRefused, match="origin"):
        answer_upgrade("GET", PATH, "1.1", headers)


def test_other_requests_are_none_of_its_business() -> None:
    assert not asks_for_websocket(b"/queue", [(b"host", b"localhost"), (b"upgrade", b"h2c")])
    assert asks_for_websocket(PATH, [(b"host", b"localhost")])
    assert asks_for_websocket(b"/queue", [(b"upgrade", b"WebSocket")])

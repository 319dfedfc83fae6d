"""TLS and WebSockets as their users meet them: the page's own words, a renewal, a crash."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.support.administration import Administration
from tests.support.bus import FLAVOURS, Bus, receive_one, text
from tests.support.carriers import carried_by, local_ca, make_local_ca
from tests.support.server import COMMAND, Server, ServerDied
from tests.support.waiting import until_blocking

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "transports.md"
NODE = Path(sys.executable).with_name("node")
CA = "postbus-data/tls/ca.pem"
TRUSTED = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")


def snippets() -> dict[str, tuple[str, str, dict[str, str]]]:
    """Every program on the page by what tells it apart: language, text, variables set before it."""
    found = {}
    variables: dict[str, str] = {}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        exports = dict(re.findall(r"^export (\w+)=(\S+)$", code, re.M))
        if language == "sh":
            variables = exports
        else:
            kind = "administration" if "administration" in code.lower() else "messages"
            flavour = "async " if "asyncio" in code else ""
            found[f"{flavour}{kind} in {language}"] = (language, code, variables)
            variables = {}
    return found


SNIPPETS = snippets()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started as the page says, with the certificate that the command of the page makes."""
    folder = tmp_path_factory.mktemp("page")
    data = folder / "postbus-data"
    made = subprocess.run(
        [COMMAND, "cert", "--data", data], capture_output=True, text=True, timeout=60, check=True
    )
    for variable in TRUSTED:
        assert f"export {variable}={data / 'tls' / 'ca.pem'}" in made.stdout
    server = Server(data).start()
    Administration(server.connection_string).client.create_queue("orders")
    yield server
    server.discard()


def test_the_page_has_a_program_for_each_client() -> None:
    assert set(SNIPPETS) == {
        "messages in python",
        "async messages in python",
        "administration in python",
        "async administration in python",
        "administration in js",  # which also sends and receives
    }


@pytest.mark.parametrize("name", list(SNIPPETS))
def test_a_program_of_the_page_runs_as_pasted(server: Server, tmp_path: Path, name: str) -> None:
    language, code, variables = SNIPPETS[name]
    assert "localhost:5672" in code, "the page is about the default port"
    environment = {key: value for key, value in os.environ.items() if key not in TRUSTED}
    for variable, value in variables.items():
        assert value == f"$PWD/{CA}"
        environment[variable] = str(server.data.parent / CA)
    script = tmp_path / ("snippet.py" if language == "python" else "snippet.mjs")
    script.write_text(code.replace("localhost:5672", f"localhost:{server.port}"))
    (tmp_path / "node_modules").symlink_to(ROOT / "tests" / "js" / "node_modules")
    done = subprocess.run(
        [sys.executable if language == "python" else str(NODE), str(script)],
        cwd=server.data.parent,
        env={**environment, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = {
        "messages in python": ["received: over TLS"],
        "async messages in python": ["received: over a WebSocket"],
        "administration in js": ["received: a book"] * 2,
    }
    assert done.stdout.splitlines() == expected.get(name, ["there is: invoices"])


def tls_works(server: Server) -> bool:
    try:
        context = ssl.create_default_context(cafile=local_ca(server))
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=10) as tcp,
            context.wrap_socket(tcp, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"AMQP\x03\x01\x00\x00")
            return tls.recv(8) == b"AMQP\x03\x01\x00\x00"
    except OSError:
        return False


def serial(server: Server) -> str:
    context = ssl.create_default_context(cafile=local_ca(server))
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as tcp,
        context.wrap_socket(tcp, server_hostname="localhost") as tls,
    ):
        certificate = tls.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_a_certificate_made_or_renewed_under_a_running_server_is_used_without_a_restart(
    make_server: Callable[..., Server],
) -> None:
    server = make_server().start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as tcp:
        tcp.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01")
        assert tcp.recv(100) == b""
    assert "postbus cert" in server.log.read_text(), "the log says what to do"

    subprocess.run([COMMAND, "cert", "--data", server.data], check=True, capture_output=True)
    until_blocking("TLS is served", lambda: tls_works(server))
    before = serial(server)
    subprocess.run(
        [COMMAND, "cert", "--renew", "--data", server.data], check=True, capture_output=True
    )
    until_blocking("the new certificate is served", lambda: serial(server) != before)
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=10) as answer:
        assert b"\npostbus_certificate_expiry_seconds " in answer.read()
    assert server.stop() == 0


def test_a_certificate_that_cannot_be_used_stops_the_start_and_is_named(
    make_server: Callable[..., Server], tmp_path: Path
) -> None:
    missing = tmp_path / "missing.pem"
    with pytest.raises(ServerDied, match=r"missing\.pem: No such file"):
        make_server("--tls-certificate", str(missing), "--tls-key", str(missing)).start()
    ca = make_local_ca(tmp_path / "spoilt")
    ca.with_name("server.key").write_text("nonsense")
    with pytest.raises(ServerDied, match=r"server\.key holds no private key"):
        make_server(data="spoilt").start()


@pytest.mark.parametrize("carrier", ["tls", "websocket"])
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_clients_come_back_after_a_crash(
    make_server: Callable[..., Server], flavour: str, carrier: str
) -> None:
    server = make_server()
    make_local_ca(server.data)
    server.start()
    queue = Administration(server.connection_string).make_queue()
    options = carried_by(carrier, server)
    bus = Bus(flavour, options.pop("connection_string"), retry_total=10, **options)
    try:
        sender = await bus.open_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        server.kill()
        server.start()
        await sender.send_messages(ServiceBusMessage("after"))
        receiver = await bus.open_receiver(queue)
        for expected in ("before", "after"):
            message = await receive_one(receiver)
            assert text(message) == expected
            await receiver.complete_message(message)
    finally:
        await bus.close()


async def test_a_stop_is_told_to_clients_over_a_websocket_and_takes_no_longer(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    make_local_ca(server.data)
    server.start()
    queue = Administration(server.connection_string).make_queue()
    options = carried_by("websocket_tls", server)
    bus = Bus("async", options.pop("connection_string"), **options)
    receiver = await bus.open_receiver(queue)
    assert await receiver.peek_messages() == []
    assert server.stop() == 0
    await bus.close()

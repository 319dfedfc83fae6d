"""One port, whatever connects to it: on real sockets, with uvloop as in production and asyncio."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from postbus.net.listener import allow_open_files
from postbus.net.sniffing import Wire, sniff
from postbus.settings import Settings
from tests.unit.net.serving import AMQP_OPENING, GET, serving, until

# Telling protocols apart


@pytest.mark.parametrize("split", range(1, 8))
def test_amqp_is_recognised_however_its_header_is_cut(run: Any, split: int) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            await client.send(AMQP_OPENING[:split])
            await asyncio.sleep(0.01)
            await client.send(AMQP_OPENING[split:])
            heard = b""
            while len(heard.replace(b"echo:", b"")) < len(AMQP_OPENING):
                heard += await client.reader.read(100)
            assert heard.replace(b"echo:", b"") == AMQP_OPENING
            assert bus.meter.open == {"amqp": 1, "http": 0, "undecided": 0}
            await client.close()
            await until(lambda: bus.meter.open_count == 0)
            assert bus.meter.accepted == {"amqp": 1, "http": 0}

    run(story())


def test_http_is_answered_on_the_same_port_also_byte_by_byte(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            for byte in GET:
                await client.send(bytes([byte]))
            assert (await client.reply()).endswith(b"\r\n\r\nGET 0")
            await client.send(
                b"PUT /q HTTP/1.1\r\nHost: [::1]:5672\r\nContent-Length: 3\r\n\r\nabc"
            )
            assert (await client.reply()).endswith(b"\r\n\r\nPUT 3")
            assert bus.meter.http_requests == 2
            await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_tls_hello_is_closed(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            assert await bus.ask(b"\x16\x03\x01\x02\x00\x01\x00\x01") == b""
            assert bus.meter.refused == {"tls": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_an_unknown_protocol_is_told_what_is_spoken_here(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            assert await bus.ask(b"SSH-2.0-OpenSSH_9.2\r\n") == b"AMQP\x03\x01\x00\x00"
            assert bus.meter.refused == {"unknown_protocol": 1}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_every_opening_is_decided_by_its_first_four_bytes_at_the_latest() -> None:
    assert sniff(b"") is None
    assert sniff(b"AMQ") is None
    assert sniff(b"AMQP") is Wire.AMQP
    assert sniff(b"P") is None
    assert sniff(b"PU") is None
    assert sniff(b"PUT ") is Wire.HTTP
    assert sniff(b"PUSH") is Wire.UNKNOWN
    assert sniff(b"\x16") is Wire.TLS
    assert sniff(b"\x00") is Wire.UNKNOWN
    assert sniff(b"get ") is Wire.UNKNOWN


# Connections that do nothing, and too many of them


def test_a_connection_that_sends_nothing_is_dropped(run: Any) -> None:
    async def story() -> None:
        async with serving(first_bytes_timeout_ms=50) as bus:
            assert await bus.ask() == b""
            assert await bus.ask(b"AMQ") == b""
            assert bus.meter.refused == {"silent": 2}
            await until(lambda: bus.meter.open_count == 0)

    run(story())


# Starting and stopping


def test_stopping_answers_requests_in_hand_and_drops_the_undecided(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            silent, idle, busy = [await bus.connect() for _ in range(3)]
            await idle.send(GET)
            await idle.reply()
            await busy.send(GET.replace(b"/greeting", b"/slow"))
            await until(lambda: bus.meter.accepted["http"] == 2)
            await asyncio.sleep(0.02)
            bus.listener.stop()
            await bus.listener.drain(5)
            assert (await busy.rest()).endswith(b"GET 0")
            assert await idle.rest() == b""
            assert await silent.rest() == b""
            with pytest.raises(ConnectionRefusedError):
                await bus.connect()
            for client in (silent, idle, busy):
                await client.close()
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_request_longer_than_the_grace_time_is_cut_off(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            busy = await bus.connect()
            await busy.send(GET.replace(b"/greeting", b"/slow"))
            await until(lambda: bool(bus.http.state.tasks))
            bus.listener.stop()
            await bus.listener.drain(0.01)
            assert await busy.rest() == b""
            await busy.close()

    run(story())


def test_the_admin_port_serves_the_same_and_is_left_out_only_when_nobody_asked_for_it(
    run: Any,
) -> None:
    async def story() -> None:
        async with serving() as bus, serving() as other:
            off = Settings(port=0, admin_port=0)
            assert (await bus.listener.listen_as_set(off)).admin_port is None

            asked = Settings(port=0, admin_port=other.port)
            with pytest.raises(OSError, match="in use"):
                await bus.listener.listen_as_set(asked)

            unasked = Settings.model_construct(
                _fields_set=set(), host="127.0.0.1", port=0, admin_port=other.port
            )
            assert (await bus.listener.listen_as_set(unasked)).admin_port is None

    run(story())


def test_localhost_is_one_port_on_every_address_it_has(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            port = await bus.listener.listen("localhost", 0)
            for family, *_, address in socket.getaddrinfo("localhost", port, type=1):
                with socket.socket(family, socket.SOCK_STREAM) as client:
                    client.connect(address)

    run(story())


def test_what_is_refused_is_logged_once_a_second_with_its_reason(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            for _ in range(5):
                await bus.ask(b"\x16\x03\x01")
            await bus.ask(b"\x00\x01\x02\x03")
            await bus.ask(b"GET / HTTP/1.1\r\n\r\n")

    with capture_logs() as lines:
        run(story())
    refused = [line for line in lines if line["event"].endswith("refused")]
    assert [line["reason"] for line in refused] == ["tls", "unknown_protocol", "http_malformed"]
    assert "UseDevelopmentEmulator=true" in refused[0]["hint"]
    assert refused[1]["first"] == "00 01 02 03"
    assert refused[2]["tracking"] == "id_G0"


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to", "fits", "logged"),
    [
        (100_000, 200_000, None, 5_000, []),
        (1_024, 200_000, 5_256, 5_000, ["info"]),
        (1_024, 4_096, 4_096, 3_840, ["info", "warning"]),
        (100, 200, 200, 100, ["info", "warning"]),
        (600, 600, None, 344, ["warning"]),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes_and_connections_stay_below_it(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    raised_to: int | None,
    fits: int,
    logged: list[str],
) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits))
    with capture_logs() as lines:
        assert allow_open_files(5_000) == fits
    assert calls == ([] if raised_to is None else [(raised_to, hard)])
    assert [line["log_level"] for line in lines] == logged

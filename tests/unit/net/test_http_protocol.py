"""HTTP that misbehaves is refused in words, cut off, and costs no memory."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from postbus.net import http_protocol
from tests.unit.net.serving import GET, LIMITS, serving, until


def test_malformed_http_gets_400_in_xml_with_a_tracking_id(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            reply = await bus.ask(b"GET / HTTP/1.1\r\nno colon here\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 400 ")
            assert b"<Error><Code>400</Code><Detail>" in reply
            assert b"TrackingId:id_G0, SystemTracker:ns, Timestamp:1970-01-01T00:00:00" in reply
            assert bus.meter.refused == {"http_malformed": 1}

    run(story())


def test_endless_headers_are_cut_off(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            lines = b"".join(b"x-%d: %s\r\n" % (i, b"y" * 50) for i in range(1_000))
            reply = await bus.ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + lines)
            assert reply.startswith(b"HTTP/1.1 431 ")

    run(story())


def test_one_endless_header_and_an_endless_target_are_cut_off(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            reply = await bus.ask(b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000)
            assert reply.startswith(b"HTTP/1.1 431 ")
            reply = await bus.ask(b"GET /" + b"y" * 100_000)
            assert reply.startswith(b"HTTP/1.1 431 ")
            assert bus.meter.refused == {"http_headers": 2}

    run(story())


def test_headers_up_to_the_bound_are_served(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            for _ in range(3):
                await client.send(GET[:-2] + b"x: " + b"y" * 16_000 + b"\r\n\r\n")
                assert (await client.reply()).startswith(b"HTTP/1.1 200 ")
            await client.close()

    run(story())


@pytest.mark.parametrize("trailer", [b"x-%d: y\r\n", b"y"])
def test_endless_trailers_and_chunk_sizes_are_cut_off(run: Any, trailer: bytes) -> None:
    async def story() -> None:
        async with serving() as bus:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            reply = await bus.ask(head + b"3\r\nabc\r\n0\r\nx: " + trailer * 20_000)
            assert reply.startswith(b"HTTP/1.1 431 ")
            reply = await bus.ask(head + b"3;" + b"y" * 100_000)
            assert reply.startswith(b"HTTP/1.1 431 ")

    run(story())


def test_a_body_past_the_bound_is_refused_by_its_length_or_when_it_gets_there(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
            reply = await bus.ask(head + b"Content-Length: 100001\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 413 ")
            chunk = b"10000\r\n" + b"z" * 65_536 + b"\r\n"
            reply = await bus.ask(head + b"Transfer-Encoding: chunked\r\n\r\n", chunk, chunk, chunk)
            assert reply.startswith(b"HTTP/1.1 413 ")
            assert bus.meter.refused == {"http_body": 2}

    run(story())


def test_a_body_of_just_the_bound_is_served(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
            await client.send(head + b"Content-Length: 100000\r\n\r\n" + b"z" * 100_000)
            assert (await client.reply()).endswith(b"POST 100000")
            chunks = b"186a\r\n" + b"z" * 6_250 + b"\r\n"
            await client.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 16)
            await client.send(b"0\r\n\r\n")
            assert (await client.reply()).endswith(b"POST 100000")
            await client.close()

    run(story())


@pytest.mark.parametrize(
    "unfinished",
    [
        b"GET / HTTP/1.1\r\nHost: loc",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc",
    ],
)
def test_a_request_that_never_ends_is_cut_off(run: Any, unfinished: bytes) -> None:
    async def story() -> None:
        async with serving(LIMITS._replace(request_timeout_ms=80)) as bus:
            assert (await bus.ask(unfinished)).startswith(b"HTTP/1.1 408 ")
            assert bus.meter.refused == {"http_timeout": 1}

    run(story())


def test_a_large_body_on_a_slow_line_takes_as_long_as_it_takes(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "PROGRESS_BYTES", 1_000)

    async def story() -> None:
        async with serving(LIMITS._replace(request_timeout_ms=400)) as bus:
            client = await bus.connect()
            await client.send(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
            )
            for _ in range(20):
                await asyncio.sleep(0.05)
                await client.send(b"x" * 1_000)
            assert (await client.reply()).endswith(b"POST 20000")
            # The next one that stops is cut off as any other.
            await client.send(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
                + b"x" * 1_500
            )
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
            await client.close()

    run(story())


def test_bare_line_ends_between_requests_do_not_hold_a_connection_open(run: Any) -> None:
    async def story() -> None:
        async with serving(LIMITS._replace(request_timeout_ms=80)) as bus:
            client = await bus.connect()
            await client.send(GET)
            await client.reply()
            await client.send(b"\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
            await client.close()

    run(story())


def test_a_body_still_arriving_after_an_early_reply_is_cut_off(run: Any) -> None:
    async def story() -> None:
        async with serving(LIMITS._replace(request_timeout_ms=80)) as bus:
            head = b"POST /early HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"
            reply = await bus.ask(head)
            assert reply.startswith(b"HTTP/1.1 401 ")
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_an_idle_connection_is_closed_after_keep_alive(run: Any) -> None:
    async def story() -> None:
        async with serving(LIMITS._replace(keep_alive_timeout_ms=50)) as bus:
            reply = await bus.ask(GET)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert reply.endswith(b"GET 0")
            await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_a_client_that_never_reads_its_reply_is_cut_off(run: Any) -> None:
    async def story() -> None:
        async with serving(LIMITS._replace(request_timeout_ms=80)) as bus:
            with socket.create_connection(("127.0.0.1", bus.port)) as deaf:
                deaf.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await until(lambda: bus.meter.open["http"] == 1)
                await until(lambda: bus.meter.open_count == 0)

    run(story())


def test_requests_sent_ahead_are_answered_in_order_up_to_a_bound(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            await client.send(GET * 5)
            for _ in range(5):
                assert (await client.reply()).endswith(b"GET 0")
            await client.close()
            slow = GET.replace(b"/greeting", b"/slow")
            assert b"200" not in await bus.ask(slow * 2_000)
            assert bus.meter.refused == {"http_pipeline": 1}

    run(story())


@pytest.mark.parametrize("ahead", [b"", GET, GET * 3, GET + GET[:20], b"no HTTP\r\n\r\n"])
def test_a_request_that_waits_hears_of_a_client_that_leaves_whatever_it_sent_ahead(
    run: Any, ahead: bytes
) -> None:
    """Or what it waits for would be given to nobody."""
    begun: list[str] = []
    left: list[str] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        while (await receive())["type"] != "http.disconnect":
            pass
        left.append(scope["path"])

    async def story() -> None:
        async with serving(app=wait) as bus:
            client = await bus.connect()
            await client.send(GET)
            await until(lambda: begun == ["/greeting"])
            await client.send(ahead)
            await client.close()
            await until(lambda: left == ["/greeting"])
            await until(lambda: bus.meter.open_count == 0)
            assert begun == ["/greeting"]

    run(story())


def test_an_upgrade_to_http_2_is_not_taken_up_and_what_follows_is_dropped(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            reply = await bus.ask(upgrade + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in reply

    run(story())


# Host


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"localhost", 200),
        (b"localhost:5672", 200),
        (b"LocalHost.:80", 200),
        (b"127.0.0.1:9", 200),
        (b"[::1]:5300", 200),
        (b"evil.example", 421),
        (b"localhost.evil.example", 421),
        (b"127.0.0.1.evil.example:5672", 421),
        (b"10.0.0.1", 421),
        (b"", 421),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_answered(
    run: Any, host: bytes, status: int
) -> None:
    async def story() -> None:
        async with serving() as bus:
            client = await bus.connect()
            await client.send(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert (await client.reply()).startswith(b"HTTP/1.1 %d " % status)
            await client.close()

    run(story())


@pytest.mark.parametrize(("host", "status"), [(b"Bus.Example:443", 200), (b"a.bus.example", 421)])
def test_on_loopback_the_certificate_may_name_this_machine_too(
    run: Any, host: bytes, status: int
) -> None:
    """Who made it says by it what the machine is called; no web page can add a name."""

    async def story() -> None:
        async with serving(known_as=lambda: ("localhost", "bus.example")) as bus:
            client = await bus.connect()
            await client.send(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert (await client.reply()).startswith(b"HTTP/1.1 %d " % status)
            await client.close()

    run(story())


def test_a_request_has_exactly_one_host(run: Any) -> None:
    async def story() -> None:
        async with serving() as bus:
            assert (await bus.ask(b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
            two = GET[:-2] + b"Host: evil.example\r\n\r\n"
            assert (await bus.ask(two)).startswith(b"HTTP/1.1 400 ")

    run(story())


def test_off_loopback_any_host_is_answered(run: Any) -> None:
    async def story() -> None:
        async with serving(check_host=False) as bus:
            client = await bus.connect()
            await client.send(GET.replace(b"localhost", b"bus.example"))
            assert (await client.reply()).startswith(b"HTTP/1.1 200 ")
            await client.close()

    run(story())

"""Whatever a peer makes the broker keep: over all connections it is bounded, and others go on.

A table of attackers against one fixture. Each tries to have the broker hold many times its budget,
on connections that are each within their own bounds.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusMessage
from websockets.frames import CloseCode, Frame, Opcode

from postbus.amqp.events import Closed, Disposed, LinkDetached
from postbus.amqp.frames.framing import AMQP_HEADER, encode_frame
from postbus.amqp.frames.performatives import ROLE_SENDER, SND_SETTLED, Attach, Open, Transfer
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.amqp.sending import SenderLink
from tests.e2e.test_hostile_peers import fill, resident_mb
from tests.support.administration import Administration
from tests.support.bus import Bus, texts
from tests.support.carriers import make_local_ca
from tests.support.raw_client import RawClient
from tests.support.raw_socket import RawWebSocket, connect
from tests.support.server import Server
from tests.support.waiting import until_blocking

BUDGET_MB = 4
GROWTH_MAX_MB = 60
"""The budget, what Python and the memory allocator add to it, and what the good client costs."""
CLOSINGS = 'postbus_held_closings_total{budget="%s"}'
HELD = 'postbus_held_bytes{budget="%s"}'


class Attack:
    """Connections that stay open as long as it does."""

    def __init__(self, server: Server, queue: str) -> None:
        self.server = server
        self.queue = queue
        self.open = ExitStack()

    def socket(self) -> socket.socket:
        return self.keep(connect(self.server, "tcp"))

    def keep(self, each: Any) -> Any:
        self.open.callback(each.close)
        return each

    def client(self, user: str = "RootManageSharedAccessKey", **options: Any) -> RawClient:
        client = RawClient(self.server, user=user, **options)
        self.open.callback(client.__exit__, None, None, None)
        while client.core.peer is None:
            client.read()
        return client


def send(where: Any, data: bytes) -> None:
    """It may have been closed for what came before, and then its part is done."""
    with suppress(OSError):
        where.sendall(data)


def large_websocket_frames(attack: Attack) -> None:
    """Frames that lack their last byte, and have more than is taken before login."""
    unfinished_frames(attack, 1_000_000, 250)


def websocket_frames(attack: Attack) -> None:
    unfinished_frames(attack, 60_000, 1_000)


def unfinished_frames(attack: Attack, size: int, count: int) -> None:
    frame = Frame(Opcode.BINARY, bytes(size)).serialize(mask=True)[:-1]
    for _ in range(count):
        below = attack.socket()
        send(RawWebSocket(below, attack.server.port).below, frame)


def amqp_frames(attack: Attack) -> None:
    opening = AMQP_HEADER + encode_frame(0, Open("stranger"))
    for _ in range(1_000):
        send(attack.socket(), opening + struct.pack(">IBBH", 65_000, 2, 0, 0) + bytes(64_900))


def http_heads(attack: Attack) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(
        b"x-%d: %b\r\n" % (n, b"y" * 1_000) for n in range(55)
    )
    for _ in range(1_000):
        send(attack.socket(), head)


def http_bodies(attack: Attack) -> None:
    """Of a peer that is known, in the middle of sending large messages."""
    from tests.support.access import sas

    token = sas("RootManageSharedAccessKey", "SAS_KEY_VALUE")
    path = f"/{attack.queue}/$DeadLetterQueue/$resubmit"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
        "Content-Length: 1000000\r\n\r\n"
    ).encode()
    for _ in range(60):
        send(attack.socket(), head + bytes(900_000))


def sessions(attack: Attack) -> None:
    for _ in range(60):
        client = attack.client("")
        for _ in range(250):
            client.core.begin()
        send(client.socket, client.core.data_to_send())


def attaches(attack: Attack) -> None:
    """Links to `$cbs` with all the properties that fit."""
    many = {n.to_bytes(2, "big"): True for n in range(8_000)}
    for _ in range(40):
        client = attack.client("")
        for n in range(10):
            attach = Attach(
                f"{n}", 0, ROLE_SENDER, source=Source("s"), target=Target("$cbs"), properties=many
            )
            client.session.attach(SenderLink, attach)
        send(client.socket, client.core.data_to_send())


def handshakes(attack: Attack) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\x00"
    for _ in range(500):
        send(attack.socket(), hello)


def deliveries(attack: Attack) -> None:
    """Messages without their last frames, on as many links as it takes."""
    for _ in range(10):
        client = attack.client()
        for n in range(30):
            attach = Attach(
                f"s{n}", 0, ROLE_SENDER, source=Source("s"), target=Target(attack.queue)
            )
            client.session.attach(SenderLink, attach)
        send(client.socket, client.core.data_to_send())
        frames = []
        for n in range(30):
            for part in range(4):
                transfer = Transfer(n, n, b"%d" % n, 0, more=True) if part == 0 else None
                transfer = transfer or Transfer(n, more=True)
                frames.append(encode_frame(0, transfer, bytes(60_000)))
        send(client.socket, b"".join(frames))


def ask_without_credit(attack: Attack, node: str, question: bytes, count: int, user: str) -> None:
    for _ in range(30):
        client = attack.client(user)
        with suppress(OSError, AssertionError):
            client.receiver(node)
            link = client.sender(node)
            for n in range(count):
                while not link.sendable:
                    client.read()
                link.send(n.to_bytes(4, "big"), question)
                client.write()


def token_answers(attack: Attack) -> None:
    """Every answer repeats 24 KB of its question."""
    question = (
        encode_properties(Properties(message_id="x" * 24_000, reply_to="$cbs"))
        + encode_application_properties({"operation": "put-token", "name": "sb://localhost"})
        + encode_amqp_value("none")
    )
    ask_without_credit(attack, "$cbs", question, 60, "")


def peek_answers(attack: Attack) -> None:
    node = f"{attack.queue}/$management"
    question = (
        encode_properties(Properties(message_id="p", reply_to=node))
        + encode_application_properties({"operation": "com.microsoft:peek-message"})
        + encode_amqp_value({"from-sequence-number": 0, "message-count": 25})
    )
    ask_without_credit(attack, node, question, 14, "RootManageSharedAccessKey")


def deaf_receivers(attack: Attack, carrier: str = "tcp") -> None:
    # Few, so that each is owed more than the kernel takes off the broker's hands.
    for _ in range(12):
        client = attack.client(carrier=carrier)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        link = client.receiver(attack.queue, SND_SETTLED)
        link.grant(5_000)
        client.write()


def deaf_receivers_in_tls(attack: Attack) -> None:
    deaf_receivers(attack, "tls")


class Case(NamedTuple):
    attack: Callable[[Attack], None]
    budget: str
    """That is passed; none where a bound of the connection comes first."""
    messages_count: int = 0
    """That wait in its queue."""


CASES = [
    Case(large_websocket_frames, ""),
    Case(websocket_frames, "strangers"),
    Case(amqp_frames, "strangers"),
    Case(http_heads, "strangers"),
    Case(sessions, "strangers"),
    Case(attaches, "strangers"),
    Case(handshakes, "strangers"),
    Case(token_answers, "strangers"),
    Case(http_bodies, "unfinished"),
    Case(deliveries, "unfinished"),
    Case(peek_answers, "replies", 100),
    Case(deaf_receivers, "replies", 5_000),
    Case(deaf_receivers_in_tls, "replies", 5_000),
]


def metric(server: Server, name: str) -> float:
    metrics = urlopen(f"{server.http}/metrics").read().decode()
    return float(metrics.partition(name)[2].partition("\n")[0] or 0)


def closings(server: Server, budget: str) -> float:
    return metric(server, CLOSINGS % budget)


def held(server: Server, budget: str) -> float:
    return metric(server, HELD % budget)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.attack.__name__)
async def test_what_peers_make_the_broker_hold_is_bounded_over_all_of_them(
    make_server: Callable[..., Server], open_bus: Callable[..., Bus], case: Case
) -> None:
    bound = str(BUDGET_MB << 20)
    flags = ("--strangers-max-bytes", "--unfinished-max-bytes", "--replies-max-bytes")
    server = make_server(*(part for flag in flags for part in (flag, bound)))
    make_local_ca(server.data)
    server.start()
    administration = Administration(server.connection_string)
    queue, other = administration.make_queue(), administration.make_queue()
    bus = open_bus(server)
    await bus.send(other, ServiceBusMessage("before"))
    fill(server, queue, case.messages_count)
    before_mb = resident_mb(server)
    attack = Attack(server, queue)
    with attack.open:
        case.attack(attack)
        time.sleep(0.3)
        for _ in range(100):
            if not case.budget or closings(server, case.budget):
                break
            time.sleep(0.1)  # the broker has yet to come to what was asked of it
        grown_mb = resident_mb(server) - before_mb
        await bus.send(other, ServiceBusMessage("beside it"))
        assert texts(await bus.peek(other, 10)) == ["before", "beside it"]
    print(f"{case.attack.__name__}: {grown_mb:.0f} MB")
    assert grown_mb < GROWTH_MAX_MB
    logged = server.log.read_text()
    if not case.budget:
        assert "before login a frame may have 65536 bytes" in logged
        return
    assert closings(server, case.budget) > 0
    assert f"reason=memory_{case.budget}" in logged


def test_the_one_that_holds_the_most_is_told_why_it_is_closed(
    make_server: Callable[..., Server],
) -> None:
    """R-SETTLE-02: with a condition that clients retry, and an id that the log has."""
    server = make_server("--unfinished-max-bytes", str(1 << 20)).start()
    queue = Administration(server.connection_string).make_queue()
    with RawClient(server) as modest, RawClient(server) as greedy:
        link = modest.sender(queue)
        links = 4
        for n in range(links):
            attach = Attach(f"s{n}", 0, ROLE_SENDER, source=Source("s"), target=Target(queue))
            greedy.session.attach(SenderLink, attach)
        while greedy.core.peer is None:
            greedy.read()
        greedy.write()
        for n in range(links):
            for more in range(4):
                first = Transfer(n, n, b"%d" % n, 0, more=True)
                transfer = first if more == 0 else Transfer(n, more=True)
                greedy.socket.sendall(encode_frame(0, transfer, bytes(60_000)))
        # The greedy client is within its own bound. It is the modest one that exceeds the budget.
        until_blocking("all of it is held", lambda: held(server, "unfinished") >= links * 240_000)
        for more in range(2):
            transfer = Transfer(0, 0, b"t", 0, more=True) if more == 0 else Transfer(0, more=True)
            modest.socket.sendall(encode_frame(0, transfer, bytes(60_000)))
        closed = greedy.until(Closed)
        assert closed.error is not None
        assert closed.error.condition == "com.microsoft:server-busy"
        assert "all connections together may hold 1048576" in (closed.error.description or "")
        assert "TrackingId:" in (closed.error.description or "")
        # The other one goes on as if nothing were.
        modest.socket.sendall(encode_frame(0, Transfer(0, aborted=True)))
        link.send(b"2", encode_data(b"x"))
        modest.write()
        assert modest.until(Disposed)


def test_a_message_that_never_ends_costs_its_link(make_server: Callable[..., Server]) -> None:
    server = make_server("--unfinished-delivery-timeout-ms", "300").start()
    queue = Administration(server.connection_string).make_queue()
    with RawClient(server) as client:
        client.sender(queue)
        client.socket.sendall(encode_frame(0, Transfer(0, 0, b"t", 0, more=True), b"x"))
        detached = client.until(LinkDetached)
        assert detached.error is not None
        assert detached.error.condition == "com.microsoft:timeout"
        assert "not whole 300 ms after its first frame" in (detached.error.description or "")


def test_a_large_message_and_small_ones_share_a_connection(
    make_server: Callable[..., Server],
) -> None:
    """SDKs send by all their senders on one connection, at the same time."""
    server = make_server().start()
    administration = Administration(server.connection_string)
    large = administration.make_queue(max_message_size_in_kilobytes=102_400)
    small = administration.make_queue()
    with RawClient(server) as client:
        client.sender(large)
        client.sender(small)
        piece, last = bytes(60_000), 1_166  # 70 MB
        section = b"\x00\x53\x75\xb0" + struct.pack(">I", last * len(piece))
        client.socket.sendall(encode_frame(0, Transfer(0, 0, b"l", 0, more=True), section))
        for n in range(last):
            client.socket.sendall(encode_frame(0, Transfer(0, more=n + 1 < last), piece))
            if n == last - 2:
                first = encode_frame(0, Transfer(1, 1, b"s", 0, more=True), encode_data(b"x"))
                client.socket.sendall(first + encode_frame(0, Transfer(1)))
        until_blocking(
            "both are there",
            lambda: (
                administration.counts(small).total_message_count
                == administration.counts(large).total_message_count
                == 1
            ),
            5,
        )


def test_a_websocket_is_closed_with_the_word_to_try_again_later(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--strangers-max-bytes", str(1 << 20)).start()
    frame = Frame(Opcode.BINARY, bytes(60_000)).serialize(mask=True)[:-1]
    with ExitStack() as stack:
        sockets = []
        for _ in range(25):
            sockets.append(connect(server, "websocket"))
            stack.callback(sockets[-1].close)
            send(sockets[-1].below, frame)
        first = sockets[0]
        assert first.recv(65_536) == b""
        assert first.protocol.close_rcvd.code == CloseCode.TRY_AGAIN_LATER


def test_a_frame_before_login_has_64_kb_whatever_was_agreed(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--frame-size-max-bytes", "1048576").start()
    administration = Administration(server.connection_string)
    queue = administration.make_queue()
    head = struct.pack(">IBBH", 70_000, 2, 0, 0)
    with RawClient(server, user="") as stranger:
        while stranger.core.peer is None:
            stranger.read()
        assert stranger.core.peer.max_frame_size == 1_048_576
        stranger.socket.sendall(head)
        closed = stranger.until(Closed)
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:framing-error"
        assert "65536 allowed before login" in (closed.error.description or "")
    with RawClient(server) as known:
        known.sender(queue)
        payload = encode_properties(Properties(message_id="m")) + encode_data(bytes(70_000))
        known.socket.sendall(encode_frame(0, Transfer(0, 0, b"t", 0), payload))

        def is_there() -> bool:
            return administration.counts(queue).active_message_count == 1

        until_blocking("the message is in the queue", is_there)

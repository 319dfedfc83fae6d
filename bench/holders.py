"""Peers that make the broker hold what they begin and do not finish, or ask and do not take.

Each connection is within its own bounds; there are many of them, and one that is closed comes back.
"""

from __future__ import annotations

import base64
import socket
from contextlib import suppress
from typing import ClassVar

from websockets.frames import Frame, Opcode

from bench.caller import Caller
from bench.peers import Peer
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import Transfer
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_properties,
)

_UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: amqp\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n\r\n"
)


class UnfinishedFrames(Peer):
    """Strangers with WebSocket frames that lack their last byte."""

    title: ClassVar[str] = "never ends its WebSocket frames"

    def start(self) -> None:
        self._frame = Frame(Opcode.BINARY, bytes(60_000)).serialize(mask=True)[:-1]
        self._open: list[socket.socket] = []
        self._made = 0

    def turn(self) -> None:
        # 250 connections and 15 MB a second, the last 2,000 of them open.
        for _ in range(self.scaled(5)):
            with suppress(OSError):
                sock = self.place.connect()
                self._open.append(sock)
                sock.sendall(_UPGRADE)
                sock.recv(4_096)
                sock.sendall(self._frame)
            self._made += 1
        for sock in self._open[: -self.scaled(2_000)]:
            sock.close()
        del self._open[: -self.scaled(2_000)]

    def tell(self) -> str:
        return f"{self._made} strangers with 60 KB each"


class UnfinishedDeliveries(Peer):
    """Messages whose last frame never comes, on many links."""

    title: ClassVar[str] = "never ends its messages"

    def start(self) -> None:
        self._callers: list[Caller] = []
        self._made = 0

    def turn(self) -> None:
        # Two turns in three go on writing: 50 links with 240 KB each take a while.
        for caller in self._callers:
            if caller.unwritten:
                caller.write()
                caller.read()
        if len(self._callers) < self.scaled(40) and not any(c.unwritten for c in self._callers):
            self._callers.append(self._call())
        self._callers = [caller for caller in self._callers if not caller.closed]

    def _call(self) -> Caller:
        caller = Caller(self.place)
        self._made += 1
        for number in range(50):
            caller.ready_sender(f"endless-{number}", self.own)
        frames = []
        for number in range(50):
            first = Transfer(number, number, b"%d" % number, 0, more=True)
            for transfer in (first, *[Transfer(number, more=True)] * 3):
                frames.append(encode_frame(caller.session.channel, transfer, bytes(60_000)))
        caller.write(b"".join(frames))
        return caller

    def tell(self) -> str:
        return f"{self._made} connections with 12 MB each"


class UntakenAnswers(Peer):
    """Puts tokens, and grants no credit for the answers, which repeat what it asked."""

    title: ClassVar[str] = "takes no answers of $cbs"

    def start(self) -> None:
        self._question = (
            encode_properties(Properties(message_id="x" * 24_000, reply_to="$cbs"))
            + encode_application_properties({"operation": "put-token", "name": "sb://localhost"})
            + encode_amqp_value("none")
        )
        self._callers: list[Caller] = []
        self._asked = 0

    def turn(self) -> None:
        # 100 questions a second, 150 of them on a connection: 3.6 MB of answers.
        if self._asked % 150 == 0:
            self._caller = Caller(self.place)
            self._caller.receiver("answers", "$cbs")
            self._link = self._caller.ready_sender("questions", "$cbs")
            self._callers = [*self._callers, self._caller][-self.scaled(200) :]
        for _ in range(2):
            if self._link.sendable:
                self._link.send(self._asked.to_bytes(4, "big"), self._question)
            self._asked += 1
        self._caller.write()
        self._caller.read()

    def tell(self) -> str:
        return f"{self._asked} questions of 24 KB"


HOLDERS: tuple[type[Peer], ...] = (UnfinishedFrames, UnfinishedDeliveries, UntakenAnswers)

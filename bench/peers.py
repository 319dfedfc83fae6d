"""Peers that take and do not give, each as bad as it can be at a bounded pace.

None of them is merely busy: a client that works at full speed slows others down by right. What
these do costs them little, so it must cost the broker little too.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import ClassVar

from bench.caller import Caller, Place
from bench.work import RunFailed
from postbus.amqp.events import Disposed, LinkAttached, LinkDetached
from postbus.amqp.frames.framing import EMPTY_FRAME
from postbus.amqp.frames.performatives import encode_transfer_frame
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sections import (
    Properties,
    encode_amqp_value,
    encode_application_properties,
    encode_data,
    encode_properties,
)
from postbus.amqp.sending import SenderLink

TURNS_PER_S = 50
_SMALL_BUFFER = 16_384
_MESSAGE = encode_properties(Properties(message_id="hostile")) + encode_data(b"x" * 1_024)
_LARGE = encode_properties(Properties(message_id="hostile")) + encode_data(b"x" * 8_192)


class Peer:
    """One kind of hostile client; `turn` is called TURNS_PER_S times a second to the end."""

    title: ClassVar[str]

    def __init__(self, place: Place, shared: str, own: str, scale: float) -> None:
        self.place = place
        self.shared = shared
        """The queue that the well-behaved client uses."""
        self.own = own
        self._scale = scale

    def scaled(self, number: int) -> int:
        return max(int(number * self._scale), 1)

    def start(self) -> None:
        """Get into position."""
        raise NotImplementedError

    def turn(self) -> None:
        """Go on."""

    def tell(self) -> str:
        """What it did, for the report."""
        raise NotImplementedError

    def fill(self, count: int) -> None:
        """Put large messages into its own queue, as a good client does."""
        caller = Caller(self.place)
        link = caller.ready_sender("fill", self.own)
        sent = settled = 0
        deadline = time.monotonic() + 30
        while settled < count:
            if caller.closed or time.monotonic() > deadline:
                raise RunFailed("a hostile peer could not fill its queue")
            for _ in range(min(link.sendable, count - sent, 100 - (sent - settled))):
                link.send(sent.to_bytes(4, "big"), _LARGE)
                sent += 1
            caller.write()
            settled += sum(
                len(event.deliveries) for event in caller.read() if isinstance(event, Disposed)
            )
            time.sleep(0.001)
        caller.close()


class DeafReceiver(Peer):
    """Grants credit for thousands of messages that wait, and never reads its socket again."""

    title = "never reads what it receives"

    def start(self) -> None:
        self.fill(2_000)
        self._callers = []
        for number in range(self.scaled(20)):
            caller = Caller(self.place, _SMALL_BUFFER)
            # Half of them have their messages locked, half have them deleted.
            link = caller.receiver(f"deaf-{number}", self.own, settled=number % 2 == 0)
            caller.write()
            caller.until(LinkAttached)
            link.grant(5_000)
            caller.write()
            self._callers.append(caller)
        self._feeder = Caller(self.place)
        self._link = self._feeder.ready_sender("feeder", self.own)
        self._fed = 0

    def turn(self) -> None:
        # Messages go on flowing: 50 a second.
        if self._link.sendable:
            self._link.send(self._fed.to_bytes(4, "big"), _LARGE)
            self._fed += 1
        self._feeder.write()
        self._feeder.read()

    def tell(self) -> str:
        return f"{len(self._callers)} receivers with credit for 5,000 each, 50 messages/s"


class DeafSender(Peer):
    """Sends on, whatever its credit, and never reads what becomes of it."""

    title = "never reads what it is answered"

    def start(self) -> None:
        self._callers: list[Caller] = []
        self._sent: list[int] = []
        self._total = self._again = 0
        for number in range(3):
            self._callers.append(self._call(number))
            self._sent.append(0)
        self._turns = 0

    def _call(self, number: int) -> Caller:
        caller = Caller(self.place, _SMALL_BUFFER)
        caller.ready_sender(f"deaf-{number}", self.own)
        return caller

    def turn(self) -> None:
        # 500 messages a second, one caller after the other: beyond any credit it heard of.
        number = self._turns % len(self._callers)
        self._turns += 1
        caller = self._callers[number]
        if caller.closed:
            self._callers[number] = caller = self._call(number)
            self._sent[number] = 0
            self._again += 1
        if caller.unwritten:
            caller.write()
            return
        frames = []
        for delivery_id in range(self._sent[number], self._sent[number] + 10):
            tag = delivery_id.to_bytes(4, "big")
            frames.append(
                encode_transfer_frame(
                    caller.session.channel, 0, delivery_id, tag, 0, False, False, (_MESSAGE,)
                )
            )
        self._sent[number] += 10
        self._total += 10
        caller.write(b"".join(frames))

    def tell(self) -> str:
        count = len(self._callers)
        return f"{count} senders, {self._total} messages, {self._again} connected anew"


class NoCredit(Peer):
    """Receivers that attach to the busy queue and never grant; questions without credit for
    their answers."""

    title = "grants no credit"

    def start(self) -> None:
        self.fill(200)
        self._callers = []
        self._links = 0
        for number in range(self.scaled(20)):
            caller = Caller(self.place)
            for each in range(25):
                caller.receiver(f"mute-{number}-{each}", self.shared)
                self._links += 1
            caller.write()
            caller.until(LinkAttached)
            self._callers.append(caller)
        self._asked = self._detached = self._turns = 0
        self._ask_anew()

    def _ask_anew(self) -> None:
        self._asker = Caller(self.place)
        node = f"{self.own}/$management"
        self._asker.receiver("answers", node)
        self._questions = self._asker.ready_sender("questions", node)
        self._peek = (
            encode_properties(Properties(message_id="p", reply_to=node))
            + encode_application_properties({"operation": "com.microsoft:peek-message"})
            + encode_amqp_value({"from-sequence-number": 0, "message-count": 25})
        )

    def turn(self) -> None:
        for caller in self._callers:
            caller.read()
        self._turns += 1
        if self._turns % 5 == 0 and self._questions.sendable:
            self._questions.send(self._asked.to_bytes(4, "big"), self._peek)
            self._asked += 1
            self._asker.write()
        if any(isinstance(event, LinkDetached) for event in self._asker.read()):
            self._detached += 1
            self._asker.close()
            self._ask_anew()

    def tell(self) -> str:
        return (
            f"{self._links} receivers on the busy queue, {self._asked} peeks whose answers wait,"
            f" {self._detached} times detached for it"
        )


class EndlessLinks(Peer):
    """Attaches links to the busy queue until refused, then does it again on a new connection."""

    title = "attaches links without end"

    def start(self) -> None:
        self._attached = self._refused = self._connections = 0
        self._begin()

    def _begin(self) -> None:
        self._caller = Caller(self.place)
        self._connections += 1
        self._number = 0

    def turn(self) -> None:
        caller = self._caller
        # 400 links a second, both ways.
        for _ in range(self.scaled(8)):
            name = f"endless-{self._number}"
            self._number += 1
            link: ReceiverLink | SenderLink = (
                caller.receiver(name, self.shared)
                if self._number % 2
                else caller.sender(name, self.shared)
            )
            del link
        caller.write()
        for event in caller.read():
            self._attached += isinstance(event, LinkAttached)
            self._refused += isinstance(event, LinkDetached)
        if caller.closed or self._refused:
            self._refused = 0
            caller.close()
            self._begin()

    def tell(self) -> str:
        return f"{self._attached} links on {self._connections} connections, 400/s"


class OneByte(Peer):
    """Proper frames, one byte at a time, on hundreds of connections."""

    title = "writes single bytes"

    def start(self) -> None:
        self._callers: list[Caller] = []
        self._streams: list[bytes] = []
        self._written = self._turns = 0
        for number in range(self.scaled(300)):
            caller = Caller(self.place)
            caller.ready_sender(f"slow-{number}", self.own)
            channel = caller.session.channel
            self._callers.append(caller)
            self._streams.append(
                b"".join(
                    encode_transfer_frame(
                        channel, 0, each, each.to_bytes(4, "big"), 0, False, False, (_MESSAGE,)
                    )
                    for each in range(20)
                )
            )
        self._places = [0] * len(self._callers)

    def turn(self) -> None:
        # 120 in a turn: 6,000 writes and as many packets a second.
        for _ in range(self.scaled(120)):
            number = self._turns % len(self._callers)
            self._turns += 1
            at = self._places[number]
            self._places[number] = at + 1
            self._callers[number].write(self._streams[number][at : at + 1])
            self._written += 1
            if self._turns % 10 == 0:
                self._callers[number].read()

    def tell(self) -> str:
        return f"{len(self._callers)} connections, {self._written} bytes in as many writes"


class Idle(Peer):
    """Connections that are opened and then do nothing but stay; one in ten is TCP alone."""

    title = "10,000 idle connections"

    def start(self) -> None:
        self._opened = self._dropped = 0
        self._selector = selectors.DefaultSelector()
        self._greeting = self.place.greeting()
        wanted = self.scaled(10_000)
        self._silent = wanted // 10
        began = time.monotonic()
        for number in range(wanted):
            self._connect(is_silent=number < self._silent)
            # 1,000 a second, and what is answered is read meanwhile.
            if number % 20 == 0:
                self._look()
                time.sleep(max(began + number / 1_000 - time.monotonic(), 0))
        deadline = time.monotonic() + 30
        while self._opened < wanted - self._silent:
            if time.monotonic() > deadline:
                raise RunFailed(f"only {self._opened} idle connections were opened")
            self._look()
            time.sleep(0.02)
        self._beat_at = time.monotonic() + 60

    def _connect(self, is_silent: bool) -> None:
        sock = self.place.connect()
        if not is_silent:
            sock.sendall(self._greeting)
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, is_silent)

    def _look(self) -> None:
        for key, _ in self._selector.select(0):
            sock, is_silent = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                data = sock.recv(4_096)
            except OSError:
                data = b""
            if data:
                # The performative open, in whatever piece the answers came.
                self._opened += b"\x00\x53\x10" in data
                continue
            self._selector.unregister(sock)
            sock.close()
            self._dropped += 1
            if is_silent:
                self._connect(is_silent=True)

    def turn(self) -> None:
        self._look()
        if time.monotonic() >= self._beat_at:
            self._beat_at += 60
            for key in list(self._selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                if not key.data:
                    key.fileobj.send(EMPTY_FRAME)

    def tell(self) -> str:
        open_now = len(self._selector.get_map())
        return f"{open_now} open, {self._silent} of them without AMQP; {self._dropped} were dropped"


PEERS: tuple[type[Peer], ...] = (DeafReceiver, DeafSender, NoCredit, EndlessLinks, OneByte, Idle)

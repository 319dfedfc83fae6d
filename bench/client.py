"""One process of the load generator: links on our own AMQP core, many connections in one loop.

A sender keeps up to a window of messages unsettled and times each from its transfer to the peer's
verdict. A receiver accepts without settling and times each until the peer has settled: that is
peek-lock as the official SDKs do it (AMQP 2.6.12), with receiver settle mode second or, for a
broker that refuses this mode, with mode first and the same frames. Bodies begin with the moment
they were sent, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from postbus.amqp.connection import Connection
from postbus.amqp.events import (
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SessionEnded,
    SettledBySender,
)
from postbus.amqp.frames.outcomes import Error
from postbus.amqp.frames.performatives import (
    ACCEPTED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_UNSETTLED,
    Accepted,
    Attach,
)
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sections import Properties, encode_data, encode_header, encode_properties
from postbus.amqp.sending import SenderLink

MARK = b"BENCHMSG"
STAMP = struct.Struct("<Q")
SIZE_MIN = len(MARK) + STAMP.size
ID_DIGITS = 10
_READ_BYTES = 262_144
_TICK_S = 1.0
_CLOSE_WITHIN_S = 2.0


class LoadFailed(Exception):
    """The work could not be done as asked: refused, cut off, or no progress."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a load is made of. Connections, window and credit are those of each direction."""

    host: str
    port: int
    user: str
    password: str
    address: str
    count: int
    size: int
    window: int
    credit: int
    connections: int
    rcv_settle_mode: int
    stall_s: float
    ids: str = ""
    """What the ids of messages begin with, each being another; empty: all have the same."""


@dataclass(slots=True)
class Samples:
    """What the links of one direction saw. Times are in ns of the monotonic clock."""

    started: int = 0
    done: int = 0
    refused: int = 0
    first_ns: int = 0
    last_ns: int = 0
    settle_us: array[int] = field(default_factory=lambda: array("Q"))
    e2e_us: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, other: Samples) -> None:
        """Take in what another process saw."""
        self.started += other.started
        self.done += other.done
        self.refused += other.refused
        begun = [moment for moment in (self.first_ns, other.first_ns) if moment]
        self.first_ns = min(begun, default=0)
        self.last_ns = max(self.last_ns, other.last_ns)
        self.settle_us.extend(other.settle_us)
        self.e2e_us.extend(other.e2e_us)


class Wire:
    """A connection with one link, its socket, and what is still to be written to it."""

    def __init__(self, work: Work, name: str, quota: int, samples: Samples) -> None:
        self.work = work
        self.name = name
        self.quota = quota
        self.samples = samples
        self.started = 0
        self.done = 0
        self.attached = False
        limits = Limits(
            incoming_window=max(5_000, 2 * work.credit),
            unsettled_incoming_max=max(5_000, 2 * work.credit),
            unsettled_outgoing_max=max(2_048, work.window),
        )
        self.core = Connection(
            limits,
            container_id=name,
            server=False,
            now=now_ms(),
            hostname=work.host,
            mechanisms=["PLAIN"],
            initial_response=encode_plain(work.user, work.password),
        )
        self.socket = socket.create_connection((work.host, work.port), timeout=work.stall_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.unwritten = b""
        self.core.open()

    @property
    def finished(self) -> bool:
        return self.done >= self.quota

    def start(self) -> None:
        """Begin the work; every link of every process is attached by now."""
        raise NotImplementedError

    def on_event(self, event: Event) -> None:
        raise NotImplementedError

    def read(self) -> None:
        """Take what came, and do what it asks for."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.handle(self.core.receive_eof(now_ms()))
            raise LoadFailed(f"{self.name}: the broker hung up")
        self.handle(self.core.receive_data(data, now_ms()))

    def handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, LinkAttached):
                self.attached = True
            elif isinstance(event, LinkDetached | SessionEnded | Closed):
                if not (isinstance(event, Closed) and event.clean and self.finished):
                    raise LoadFailed(f"{self.name}: {type(event).__name__}: {_text(event.error)}")
            else:
                self.on_event(event)

    def write(self) -> bool:
        """Write what there is; say whether the socket took all of it."""
        out = self.core.data_to_send()
        if self.unwritten:
            out = self.unwritten + out
        if out:
            try:
                taken = self.socket.send(out)
            except BlockingIOError:
                taken = 0
            self.unwritten = out[taken:]
        return not self.unwritten


class SendingWire(Wire):
    def __init__(self, work: Work, name: str, quota: int, samples: Samples) -> None:
        super().__init__(work, name, quota, samples)
        target = Target(work.address)
        attach = Attach(name, 0, ROLE_SENDER, source=Source(name), target=target)
        attach.snd_settle_mode = SND_UNSETTLED
        self.link = self.core.begin().attach(SenderLink, attach)
        body = encode_data(MARK + bytes(STAMP.size) + b"x" * (work.size - SIZE_MIN))
        message_id = f"{work.ids}-{name}-{0:0{ID_DIGITS}}" if work.ids else "bench-1"
        properties = encode_properties(Properties(message_id=message_id))
        message = encode_header(durable=True) + properties + body
        cut = len(message) - work.size + len(MARK)
        self._before, self._after = message[:cut], message[cut + STAMP.size :]
        # The number in an id is written over, so that making ids costs next to nothing.
        self._number_at = message.index(message_id.encode()) + len(message_id) - ID_DIGITS
        self._running = False

    def _start_of(self, number: int) -> bytes:
        """All of a message before its time stamp."""
        if not self.work.ids:
            return self._before
        at = self._number_at
        return b"%b%0*d%b" % (
            self._before[:at],
            ID_DIGITS,
            number,
            self._before[at + ID_DIGITS :],
        )

    def start(self) -> None:
        self._running = True
        self._pump()

    def _pump(self) -> None:
        link = self.link
        room = min(
            link.sendable,
            self.work.window - (self.started - self.done),
            self.quota - self.started,
        )
        if room <= 0 or not self._running:
            return
        samples = self.samples
        for number in range(self.started, self.started + room):
            sent_ns = time.monotonic_ns()
            if not samples.first_ns:
                samples.first_ns = sent_ns
            payload = (self._start_of(number), STAMP.pack(sent_ns), self._after)
            link.send(number.to_bytes(8, "big"), payload, context=sent_ns)
        self.started += room
        samples.started += room

    def on_event(self, event: Event) -> None:
        if isinstance(event, Disposed):
            samples = self.samples
            heard_ns = time.monotonic_ns()
            for delivery in event.deliveries:
                samples.settle_us.append((heard_ns - delivery.context) // 1000)
                if not event.settled:
                    self.link.settle(delivery, event.state)
            number = len(event.deliveries)
            if not isinstance(event.state, Accepted):
                samples.refused += number
            self.done += number
            samples.done += number
            samples.last_ns = heard_ns
            self._pump()
        elif isinstance(event, CreditChanged):
            self._pump()


class ReceivingWire(Wire):
    def __init__(self, work: Work, name: str, quota: int, samples: Samples) -> None:
        super().__init__(work, name, quota, samples)
        source = Source(work.address)
        attach = Attach(name, 0, ROLE_RECEIVER, source=source, target=Target(name))
        attach.rcv_settle_mode = work.rcv_settle_mode
        self.link = self.core.begin().attach(ReceiverLink, attach)
        self._accepted_ns: dict[int, int] = {}

    def start(self) -> None:
        self._top_up()

    def _top_up(self) -> None:
        credit = self.work.credit
        left = self.quota - self.started
        if left > 0 and self.link.credit <= credit // 2:
            self.link.grant(min(credit, left))

    def on_event(self, event: Event) -> None:
        samples = self.samples
        if isinstance(event, MessageReceived):
            delivery = event.delivery
            came_ns = time.monotonic_ns()
            if not samples.first_ns:
                samples.first_ns = came_ns
            body = len(delivery.payload) - self.work.size
            if delivery.payload.startswith(MARK, max(body, 0)):
                (sent_ns,) = STAMP.unpack_from(delivery.payload, body + len(MARK))
                samples.e2e_us.append((came_ns - sent_ns) // 1000)
            self.started += 1
            samples.started += 1
            if delivery.settled:
                raise LoadFailed(f"{self.name}: a message came settled, it was to be locked")
            self._accepted_ns[delivery.delivery_id] = came_ns
            self.link.settle(delivery, ACCEPTED, settled=False)
            self._top_up()
        elif isinstance(event, SettledBySender):
            heard_ns = time.monotonic_ns()
            for delivery in event.deliveries:
                accepted_ns = self._accepted_ns.pop(delivery.delivery_id)
                samples.settle_us.append((heard_ns - accepted_ns) // 1000)
            self.done += len(event.deliveries)
            samples.done += len(event.deliveries)
            samples.last_ns = heard_ns


class Loop:
    """All connections of one process."""

    def __init__(self, wires: list[Wire], stall_s: float) -> None:
        self._wires = wires
        self._stall_s = stall_s
        self._selector = selectors.DefaultSelector()
        self._full: set[Wire] = set()
        for wire in wires:
            self._selector.register(wire.socket, selectors.EVENT_READ, wire)

    def attach(self) -> None:
        """Return when every link is attached."""
        self._run(lambda: all(wire.attached for wire in self._wires))

    def work(self) -> None:
        """Return when every link has done its share."""
        for wire in self._wires:
            wire.start()
        self._run(lambda: all(wire.finished for wire in self._wires))

    def close(self) -> None:
        """Close in good order, but do not wait long for a broker that does not answer."""
        for wire in self._wires:
            wire.core.close()
            self._write(wire)
        deadline = time.monotonic() + _CLOSE_WITHIN_S
        while time.monotonic() < deadline and not all(wire.core.closed for wire in self._wires):
            self._turn(0.1)
        self.drop()

    def drop(self) -> None:
        self._selector.close()
        for wire in self._wires:
            wire.socket.close()

    def _run(self, is_over: Callable[[], bool]) -> None:
        progress = -1
        moved_at = ticked_at = time.monotonic()
        for wire in self._wires:
            self._write(wire)
        while not is_over():
            self._turn(_TICK_S)
            now = time.monotonic()
            if now - ticked_at >= _TICK_S:
                ticked_at = now
                for wire in self._wires:
                    wire.handle(wire.core.tick(now_ms()))
                    self._write(wire)
            seen = sum(wire.attached + wire.started + wire.done for wire in self._wires)
            if seen != progress:
                progress, moved_at = seen, now
            elif now - moved_at > self._stall_s:
                raise LoadFailed(f"nothing happened for {self._stall_s:g} s")

    def _turn(self, wait_s: float) -> None:
        for key, ready in self._selector.select(wait_s):
            wire: Wire = key.data
            if ready & selectors.EVENT_READ and not wire.core.closed:
                wire.read()
            self._write(wire)

    def _write(self, wire: Wire) -> None:
        if wire.write() is (wire in self._full):
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            if wire in self._full:
                self._full.discard(wire)
                self._selector.modify(wire.socket, selectors.EVENT_READ, wire)
            else:
                self._full.add(wire)
                self._selector.modify(wire.socket, both, wire)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _text(error: Error | None) -> str:
    return "no reason given" if error is None else f"{error.condition}: {error.description}"

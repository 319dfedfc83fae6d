"""The links of the load generator, on our own AMQP core; `bench.loop` runs many of them.

A sender keeps up to a window of messages unsettled and times each from its transfer to the peer's
verdict. A receiver accepts without settling and times each until the peer has settled: that is
peek-lock as the official SDKs do it (AMQP 2.6.12), with receiver settle mode second or, for a
broker that refuses this mode, with mode first and the same frames. Bodies begin with the moment
they were sent, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import socket
import struct
import time
from array import array
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
from postbus.amqp.link import Link
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sections import Properties, encode_data, encode_header, encode_properties
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session

MARK = b"BENCHMSG"
STAMP = struct.Struct("<Q")
SIZE_MIN = len(MARK) + STAMP.size
ID_DIGITS = 10
_READ_BYTES = 262_144


class LoadFailed(Exception):
    """The work could not be done as asked: refused, cut off, or no progress."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a load is made of. Connections and links are those of each direction, window and credit
    those of a link."""

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
    links: int = 1
    """Of a connection."""
    at_once: bool = False
    """Receivers settle as they accept and wait for nothing, instead of being confirmed."""


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
    """A link, and its connection with a socket and what is still to be written to it.

    The connection is that of `carrier`, where one is given: many links on one connection.
    """

    def __init__(
        self, work: Work, name: str, quota: int, samples: Samples, carrier: Wire | None = None
    ) -> None:
        self.work = work
        self.name = name
        self.quota = quota
        self.samples = samples
        self.started = 0
        self.done = 0
        self.attached = False
        self.carrier = carrier or self
        self.riders: dict[Link | None, Wire] = {}
        if carrier is not None:
            self.session: Session = carrier.session
            return
        unsettled = 2 * work.credit * work.links
        limits = Limits(
            incoming_window=max(5_000, unsettled),
            unsettled_incoming_max=max(5_000, unsettled),
            unsettled_outgoing_max=max(2_048, work.window * work.links),
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
        self.session = self.core.begin()

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
        """Give each event to the wire of its link; this one carries them all."""
        for event in events:
            wire = self.riders.get(getattr(event, "link", None), self)
            if isinstance(event, LinkAttached):
                wire.attached = True
            elif isinstance(event, LinkDetached | SessionEnded | Closed):
                over = self.finished and all(rider.finished for rider in self.riders.values())
                if not (isinstance(event, Closed) and event.clean and over):
                    raise LoadFailed(f"{wire.name}: {type(event).__name__}: {_text(event.error)}")
            else:
                wire.on_event(event)

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
    def __init__(
        self, work: Work, name: str, quota: int, samples: Samples, carrier: Wire | None = None
    ) -> None:
        super().__init__(work, name, quota, samples, carrier)
        target = Target(work.address)
        attach = Attach(name, 0, ROLE_SENDER, source=Source(name), target=target)
        attach.snd_settle_mode = SND_UNSETTLED
        self.link = self.session.attach(SenderLink, attach)
        self.carrier.riders[self.link] = self
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
    def __init__(
        self, work: Work, name: str, quota: int, samples: Samples, carrier: Wire | None = None
    ) -> None:
        super().__init__(work, name, quota, samples, carrier)
        source = Source(work.address)
        attach = Attach(name, 0, ROLE_RECEIVER, source=source, target=Target(name))
        attach.rcv_settle_mode = work.rcv_settle_mode
        self.link = self.session.attach(ReceiverLink, attach)
        self.carrier.riders[self.link] = self
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
            self.link.settle(delivery, ACCEPTED, settled=self.work.at_once)
            if self.work.at_once:
                self.done += 1
                samples.done += 1
                samples.last_ns = came_ns
            else:
                self._accepted_ns[delivery.delivery_id] = came_ns
            self._top_up()
        elif isinstance(event, SettledBySender):
            heard_ns = time.monotonic_ns()
            for delivery in event.deliveries:
                accepted_ns = self._accepted_ns.pop(delivery.delivery_id)
                samples.settle_us.append((heard_ns - accepted_ns) // 1000)
            self.done += len(event.deliveries)
            samples.done += len(event.deliveries)
            samples.last_ns = heard_ns


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _text(error: Error | None) -> str:
    return "no reason given" if error is None else f"{error.condition}: {error.description}"

"""Peers for a core under test: another core, joined to it by a wire that exists only as bytes
handed from one to the other, or frames written by hand."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from postbus.amqp.connection import Connection
from postbus.amqp.events import Event, LinkAttached, SaslReceived, SessionBegun
from postbus.amqp.frames.framing import AMQP_HEADER, FrameReader, encode_frame
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Composite,
    Open,
    Source,
    Target,
    decode_performative,
)
from postbus.amqp.limits import Limits
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session

T0 = 1_700_000_000_000

E = TypeVar("E")

# How a piece of output reaches the other side: cut into chunks, none of them empty.
Chunker = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def one_byte_at_a_time(data: bytes) -> Iterator[bytes]:
    for index in range(len(data)):
        yield data[index : index + 1]


class ConnectionPair:
    """A client and a server core. `events` of each side pile up until taken.

    The server lets everybody in and, unless told otherwise, accepts every link.
    """

    def __init__(
        self,
        client_limits: Limits | None = None,
        server_limits: Limits | None = None,
        chunker: Chunker = whole,
        accept_links: bool = True,
        mechanisms: tuple[str, ...] = ("ANONYMOUS",),
        initial_response: bytes = b"",
    ) -> None:
        self.now = T0
        self.chunker = chunker
        self.accept_links = accept_links
        self.client = Connection(
            client_limits or Limits(),
            container_id="client",
            server=False,
            now=T0,
            hostname="bus.example",
            mechanisms=mechanisms,
            initial_response=initial_response,
        )
        self.server = Connection(
            server_limits or Limits(), container_id="server", server=True, now=T0
        )
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []
        self.client_sent = b""
        self.server_sent = b""

    def open(self) -> None:
        self.client.open()
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes both ways until neither side has any more."""
        while True:
            outbound = self.client.data_to_send()
            inbound = self.server.data_to_send()
            if not outbound and not inbound:
                return
            self.client_sent += outbound
            self.server_sent += inbound
            for chunk in self.chunker(outbound) if outbound else ():
                self._at_server(self.server.receive_data(chunk, self.now))
            for chunk in self.chunker(inbound) if inbound else ():
                self.client_events += self.client.receive_data(chunk, self.now)

    def _at_server(self, events: list[Event]) -> None:
        for event in events:
            self.server_events.append(event)
            if isinstance(event, SaslReceived):
                self._at_server(self.server.sasl_accept())
            elif isinstance(event, LinkAttached) and self.accept_links:
                self._at_server(event.link.accept())

    def begin(self) -> Session:
        """Begin a session from the client's side."""
        session = self.client.begin()
        self.exchange()
        return session

    def client_sends(
        self, session: Session, name: str = "orders"
    ) -> tuple[SenderLink, ReceiverLink]:
        """Attach a link on which the client sends; return both ends."""
        sender = session.attach(
            SenderLink,
            Attach(name, 0, ROLE_SENDER, source=Source("me"), target=Target("orders")),
        )
        self.exchange()
        return sender, last_link(self.server_events, ReceiverLink)

    def server_sends(
        self, session: Session, name: str = "orders", **terms: int
    ) -> tuple[SenderLink, ReceiverLink]:
        """Attach a link on which the server sends; return both ends."""
        attach = Attach(name, 0, ROLE_RECEIVER, source=Source("orders"), target=Target("me"))
        for term, value in terms.items():
            setattr(attach, term, value)
        receiver = session.attach(ReceiverLink, attach)
        self.exchange()
        return last_link(self.server_events, SenderLink), receiver

    def at_client(self, kind: type[E]) -> list[E]:
        """Take the client's events of one kind; the others are dropped."""
        taken, self.client_events = self.client_events, []
        return [event for event in taken if isinstance(event, kind)]

    def at_server(self, kind: type[E]) -> list[E]:
        """Take the server's events of one kind; the others are dropped."""
        taken, self.server_events = self.server_events, []
        return [event for event in taken if isinstance(event, kind)]


def last_link(events: list[Event], end: type[E]) -> E:
    """Return the link of that end that was attached last."""
    for event in reversed(events):
        if isinstance(event, LinkAttached) and isinstance(event.link, end):
            return event.link
    raise AssertionError(f"no {end.__name__} was attached")


class BarePeer:
    """A peer that writes its frames by hand, so that it can also write wrong ones."""

    def __init__(
        self, limits: Limits | None = None, opened: bool = True, open_frame: Open | None = None
    ) -> None:
        self.core = Connection(limits or Limits(), container_id="core", server=True, now=T0)
        self.events: list[Event] = []
        self.now = T0
        self._reader = FrameReader(1 << 20)
        self._greeted = False
        if opened:
            self.receive(AMQP_HEADER)
            self.events += self.core.sasl_accept()
            self.send(open_frame or Open("bare"))
            self.replies()

    def receive(self, data: bytes) -> list[Event]:
        """Let bytes reach the core; return what it tells its owner."""
        events = self.core.receive_data(data, self.now)
        self.events += events
        return events

    def send(
        self, *performatives: Composite, channel: int = 0, payload: bytes = b""
    ) -> list[Event]:
        """Let frames reach the core in one piece."""
        frames = [encode_frame(channel, performative, payload) for performative in performatives]
        return self.receive(b"".join(frames))

    def begin(self, channel: int = 0, window: int = 1000) -> Session:
        """Begin a session and forget the answer."""
        self.send(Begin(None, 0, window, 1000), channel=channel)
        self.replies()
        event = self.events[-1]
        assert isinstance(event, SessionBegun)
        return event.session

    def attach_sender(self, name: str = "in", handle: int = 0, channel: int = 0) -> ReceiverLink:
        """Attach a link on which this peer sends."""
        attach = Attach(
            name, handle, ROLE_SENDER, source=Source("me"), target=Target("orders"),
            initial_delivery_count=0,
        )  # fmt: skip
        self.send(attach, channel=channel)
        return last_link(self.events, ReceiverLink)

    def attach_receiver(self, name: str = "out", handle: int = 1, channel: int = 0) -> SenderLink:
        """Attach a link on which this peer receives."""
        attach = Attach(name, handle, ROLE_RECEIVER, source=Source("orders"), target=Target("me"))
        self.send(attach, channel=channel)
        return last_link(self.events, SenderLink)

    def sent(self) -> list[tuple[int, Composite, bytes]]:
        """Take the frames the core has written: channel, performative, payload."""
        self._reader.feed(self.core.data_to_send())
        if not self._greeted and self._reader.buffered:
            assert self._reader.next_header() == AMQP_HEADER
            self._greeted = True
        taken = []
        for kind, channel, body in self._reader:
            assert kind == 0
            if body:
                performative, start = decode_performative(body)
                taken.append((channel, performative, body[start:]))
        return taken

    def replies(self) -> list[Composite]:
        """Take the performatives the core has written."""
        return [performative for _, performative, _ in self.sent()]

    def reply(self, kind: type[E]) -> E:
        """Take what the core has written, which is one performative of this kind."""
        (only,) = self.replies()
        assert isinstance(only, kind)
        return only

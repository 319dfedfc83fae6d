"""An AMQP connection of a client, for asyncio: our own AMQP core on a socket.

It logs in with SASL PLAIN, which Postbus and Azure both take. Messages are the bytes that they are
on the wire.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Self, TypeVar
from uuid import uuid4

from postbus.amqp.connection import Connection
from postbus.amqp.deliveries import IncomingDelivery
from postbus.amqp.events import (
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    SessionEnded,
)
from postbus.amqp.frames.outcomes import Accepted, Error, Outcome, Rejected
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    SND_UNSETTLED,
    Attach,
)
from postbus.amqp.frames.terminus import Source, Target
from postbus.amqp.limits import Limits
from postbus.amqp.link import Link
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sasl_plain import encode_plain
from postbus.amqp.sending import SenderLink
from postbus.amqp.session import Session
from postbus.client.connection_string import Namespace

LinkEnd = TypeVar("LinkEnd", SenderLink, ReceiverLink)
Attached = TypeVar("Attached", bound="ClientLink")

CONNECT_S: Final = 20.0
MESSAGE_SIZE_MAX: Final = 128 << 20
_TICK_S: Final = 1.0


class AmqpRefused(Exception):
    """The peer has refused something, for the reason that its condition names."""

    def __init__(self, error: Error | None) -> None:
        self.condition = "amqp:internal-error" if error is None else str(error.condition)
        self.description = "" if error is None else error.description or ""
        super().__init__(f"{self.description} ({self.condition})")


class ConnectionLost(OSError):
    """The connection broke, or was never made."""


class ClientLink:
    """The state that both kinds of links have: attached, and at some time over."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        self._changed = asyncio.Event()
        self.is_attached = False
        self._over: Exception | None = None

    def attached(self) -> None:
        self.is_attached = True
        self._changed.set()

    def end(self, error: Exception) -> None:
        """From now on every call raises this."""
        if self._over is None:
            self._over = error
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Return when something has happened. Raises once the link is over."""
        self._changed.clear()
        if self._over is None:
            await self._changed.wait()
        self.check()

    @property
    def is_over(self) -> bool:
        return self._over is not None

    def check(self) -> None:
        """Raise the reason if the link is over."""
        if self._over is not None:
            raise self._over


class SendingLink(ClientLink):
    """Sends messages to an entity, for any number of tasks at once."""

    link: SenderLink

    def __init__(self, client: AmqpClient) -> None:
        super().__init__(client)
        self._under_way: set[asyncio.Future[None]] = set()
        self._next_tag = 0

    async def send(self, payload: bytes, message_format: int = 0) -> None:
        """Return when the peer has accepted the message. Raises AmqpRefused, ConnectionLost."""
        self.check()
        while not self.link.sendable:
            await self.wait_for_change()
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(outcome)
        outcome.add_done_callback(self._under_way.discard)
        tag = self._next_tag.to_bytes(8, "big")
        self._next_tag += 1
        self.link.send(tag, payload, False, message_format, outcome)
        self._client.flush()
        await outcome

    def credited(self) -> None:
        self._changed.set()

    def disposed(self, event: Disposed) -> None:
        for delivery in event.deliveries:
            if not event.settled:
                self.link.settle(delivery, event.state)
            outcome: asyncio.Future[None] = delivery.context
            if outcome.done():
                continue
            if isinstance(event.state, Accepted):
                outcome.set_result(None)
            elif isinstance(event.state, Rejected):
                outcome.set_exception(AmqpRefused(event.state.error))
            else:
                outcome.set_exception(ConnectionLost(f"the peer let go of it: {event.state!r:.80}"))

    def end(self, error: Exception) -> None:
        super().end(error)
        for outcome in list(self._under_way):
            if not outcome.done():
                outcome.set_exception(error)


class ReceivingLink(ClientLink):
    """Receives messages of an entity under locks, for one task."""

    link: ReceiverLink

    def __init__(self, client: AmqpClient) -> None:
        super().__init__(client)
        self._arrived: deque[IncomingDelivery] = deque()

    async def receive(self) -> IncomingDelivery:
        """The next message. Raises AmqpRefused, ConnectionLost."""
        while not self._arrived:
            await self.wait_for_change()
        return self._arrived.popleft()

    @property
    def credit(self) -> int:
        return self.link.credit

    def grant(self, credit: int) -> None:
        """Allow the peer to send this many more messages."""
        self.link.grant(credit)
        self._client.flush()

    def settle(self, delivery: IncomingDelivery, outcome: Outcome) -> None:
        """Send the verdict on a message. Nothing is sent on a link that is over."""
        if self._over is None:
            self.link.settle(delivery, outcome)
            self._client.flush()

    def received(self, delivery: IncomingDelivery) -> None:
        self._arrived.append(delivery)
        self._changed.set()


class AmqpClient(asyncio.Protocol):
    """A connection with one session, logged in with the key of a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._core = Connection(
            Limits(message_size_max=MESSAGE_SIZE_MAX),
            container_id=f"postbus-{uuid4()}",
            server=False,
            now=_now_ms(),
            hostname=namespace.host,
            mechanisms=["PLAIN"],
            initial_response=encode_plain(namespace.key_name, namespace.key),
        )
        self._transport: asyncio.Transport | None = None
        self._session: Session
        self._links: dict[Link, SendingLink | ReceivingLink] = {}
        self._over: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, namespace: Namespace) -> Self:
        """Open a connection. A refusal of the key comes with the first link."""
        loop = asyncio.get_running_loop()
        context = namespace.tls_context()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, client = await loop.create_connection(
                    lambda: cls(namespace),
                    namespace.host,
                    namespace.port,
                    ssl=context,
                    server_hostname=namespace.host if context is not None else None,
                )
        except TimeoutError:
            raise ConnectionLost(f"{namespace.netloc} does not answer") from None
        return client

    @property
    def is_over(self) -> bool:
        return self._over is not None

    async def sender(self, entity: str) -> SendingLink:
        made = SendingLink(self)
        attach = Attach(_name(), 0, ROLE_SENDER, source=Source(entity), target=Target(entity))
        made.link = self._attach(SenderLink, attach, made)
        return await self._attached(made)

    async def receiver(self, entity: str) -> ReceivingLink:
        made = ReceivingLink(self)
        attach = Attach(_name(), 0, ROLE_RECEIVER, source=Source(entity), target=Target(entity))
        made.link = self._attach(ReceiverLink, attach, made)
        return await self._attached(made)

    def _attach(
        self, kind: type[LinkEnd], attach: Attach, owner: SendingLink | ReceivingLink
    ) -> LinkEnd:
        if self._over is not None:
            raise self._over
        attach.snd_settle_mode = SND_UNSETTLED
        link = self._session.attach(kind, attach)
        self._links[link] = owner
        return link

    async def _attached(self, link: Attached) -> Attached:
        self.flush()
        try:
            async with asyncio.timeout(CONNECT_S):
                while not link.is_attached:
                    await link.wait_for_change()
        except TimeoutError:
            self.drop()
            raise ConnectionLost("the peer does not answer") from None
        return link

    async def close(self) -> None:
        """Say goodbye, and do not wait long for the answer."""
        if self._over is None and not self._core.closed:
            self._core.close()
            self.flush()
            deadline = time.monotonic() + 1.0
            while self._over is None and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        self.drop()

    def drop(self) -> None:
        """Break the connection."""
        self._end(ConnectionLost("the connection was dropped"))

    def flush(self) -> None:
        """Write what the core has to say."""
        if self._transport is not None and not self._transport.is_closing():
            data = self._core.data_to_send()
            if data:
                self._transport.write(data)

    # -- of the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._core.open()
        self._session = self._core.begin()
        self._tick()

    def data_received(self, data: bytes) -> None:
        self._handle(self._core.receive_data(data, _now_ms()))

    def connection_lost(self, exc: Exception | None) -> None:
        self._handle(self._core.receive_eof(_now_ms()))
        self._end(ConnectionLost(str(exc) if exc is not None else "the peer closed the connection"))

    def _tick(self) -> None:
        self._handle(self._core.tick(_now_ms()))
        if self._over is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case MessageReceived():
                    owner = self._links.get(event.link)
                    if isinstance(owner, ReceivingLink):
                        owner.received(event.delivery)
                case Disposed():
                    owner = self._links.get(event.link)
                    if isinstance(owner, SendingLink):
                        owner.disposed(event)
                case CreditChanged():
                    owner = self._links.get(event.link)
                    if isinstance(owner, SendingLink):
                        owner.credited()
                case LinkAttached():
                    self._links[event.link].attached()
                case LinkDetached():
                    owner = self._links.pop(event.link, None)
                    if owner is not None:
                        owner.end(AmqpRefused(event.error))
                case SessionEnded() | Closed():
                    error = event.error
                    self._end(ConnectionLost("closed") if error is None else AmqpRefused(error))
        self.flush()

    def _end(self, error: Exception) -> None:
        if self._over is not None:
            return
        self._over = error
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.end(error)
        self.flush()
        if self._transport is not None:
            self._transport.close()


def _name() -> str:
    return f"postbus-{uuid4()}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

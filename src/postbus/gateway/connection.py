"""One AMQP connection: bytes in, events to the right hands, bytes out once per turn.

The gateway speaks the wire, checks rights and resolves addresses; it decides nothing about
messages. This is the one place where `amqp` and `broker` meet.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final, cast

from postbus.amqp.connection import Connection
from postbus.amqp.events import (
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    MessageReceived,
    Opened,
    SaslReceived,
    SessionEnded,
)
from postbus.amqp.faults import DecodeError, ProtocolError
from postbus.amqp.link import Link
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink
from postbus.auth.authority import Claims
from postbus.errors import ConnectionForced, SecondReceiver, ServiceBusError, Unauthorized
from postbus.gateway.attach import attach
from postbus.gateway.client_connection import ClientConnection
from postbus.gateway.client_links import ClientReceiver, ClientSender, wake_all
from postbus.gateway.context import ConnectionContext
from postbus.gateway.input_queue import InputQueue
from postbus.gateway.lost_claims import address_of, detach_unproven
from postbus.gateway.nodes import NodeReceiver, NodeSender
from postbus.gateway.transactions.coordinator import CoordinatorSender
from postbus.messages.batches import DECODED_PER_TURN
from postbus.messages.envelope import DECODED
from postbus.net.budgets import HELD_MIN
from postbus.net.places import Place
from postbus.net.unread import unread
from postbus.net.websocket import part_from
from postbus.observe.turns import CLIENT
from postbus.runtime.loaded_fragment import LoadedFragment
from postbus.runtime.sliced_work import Step

Owner = ClientSender | ClientReceiver | NodeSender | NodeReceiver | CoordinatorSender

OFFERED: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS")
UNOFFERED: Final = ("EXTERNAL",)
"""Over plain TCP nothing has vouched for the peer. Proton takes EXTERNAL wherever it is offered,
and never gets to the password it was given."""
EVENTS_AT_ONCE: Final = 128
"""What a peer says before it lets the others have their turn, though there is more to read."""
REFUSED_STRANGERS_MAX: Final = 100
"""Links refused to a connection that has no token before it is closed."""
LINGER_S: Final = 2.0


class Gateway(ClientConnection):
    """The server's end of one AMQP connection.

    An asyncio.Protocol in all but name: what inherits from an interpreted class is not compiled.
    """

    def __init__(self, service: ConnectionContext, place: Place) -> None:
        self._loop = asyncio.get_running_loop()
        began_ms = self._elapsed_ms()
        super().__init__(service, began_ms)
        self._place = place
        self._transport: asyncio.Transport | None = None
        self._connection = Connection(
            service.limits,
            container_id=service.container_id,
            server=True,
            now=began_ms,
            mechanisms=OFFERED,
            unoffered=UNOFFERED,
            describe=self._describe,
        )
        self._refused = 0
        self._flushing = False
        self._reading = True
        self._deaf = False
        self._timer: asyncio.TimerHandle | None = None
        self._clean = False
        self._writable = True
        self._expecting = False
        """The timer rings when a delivery should be whole."""
        self._input = InputQueue()

    # -- what links ask ----------------------------------------------------------------------

    def links(self) -> list[Link]:
        return [link for session in self._connection.sessions for link in session.links]

    def add_claims(self, audience: str, claims: Claims) -> None:
        self._known()
        if self.rights.put(audience, claims):
            detach_unproven(self, self.links())
        self._arm()

    def detach(self, link: Link, error: ServiceBusError, entity: str) -> None:
        self._let_go(link)
        link.detach(self.refusals.error(error, entity))
        self.touch()

    def heard(self, events: list[Event]) -> None:
        self.handle(events)
        self.touch()

    def touch(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    # -- more than a turn has time for -------------------------------------------------------

    def proceed(self, work: Step) -> None:
        self._input.work = work
        self._fall_behind()

    def _fall_behind(self) -> None:
        if self._input.begin():
            self.service.sliced_work.add(self._go_on)
        self._pause()

    def _go_on(self) -> bool:
        backlog = self._input
        self.now = self.service.clock()
        try:
            more = backlog.go_on(self)
        except Exception:
            # As the transport does with a protocol that fails.
            self._input = InputQueue()
            self.abort()
            if backlog.ended:
                self._end()
            raise
        if backlog.ended and not more:
            self._end()
        self._flush()
        return more

    @property
    def unheard(self) -> bool:
        """Are there frames that were not read?"""
        return self._connection.more

    def listen(self, data: bytes) -> None:
        """Take bytes, and go on with those that came before."""
        self.handle(self._connection.receive_data(data, self._elapsed_ms()))

    # -- the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self.service.settings.write_buffer_max_bytes)
        self.service.gateways.add(self)
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._input.waiting:
            self._input.data.append(data)
            return
        started = perf_counter()
        self._hear(data)
        self.service.turns.observe(CLIENT, perf_counter() - started)

    def _hear(self, data: bytes) -> None:
        self.now = self.service.clock()
        events = self._connection.receive_data(data, self._elapsed_ms())
        self.handle(events)
        if self._connection.more:
            self._fall_behind()
        self._flush()
        if self._reading and (self._overfed() or len(events) > EVENTS_AT_ONCE):
            # Even a peer that is welcome lets the others have their turn.
            self._pause()
            self._loop.call_soon(self._resume)

    def weigh(self) -> None:
        """Tell what is held for the peer, by which it may be the one that is given up."""
        transport = self._transport
        if transport is None:
            return
        core = self._connection
        incoming = core.unfinished_bytes
        if not self._place.known:
            incoming += core.kept_bytes
        if core.usage.unfinished and not self._expecting:
            self._arm()
        unsent = self.waiting_bytes + core.pending_bytes
        self._place.hold(incoming, unsent + self._place.unwritten_bytes(transport))

    def give_up(self, error: ServiceBusError, reason: str) -> None:
        """Let go of all that is held; a peer that reads is told why."""
        transport = self._transport
        if transport is None:
            return
        reads = self._writable and self._place.unwritten_bytes(transport) <= HELD_MIN
        self._transport = None
        self.close(error)
        last_words = self._connection.data_to_send()
        if self._timer is not None:
            self._timer.cancel()
        self.handle(self._connection.receive_eof(self._elapsed_ms()))
        if reads:
            part_from(transport, last_words, str(error), lingers=self._place.known)
        else:
            transport.abort()

    def eof_received(self) -> bool:
        if not self._input.waiting:  # or it comes behind that, when the connection is lost
            self.now = self.service.clock()
            self.handle(self._connection.receive_eof(self._elapsed_ms()))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.now = self.service.clock()
        transport, self._transport = self._transport, None
        if exc is not None and transport is not None and transport is self._place.below:
            self._input.data.append(unread(transport))
            self._fall_behind()
        self._input.ended = True
        if not self._input.waiting:
            self._end()

    def _end(self) -> None:
        """Nothing more comes from the peer, nor is anything left of what came."""
        self.handle(self._connection.receive_eof(self._elapsed_ms()))
        if self._timer is not None:
            self._timer.cancel()
        self._connection.forget()
        self._transactions = None
        self.service.gateways.discard(self)
        self._place.release()

    def pause_writing(self) -> None:
        """The peer does not read: it gets nothing more, and is not listened to either."""
        self._writable = False
        self._pause()
        self.weigh()

    def resume_writing(self) -> None:
        self._writable = True
        self._resume()
        self._wake_receivers()

    def holds_back(self, receiver: ClientReceiver) -> bool:
        waiting = self.promised_bytes + self._connection.out_bytes
        if self._writable and waiting <= self.service.settings.write_buffer_max_bytes:
            return False
        self.held_back[receiver] = None
        return True

    def _wake_receivers(self) -> None:
        """There is room again: let the receivers that were held back have their turn."""
        if self.held_back and self._writable:
            wake_all(self.held_back)

    def _overfed(self) -> bool:
        return (
            self.service.congested
            or self._connection.incoming_unsettled > self.service.settings.incoming_unsettled_max
            or self._connection.out_bytes > self.service.settings.write_buffer_max_bytes
        )

    def _pause(self) -> None:
        """Whoever pauses has _resume() called later, which waits for the end of a congestion."""
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        deaf = self._deaf or self._input.waiting
        if self._reading or deaf or not self._writable or self._transport is None:
            return
        if self._overfed():
            if self.service.congested:
                self.service.when_relieved(self._resume)
            return
        if not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _flush(self) -> None:
        self._flushing = False
        transport = self._transport
        if transport is None:
            return
        data = self._connection.data_to_send()
        if data:
            transport.write(data)
        core = self._connection
        waiting = len(data) + self.waiting_bytes + core.usage.unsent_bytes + core.unfinished_bytes
        watched = self._place.holds or not self._place.known or bool(core.usage.unfinished)
        if watched or waiting > HELD_MIN:
            self.weigh()
        self._wake_receivers()
        if self._connection.closed:
            transport.close()
            # What it does not read it does not get.
            self._loop.call_later(LINGER_S, transport.abort)
            return
        if not self._reading:
            self._resume()

    # -- time --------------------------------------------------------------------------------

    def _elapsed_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def _arm(self) -> None:
        """Wake for heartbeats, time-outs, and tokens that run out."""
        if self._transport is None:
            return
        elapsed_ms = self._elapsed_ms()
        self._expecting = bool(self._connection.usage.unfinished)
        left_ms = self.rights.left_ms(elapsed_ms)
        core = self._connection.next_deadline()
        if core is not None:
            left_ms = min(left_ms, core - elapsed_ms)
        delay_ms = min(max(left_ms, 10), 3_600_000)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self.now = self.service.clock()
        self._timer = None
        self._expire_claims()
        if self._writable and not self._reading:
            self.listen(b"")  # the peer may have spoken: its silence does not count
        self.handle(self._connection.tick(self._elapsed_ms()))
        self._flush()
        if self._transport is not None and not self._connection.closed:
            self._arm()

    # -- rights ------------------------------------------------------------------------------

    def _login(self, event: SaslReceived) -> list[Event]:
        if event.mechanism == "PLAIN":
            try:
                self.rights.log_in(event.initial_response)
            except (Unauthorized, DecodeError) as error:
                self.refusals.note_login(event.mechanism, error)
                return self._connection.sasl_reject()
            self._known()
            self._arm()
        # Everybody else says who they are by a token put to $cbs.
        return self._connection.sasl_accept()

    def _known(self) -> None:
        """The peer has proven who it is."""
        self._connection.trust()
        self._place.log_in()

    def review_claims(self) -> None:
        """Keys were changed: let go of what was proven by a key that is gone."""
        if self.rights.review(self._elapsed_ms()):
            detach_unproven(self, self.links())
            self._arm()

    def _expire_claims(self) -> None:
        if self.rights.expire(self._elapsed_ms()):
            detach_unproven(self, self.links())
        if self.rights.is_overdue(self._elapsed_ms()) and not self._connection.closed:
            waited = self.service.settings.authentication_timeout_ms
            self.close(
                ConnectionForced(f"The connection had no valid token for {waited} milliseconds.")
            )

    # -- closing -----------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Answer what has come, and take nothing more."""
        self._deaf = True
        self._pause()

    def close(self, error: ServiceBusError) -> None:
        """End the connection from our side."""
        self._clean = True
        self._deaf = False
        self._resume()  # the peer's own close is still wanted
        for link in self.links():
            self._let_go(link)
        self._connection.close(self.refusals.error(error, None, self.stranger))
        self._flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- events ------------------------------------------------------------------------------

    def handle(self, events: list[Event]) -> None:
        backlog = self._input
        if backlog.waiting:
            backlog.events.extend(events)
            return
        enough = DECODED.units + DECODED_PER_TURN
        coming = iter(events)
        for event in coming:
            kind = type(event)
            if kind is MessageReceived:
                received = cast(MessageReceived, event)
                if received.link.owner is not None:
                    received.link.owner.received(received.delivery)
            elif kind is Disposed:
                disposed = cast(Disposed, event)
                if disposed.link.owner is not None:
                    disposed.link.owner.disposed(
                        disposed.deliveries, disposed.state, disposed.settled
                    )
            elif kind is CreditChanged:
                link = cast(CreditChanged, event).link
                if link.owner is not None:
                    link.owner.credited()
            else:
                self._handle_rare(event)
            if backlog.waiting or DECODED.units > enough:
                backlog.events.extend(coming)
                if backlog.events:
                    self._fall_behind()
                return

    def _handle_rare(self, event: Event) -> None:
        match event:
            case SaslReceived():
                self.handle(self._login(event))
            case Opened():
                self.refusals = self.refusals.at(event.open.hostname)
                self._arm()
            case LinkAttached():
                self._attached(event.link)
            case LinkDetached():
                self._let_go(event.link)
            case SessionEnded():
                for link in event.session.links:
                    self._let_go(link)
            case Closed():
                self._closed(event)
            case _:
                pass  # a session that began, a sender's own word on its deliveries

    def _attached(self, link: Link) -> None:
        assert isinstance(link, (ReceiverLink, SenderLink))
        if link.closed:
            return  # It ended while its attach waited. Nobody would let go of an owner.
        try:
            self.handle(attach(self, link))
        except ServiceBusError as error:
            link.refuse(self.refusals.error(error, address_of(link), self.stranger))
            if isinstance(error, SecondReceiver):
                for each in link.session.links:
                    self._let_go(each)
                link.session.end(self.refusals.error(error, None))
            self._refused += 1
            if self.stranger and self._refused >= REFUSED_STRANGERS_MAX:
                self.close(ConnectionForced("Too many links were asked for without a token."))

    def _let_go(self, link: Link) -> None:
        owner: Owner | None = link.owner
        link.owner = None
        if owner is not None and owner.entity is not None:
            owner.entity.links.discard(link)
        if isinstance(owner, (ClientReceiver, NodeReceiver, CoordinatorSender)):
            owner.close()

    def _closed(self, event: Closed) -> None:
        held: list[tuple[LoadedFragment, int, bytes]] = []
        for link in self.links():
            if isinstance(link.owner, ClientReceiver):
                held += link.owner.locks()
            self._let_go(link)
        if not (event.clean or self._clean):
            # A connection that breaks loses its locks; an orderly close does not, nor does what
            # a link held that was detached before (R-SETTLE-10).
            self.lose(held)
        self.orphans.clear()

    def _describe(self, fault: ProtocolError) -> str:
        return self.refusals.describe_fault(fault, stranger=self.stranger)

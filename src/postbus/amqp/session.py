"""A session: its links, its windows, and frames saved for the end of a turn (AMQP 2.5)."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, TypeVar

from postbus.amqp.connection_base import ConnectionBase, SessionBase
from postbus.amqp.deliveries import SERIAL_HALF, SERIAL_MASK, DispositionRun, known_in_range
from postbus.amqp.events import LinkAttached, SessionBegun, SessionEnded, SettledBySender
from postbus.amqp.faults import LinkError, ProtocolError, SessionError, WindowViolation
from postbus.amqp.frames.framing import encode_frame
from postbus.amqp.frames.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Composite,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Transfer,
    encode_disposition_frame,
    encode_flow_frame,
)
from postbus.amqp.handles import Handles
from postbus.amqp.link import Link, LinkState
from postbus.amqp.outgoing import Outgoing
from postbus.amqp.receiving import ReceiverLink
from postbus.amqp.sending import SenderLink

LinkEnd = TypeVar("LinkEnd", bound=Link)

# Only the peer's window limits what we send.
_OUTGOING_WINDOW = SERIAL_HALF

# Looked up once, because every frame needs it.
_DETACHING = LinkState.DETACHING


class SessionState(Enum):
    BEGINNING = auto()
    """We began; the peer has not answered yet."""
    MAPPED = auto()
    ENDING = auto()
    """We ended; frames from the peer are dropped until it answers."""
    ENDED = auto()


class Session(SessionBase):
    """One session of a connection. `owner` is free for the owner of the connection."""

    __slots__ = (
        "_confirmations",
        "_dirty",
        "_flow_due",
        "_flows_due",
        "_incoming_left",
        "_incoming_window",
        "_next_incoming_id",
        "_receipts",
        "_reported",
        "_unsettled_bound",
        "channel",
        "connection",
        "handles",
        "incoming_unsettled",
        "incoming_unsettled_bytes",
        "outgoing",
        "owner",
        "remote_channel",
        "state",
    )

    def __init__(self, connection: ConnectionBase, channel: int) -> None:
        limits = connection.limits
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.BEGINNING
        self.owner: Any = None
        self.handles = Handles(connection, limits)
        self.outgoing = Outgoing(channel, self.handles, connection)
        self.incoming_unsettled = 0
        self.incoming_unsettled_bytes = 0
        self._unsettled_bound = 2 * limits.unsettled_incoming_max
        self._next_incoming_id = 0
        self._incoming_window = limits.incoming_window
        self._incoming_left = limits.incoming_window
        # Verdicts on received deliveries, and confirmations for sent ones, until the turn ends.
        self._receipts = DispositionRun()
        self._confirmations = DispositionRun()
        self._flows_due: dict[Link, None] = {}
        self._flow_due = False
        self._dirty = False
        self._reported = False

    @property
    def links(self) -> list[Link]:
        """The links that live or wait for an answer; once the session is gone, the links it had."""
        return list(self.handles.local.values())

    def senders(self) -> list[SenderLink]:
        """The links on which we send."""
        return self.handles.senders()

    def end(self, error: Error | None = None) -> None:
        """End the session and its links. SessionEnded comes when the peer has answered."""
        if self.state in (SessionState.BEGINNING, SessionState.MAPPED):
            self.flush()
            self._send_end(error)

    def fail(self, fault: ProtocolError) -> None:
        """End the session because the peer broke a rule in it."""
        error = self.connection.error_of(fault)
        self.flush()
        self._send_end(error)
        self._reported = True
        self.connection.report(SessionEnded(self, error))

    def _send_end(self, error: Error | None) -> None:
        self.write(End(error))
        self.state = SessionState.ENDING
        self.gone()

    def gone(self) -> None:
        """Release everything that the session holds."""
        self.outgoing.clear()
        for link in self.handles.clear():
            link.gone()
            self.connection.usage.link_count -= 1
        self._receipts.count = 0
        self._confirmations.count = 0
        self._flows_due.clear()
        self._flow_due = False

    # Frames from the peer.

    def begin_frame(self) -> Begin:
        """Return our begin. It is an answer if the peer's begin has come."""
        return Begin(
            self.remote_channel,
            self.outgoing.next_transfer_id,
            self._incoming_window,
            _OUTGOING_WINDOW,
            self.connection.limits.handle_max,
        )

    def on_begin(self, begin: Begin, remote_channel: int) -> None:
        self.remote_channel = remote_channel
        if self.state is not SessionState.BEGINNING:
            return
        self._next_incoming_id = begin.next_outgoing_id
        self.outgoing.begin(begin.incoming_window)
        self.handles.peer_handle_max = begin.handle_max
        self.state = SessionState.MAPPED
        self.connection.report(SessionBegun(self))

    def on_end(self, end: End) -> None:
        if self.state is SessionState.MAPPED:
            self.flush()
            self._send_end(None)
        self.state = SessionState.ENDED
        if not self._reported:
            self.connection.report(SessionEnded(self, end.error))

    def on_attach(self, attach: Attach, size: int) -> None:
        handles = self.handles
        connection = self.connection
        handles.check_free(attach.handle)
        awaited = handles.awaited.pop((attach.name, not attach.role), None)
        if awaited is not None:
            handles.bind(attach.handle, awaited)
            if awaited.on_attach(attach):
                connection.report(LinkAttached(awaited, attach))
            return
        end = ReceiverLink if attach.role is ROLE_SENDER else SenderLink
        link = end(self, handles.allocate(attach.handle), attach, LinkState.PENDING)
        handles.local[link.handle] = link
        handles.bind(attach.handle, link)
        connection.usage.link_count += 1
        link.hold(attach, size)
        limits = connection.limits
        if (
            connection.usage.link_count > limits.links_max
            or connection.usage.pending_links > limits.pending_links_max
            or connection.usage.attach_bytes > limits.attach_bytes_max
        ):
            text = "The connection has as many links as it may have."
            link.refuse(connection.error_of(LinkError(text, "amqp:resource-limit-exceeded")))
        else:
            connection.report(LinkAttached(link, attach))

    def on_detach(self, detach: Detach) -> None:
        link = self.handles.link_at(detach.handle)
        if link is None:
            self.handles.unbind(detach.handle)
        else:
            link.on_detach(detach)

    def on_message(
        self,
        handle: int,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        body: bytes,
        start: int,
    ) -> bool:
        """Take a message that came in one frame; return False if it needs on_transfer()."""
        link = self.handles.remote.get(handle)
        if not isinstance(link, ReceiverLink) or self.incoming_unsettled >= self._unsettled_bound:
            return False
        if not link.on_message(delivery_id, tag, message_format, body, start):
            return False
        self._count_transfer()
        return True

    def _count_transfer(self) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) & SERIAL_MASK
        self._incoming_left -= 1
        if self._incoming_left * 2 <= self._incoming_window and not self._flow_due:
            self.flow_due(None)

    def on_transfer(self, transfer: Transfer, body: bytes, start: int) -> None:
        """Take a transfer frame. The window is not enforced (wire §1.3). The number of unsettled
        deliveries is, at twice the number where the owner should stop reading."""
        self._count_transfer()
        if self.incoming_unsettled >= self._unsettled_bound:
            raise WindowViolation(f"{self.incoming_unsettled} deliveries are not settled yet")
        link = self.handles.link_at(transfer.handle)
        if link is None or link.state is _DETACHING:
            return
        if isinstance(link, ReceiverLink):
            link.on_transfer(transfer, body, start)
        else:
            text = "A transfer came on a link whose receiver is the peer."
            link.fail(LinkError(text, "amqp:not-allowed"))

    def on_flow(self, flow: Flow) -> None:
        outgoing = self.outgoing
        opened = outgoing.on_window(flow.next_incoming_id, flow.incoming_window)
        if self._flows_due and not outgoing.unsent:
            self._touch()
        handle = flow.handle
        link = None if handle is None else self.handles.link_at(handle)
        if link is not None:
            if link.state is not _DETACHING:
                link.on_flow(flow)
        elif handle is None and flow.echo:
            self.flow_due(None)
        if opened:
            outgoing.report_room()

    def on_disposition(self, disposition: Disposition) -> None:
        first = disposition.first
        last = disposition.last
        if last is not None and (last - first) & SERIAL_MASK > SERIAL_HALF:
            text = f"a disposition from delivery {first} to {last}, which comes before it"
            raise SessionError(text, "amqp:invalid-field")
        if disposition.role is ROLE_RECEIVER:
            self.outgoing.on_disposition(first, last, disposition.state, disposition.settled)
        elif disposition.settled:
            self._on_settled(first, first if last is None else last, disposition.state)

    def _on_settled(self, first: int, last: int, state: DeliveryState | None) -> None:
        """Forget deliveries that their sender has settled."""
        for link in self.handles.local.values():
            if isinstance(link, ReceiverLink) and link.unsettled:
                known = known_in_range(link.unsettled, first, last)
                deliveries = [link.unsettled[delivery_id] for delivery_id in known]
                for delivery in deliveries:
                    link.forget(delivery)
                if deliveries:
                    self.connection.report(SettledBySender(link, deliveries, state))

    # Frames to the peer.

    def write(self, performative: Composite) -> None:
        """Write a frame of this session."""
        self.connection.write(encode_frame(self.channel, performative))

    def dispose(
        self, role: bool, delivery_id: int, state: DeliveryState | None, settled: bool
    ) -> None:
        """Send a verdict by the end of the turn, in one frame with equal verdicts before it."""
        run = self._receipts if role else self._confirmations
        if not run.extend(delivery_id, state, settled):
            self._write_run(run, role)
            run.extend(delivery_id, state, settled)
        if not self._dirty:
            self._touch()

    def flow_due(self, link: Link | None) -> None:
        """Send a flow for a link, or for the session alone, by the end of the turn."""
        if link is None:
            self._flow_due = True
        else:
            self._flows_due[link] = None
        self._touch()

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.connection.dirty.append(self)

    def flush(self) -> None:
        """Write the saved dispositions and flows."""
        self._dirty = False
        if self._receipts.count:
            self._write_run(self._receipts, ROLE_RECEIVER)
        if self._confirmations.count:
            self._write_run(self._confirmations, ROLE_SENDER)
        if self._flows_due:
            due, self._flows_due = self._flows_due, {}
            for link in due:
                if isinstance(link, SenderLink) and self.outgoing.unsent:
                    # Our delivery-count is ahead of the wire until the unsent deliveries are sent.
                    self._flows_due[link] = None
                else:
                    self.write_flow(link)
        if self._flow_due:
            self.write_flow(None)

    def _write_run(self, run: DispositionRun, role: bool) -> None:
        last = (run.next - 1) & SERIAL_MASK
        self.connection.write(
            encode_disposition_frame(self.channel, role, run.first, last, run.settled, run.state)
        )
        run.count = 0

    def write_flow(self, link: Link | None) -> None:
        """Write a flow for a link, or for the session alone. Both renew our window."""
        self._incoming_left = self._incoming_window
        self._flow_due = False
        handle = delivery_count = credit = None
        drain = False
        if link is not None:
            handle = link.handle
            delivery_count, credit, drain = link.flow_fields()
        self.connection.write(
            encode_flow_frame(
                self.channel,
                self._next_incoming_id,
                self._incoming_window,
                self.outgoing.next_transfer_id,
                _OUTGOING_WINDOW,
                handle,
                delivery_count,
                credit,
                drain=drain,
            )
        )

    # Links.

    def attach(self, end: type[LinkEnd], attach: Attach) -> LinkEnd:
        """Attach a link of our own: SenderLink or ReceiverLink. Sets the handle and the role.

        LinkAttached comes when the peer has accepted the link, LinkDetached when it has refused it.
        """
        if self.state not in (SessionState.BEGINNING, SessionState.MAPPED):
            raise ValueError("the session has ended")
        handles = self.handles
        attach.handle = handles.allocate()
        attach.role = end.wire_role
        link = end(self, attach.handle, attach, LinkState.ATTACHING)
        attach.initial_delivery_count = link.initial_delivery_count()
        handles.local[link.handle] = link
        handles.awaited[link.name, attach.role] = link
        self.connection.usage.link_count += 1
        self.write(attach)
        return link

    def release_handle(self, link: Link) -> None:
        """Free our handle of a link that we have detached."""
        self.handles.release_local(link)
        self._flows_due.pop(link, None)

    def forget_link(self, link: Link, answered: bool) -> None:
        """Drop a link that is gone. Unless `answered`, the peer's detach has not come yet."""
        self.release_handle(link)
        self.connection.usage.link_count -= 1
        if answered:
            self.handles.unbind(link.remote_handle)
        else:
            self.handles.remote[link.remote_handle] = None
        link.gone()

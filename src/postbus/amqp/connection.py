"""A connection: open and close, frames, time-outs and violations (AMQP 2.4).

This module does no I/O and reads no clock. The owner passes in received bytes and the time,
handles the events, and writes the bytes that data_to_send() returns, once a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, cast

from postbus.amqp.channels import Channels
from postbus.amqp.connection_base import ConnectionBase, Describe, plainly
from postbus.amqp.events import Closed, Event, Opened
from postbus.amqp.faults import (
    DecodeError,
    FramingError,
    IdleTimeout,
    LinkError,
    NotAllowed,
    ProtocolError,
)
from postbus.amqp.frames.framing import (
    EMPTY_FRAME,
    FRAME_AMQP,
    FRAME_SIZE_MIN,
    FrameReader,
    encode_frame,
)
from postbus.amqp.frames.performatives import (
    Begin,
    Close,
    Composite,
    Error,
    Open,
    decode_performative,
)
from postbus.amqp.handshake import ClientHandshake, ServerHandshake
from postbus.amqp.heartbeat import Heartbeat
from postbus.amqp.limits import Limits
from postbus.amqp.session import Session

# A server offers these (wire §1.2). The .NET SDK gives up unless it finds MSSBCBS, the mechanism of
# Service Bus without credentials: tokens follow on the $cbs link.
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


class ConnectionState(Enum):
    HANDSHAKE = auto()
    """Protocol headers and SASL."""
    OPENING = auto()
    """The handshake is done; the peer's open has not come yet."""
    OPEN = auto()
    CLOSING = auto()
    """We closed; frames from the peer are dropped until it answers."""
    CLOSED = auto()
    """The transport can be closed once data_to_send() is written."""


# Memory of an empty session or link, at most; and how many times its frame size a decoded attach
# takes. Measured with maps of the shortest possible values.
_OBJECT_BYTES = 4_096
_DECODED_TIMES = 16
# Looked up once, because every frame needs it.
_OPEN = ConnectionState.OPEN


class Connection(ConnectionBase):
    """One AMQP connection, as a server or as a client.

    A server waits for its peer; a client calls open(). receive_data() and tick() never raise. A
    violation by the peer ends the link, the session or the connection, and an event reports it.
    """

    __slots__ = (
        "_channels",
        "_closed_by_owner",
        "_deadline",
        "_deaf",
        "_handshake",
        "_heartbeat",
        "_open_frame",
        "_reader",
        "_reported",
        "more",
        "peer",
        "server",
        "state",
    )

    def __init__(
        self,
        limits: Limits,
        *,
        container_id: str,
        server: bool,
        now: int,
        hostname: str | None = None,
        mechanisms: Sequence[str] = MECHANISMS,
        unoffered: Sequence[str] = (),
        initial_response: bytes = b"",
        properties: dict[Any, Any] | None = None,
        describe: Describe | None = None,
    ) -> None:
        """A server offers `mechanisms`, and also accepts the mechanisms in `unoffered`. A client
        uses the first of `mechanisms`; without any it skips SASL."""
        super().__init__(limits, now, describe)
        self.server = server
        self.state = ConnectionState.HANDSHAKE
        self.peer: Open | None = None
        self._open_frame = Open(
            container_id,
            hostname,
            limits.max_frame_size,
            limits.channel_max,
            limits.idle_timeout_ms or None,
            properties=properties,
        )
        self._reader = FrameReader(limits.max_frame_size)
        if server and limits.stranger_frame_size < limits.max_frame_size:
            self._reader.max_frame_size = limits.stranger_frame_size
            self._reader.bound = "allowed before login"
        self._handshake: ServerHandshake | ClientHandshake | None
        if server:
            self._handshake = ServerHandshake(self._reader, mechanisms, unoffered)
        else:
            mechanism = mechanisms[0] if mechanisms else None
            self._handshake = ClientHandshake(self._reader, mechanism, initial_response, hostname)
        self._heartbeat = Heartbeat(limits.idle_timeout_ms, now)
        # The latest time for the peer's open; after our close, for its answer.
        self._deadline: int | None = now + limits.open_timeout_ms
        self._channels = Channels(limits.channel_max)
        self._closed_by_owner = False
        self._reported = False
        self._deaf = False
        self.more = False
        """Frames may have come that were not read: receive_data() reads on, also without data."""

    # State that the owner reads.

    @property
    def closed(self) -> bool:
        """Whether the transport can be closed once data_to_send() is written."""
        return self.state is ConnectionState.CLOSED

    @property
    def sessions(self) -> list[Session]:
        """The living sessions; once the connection is gone, the sessions it had."""
        return list(self._channels.local.values())

    @property
    def incoming_unsettled(self) -> int:
        """Received deliveries that are not settled. Past limits.unsettled_incoming_max the owner
        should stop reading."""
        return sum(session.incoming_unsettled for session in self._channels.local.values())

    @property
    def incoming_unsettled_bytes(self) -> int:
        """The size of these deliveries."""
        return sum(session.incoming_unsettled_bytes for session in self._channels.local.values())

    @property
    def unfinished_bytes(self) -> int:
        """Received bytes of frames and deliveries that are incomplete."""
        return self._reader.buffered + self.usage.assembling_bytes

    @property
    def kept_bytes(self) -> int:
        """About how much memory sessions and links take, besides deliveries. The owner bounds it
        for peers that have not logged in."""
        usage = self.usage
        objects = len(self._channels.local) + usage.handle_count
        return objects * _OBJECT_BYTES + usage.attach_bytes * _DECODED_TIMES

    def next_deadline(self) -> int | None:
        """Return when tick() has something to do, if nothing happens before."""
        if self.state is ConnectionState.CLOSED:
            return None
        deadlines = [] if self._deadline is None else [self._deadline]
        if self.state is ConnectionState.OPEN:
            deadlines += self._heartbeat.deadlines()
            for since in self.usage.unfinished.values():
                deadlines.append(since + self.limits.unfinished_timeout_ms)
                break
        return min(deadlines, default=None)

    # Input.

    def take_events(self) -> list[Event]:
        """Return all events, and forget them."""
        events = self.events
        self.events = []
        self.turn += 1
        return cast("list[Event]", events)

    def receive_data(self, data: bytes, now: int) -> list[Event]:
        """Take bytes from the peer."""
        self.now = now
        self._heartbeat.heard_at = now
        self.more = False
        if not self._deaf:
            self._reader.feed(data)
            self._advance()
        return self.take_events()

    def receive_eof(self, now: int) -> list[Event]:
        """Note that the peer has closed its side of the transport."""
        self.now = now
        if self.state is not ConnectionState.CLOSED:
            self._finish(None, clean=self._closed_by_owner)
        return self.take_events()

    def tick(self, now: int) -> list[Event]:
        """Send a heartbeat or give up on a silent peer, if that is due. Safe at any time."""
        self.now = now
        if self.state is ConnectionState.CLOSED:
            return self.take_events()
        if self._deadline is not None and now >= self._deadline:
            if self.state is ConnectionState.CLOSING:
                self._finish(None, clean=self._closed_by_owner)
            else:
                wait_ms = self.limits.open_timeout_ms
                text = f"The connection was not opened within {wait_ms} ms."
                self._fail(ProtocolError(text, "amqp:connection:forced"))
        elif self.state is ConnectionState.OPEN:
            self._end_unfinished(now)
            if self._heartbeat.is_peer_silent(now):
                wait_ms = 2 * self.limits.idle_timeout_ms
                self._fail(IdleTimeout(f"Nothing came from the peer for {wait_ms} ms."))
            elif self._heartbeat.is_due(now) and not self.out:
                self.write(EMPTY_FRAME)
        return self.take_events()

    def _end_unfinished(self, now: int) -> None:
        """Detach links whose deliveries have been incomplete for too long."""
        wait_ms = self.limits.unfinished_timeout_ms
        while self.usage.unfinished:
            link, since = next(iter(self.usage.unfinished.items()))
            if now - since < wait_ms:
                return
            del self.usage.unfinished[link]
            text = f"A message was not whole {wait_ms} ms after its first frame, nor did it go on."
            link.fail(LinkError(text, "com.microsoft:timeout"))

    def trust(self) -> None:
        """Allow frames of the agreed size: the peer has proven its identity."""
        self._reader.max_frame_size = self.limits.max_frame_size
        self._reader.bound = "agreed"

    def sasl_accept(self) -> list[Event]:
        """Let the peer in. Returns the events of everything it has sent since."""
        handshake = self._handshake
        if isinstance(handshake, ServerHandshake) and handshake.deciding:
            handshake.accept()
            self._advance()
        return self.take_events()

    def sasl_reject(self) -> list[Event]:
        """Refuse the peer's login."""
        handshake = self._handshake
        if isinstance(handshake, ServerHandshake) and handshake.deciding:
            handshake.reject()
            text = "The login was turned away."
            self._abort(handshake, ProtocolError(text, "amqp:unauthorized-access"))
        return self.take_events()

    # Output.

    def data_to_send(self) -> bytes:
        """Return all output since the last call. Saved dispositions and flows are written now."""
        if self.dirty:
            self.flush()
        handshake = self._handshake
        if handshake is not None:
            greeting = b"".join(handshake.out)
            handshake.out.clear()
            if not handshake.frames_may_follow:
                return greeting
            self.out.insert(0, greeting)
        if not self.out:
            return b""
        self._heartbeat.sent_at = self.now
        return self.take_output()

    def open(self) -> None:
        """Start as a client. begin() may follow at once."""
        self.write(encode_frame(0, self._open_frame))

    def begin(self) -> Session:
        """Begin a session as a client. SessionBegun comes when the peer has answered."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            raise ValueError("the connection is closed")
        session = self._channels.begin(self)
        session.write(session.begin_frame())
        return session

    def close(self, error: Error | None = None) -> None:
        """Close in good order. Closed comes when the peer has answered.

        SASL has no close frame, so during the handshake the connection is closed at once.
        """
        self._closed_by_owner = True
        if self.state in (ConnectionState.OPENING, ConnectionState.OPEN):
            self._send_close(error)
        elif self.state is ConnectionState.HANDSHAKE:
            self._handshake = None
            self.take_output()
            self._reported = True
            self._finish(None, clean=True)

    def forget(self) -> None:
        """Drop everything, once the owner has been told that the connection is closed.

        This breaks all reference cycles, so the connection is freed without the garbage collector.
        """
        self.take_events()
        self.dirty.clear()
        self.out.clear()
        self._channels.forget()
        self._handshake = None
        self.describe = plainly

    # Frames.

    def _advance(self) -> None:
        """Handle everything that has come completely."""
        if self._handshake is not None and not self._shake_hands(self._handshake):
            return
        while not self._deaf:
            try:
                self._read_frames()
                return
            except ProtocolError as fault:
                if self.state is ConnectionState.CLOSING:
                    # The start of the next frame is unknown now.
                    self._stop_reading()
                else:
                    self._fail(fault)

    def _read_frames(self) -> None:
        next_frame = self._reader.next_frame
        on_frame = self._channels.on_frame
        left = self.limits.frames_at_once
        while left and (frame := next_frame()) is not None:
            left -= 1
            kind, channel, body = frame
            if self.state is _OPEN and kind == FRAME_AMQP and body:
                performative = on_frame(channel, body)
                if performative is None:
                    continue
                self._on_own_frame(channel, performative)
            else:
                self._on_rare_frame(kind, channel, body)
            if self.state is ConnectionState.CLOSED:
                return
        self.more = not left

    def _shake_hands(self, handshake: ServerHandshake | ClientHandshake) -> bool:
        """Continue the handshake; return whether frames come next."""
        try:
            received = handshake.advance()
            # While the owner decides, at most one frame is buffered.
            if self._reader.buffered > self.limits.max_frame_size and not handshake.done:
                raise FramingError("too much came before SASL was done")
        except ProtocolError as fault:
            self._abort(handshake, fault)
            return False
        if received is not None:
            self.report(received)
        if handshake.done:
            self.out[:0] = handshake.out
            self._handshake = None
            self.state = ConnectionState.OPENING
        return handshake.done

    def _on_rare_frame(self, kind: int, channel: int, body: bytes) -> None:
        if kind != FRAME_AMQP:
            raise FramingError(f"a frame of kind {kind} came after the handshake")
        if self.state is ConnectionState.CLOSING:
            self._on_late_frame(body)
        elif body and self.state is ConnectionState.OPENING:
            performative, _ = decode_performative(body)
            if not isinstance(performative, Open) or channel != 0:
                raise NotAllowed(f"{performative.NAME} came on channel {channel} before open")
            self._on_open(performative)

    def _on_own_frame(self, channel: int, performative: Composite) -> None:
        if isinstance(performative, Begin):
            self._channels.on_begin(self, channel, performative)
        elif isinstance(performative, Close):
            self.flush()
            self.write(encode_frame(0, Close()))
            self._finish(performative.error, clean=True)
        else:
            raise NotAllowed(f"{performative.NAME} came on channel {channel} out of turn")

    def _on_late_frame(self, body: bytes) -> None:
        """Drop a frame that came after our close, unless it is the answer."""
        try:
            performative, _ = decode_performative(body)
        except DecodeError:
            return
        if isinstance(performative, Close):
            self._finish(performative.error, clean=self._closed_by_owner)

    def _on_open(self, peer: Open) -> None:
        if peer.max_frame_size < FRAME_SIZE_MIN:
            raise ProtocolError(
                f"max-frame-size {peer.max_frame_size}, {FRAME_SIZE_MIN} is the least",
                "amqp:invalid-field",
            )
        idle_timeout_ms = peer.idle_time_out or 0
        if 0 < idle_timeout_ms < self.limits.idle_timeout_min_ms:
            # AMQP 2.4.5: a time-out that is too short is refused, not ignored.
            least = self.limits.idle_timeout_min_ms
            raise NotAllowed(f"idle-time-out {idle_timeout_ms}, {least} is the least")
        self.peer = peer
        self.outgoing_frame_max = min(peer.max_frame_size, self.limits.max_frame_size)
        self._channels.peer_channel_max = peer.channel_max
        self._heartbeat.promise(idle_timeout_ms)
        self._heartbeat.sent_at = self.now
        if self.server:
            self.write(encode_frame(0, self._open_frame))
        self.state = ConnectionState.OPEN
        self._deadline = None
        self.report(Opened(peer))

    # The end.

    def _abort(self, handshake: ServerHandshake | ClientHandshake, fault: ProtocolError) -> None:
        """Give up during the handshake. Its remaining output is still written."""
        self.out = handshake.out
        self.out_bytes = 0
        self._handshake = None
        self._finish(self.error_of(fault), clean=False)

    def _fail(self, fault: ProtocolError) -> None:
        """Close because the peer broke a rule."""
        if self._handshake is not None:
            self._abort(self._handshake, fault)
            return
        error = self.error_of(fault)
        self._send_close(error)
        self._reported = True
        self.report(Closed(error, clean=False))

    def _send_close(self, error: Error | None) -> None:
        # The owner's verdicts go out before the close.
        self.flush()
        if self.server and self.state is ConnectionState.OPENING:
            # AMQP 2.4.1: a side must open before it closes.
            self.write(encode_frame(0, self._open_frame))
        self.write(encode_frame(0, Close(error)))
        self.state = ConnectionState.CLOSING
        self._deadline = self.now + self.limits.close_timeout_ms
        self._channels.clear()

    def _finish(self, error: Error | None, clean: bool) -> None:
        """Enter the state CLOSED, and report that if it was not reported yet."""
        self.state = ConnectionState.CLOSED
        self._deadline = None
        self._stop_reading()
        self._channels.clear()
        if not self._reported:
            self._reported = True
            self.report(Closed(error, clean))

    def _stop_reading(self) -> None:
        self._deaf = True
        self._reader = FrameReader(self.limits.max_frame_size)

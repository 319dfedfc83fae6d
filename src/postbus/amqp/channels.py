"""The channels of a connection: they route each frame to its session (AMQP 2.5.1)."""

from postbus.amqp.connection_base import ConnectionBase
from postbus.amqp.faults import DecodeError, FramingError, NotAllowed, ProtocolError
from postbus.amqp.frames.performatives import (
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Flow,
    Transfer,
    decode_performative,
)
from postbus.amqp.frames.readers import MORE, SETTLED, read_transfer
from postbus.amqp.session import Session, SessionState

# Looked up once, because every frame needs it.
_MAPPED = SessionState.MAPPED
_TRANSFER = b"\x00\x53\x14"
# Performatives that are ignored on a channel whose session the peer has ended: the Python SDK
# detaches the links of `$management` there. An attach is an error, because it needs an answer.
_LATE = (Transfer, Disposition, Flow, Detach, End)


class Channels:
    """The sessions of a connection, by our channel number and by the peer's."""

    __slots__ = ("_channel_max", "_ended", "_remote", "local", "peer_channel_max")

    def __init__(self, channel_max: int) -> None:
        self._channel_max = channel_max
        self.local: dict[int, Session] = {}
        self._remote: dict[int, Session] = {}
        # Channels of the peer whose sessions have ended.
        self._ended: set[int] = set()
        self.peer_channel_max = channel_max

    def on_frame(self, channel: int, body: bytes) -> Composite | None:
        """Give a frame to its session, or return the performative if it is for the connection.

        A violation ends only the session it happens in, where the protocol allows that.
        """
        session = self._remote.get(channel)
        if session is None:
            performative = decode_performative(body)[0]
            late = channel in self._ended and isinstance(performative, _LATE)
            return None if late else performative
        if session.state is not _MAPPED:
            return self._on_late_frame(channel, session, body)
        try:
            if self._took_message(session, body):
                return None
            performative, start = decode_performative(body)
            if isinstance(performative, Transfer):
                session.on_transfer(performative, body, start)
            elif isinstance(performative, Disposition):
                session.on_disposition(performative)
            elif isinstance(performative, Flow):
                session.on_flow(performative)
            elif isinstance(performative, Attach):
                session.on_attach(performative, len(body))
            elif isinstance(performative, Detach):
                session.on_detach(performative)
            elif isinstance(performative, End):
                self._on_end(channel, session, performative)
            else:
                return performative
        except ProtocolError as fault:
            if fault.scope == "connection" and not isinstance(fault, DecodeError):
                raise
            session.fail(fault)
        return None

    def _took_message(self, session: Session, body: bytes) -> bool:
        """Take a frame that is a whole unsettled message; return whether it was one.

        Nearly all frames are. Decoding such a frame as a performative would cost more.
        """
        if body[:3] != _TRANSFER:
            return False
        handle, delivery_id, tag, message_format, bits, start = read_transfer(body)
        if start == 0 or bits & (SETTLED | MORE) or delivery_id < 0 or tag is None:
            return False
        return session.on_message(handle, delivery_id, tag, max(message_format, 0), body, start)

    def _on_late_frame(self, channel: int, session: Session, body: bytes) -> Composite | None:
        """Drop a frame of a session that we have ended, unless it is the peer's end."""
        try:
            performative, _ = decode_performative(body)
        except DecodeError:
            return None
        if isinstance(performative, End):
            self._on_end(channel, session, performative)
        elif isinstance(performative, Close):
            return performative
        return None

    def _on_end(self, channel: int, session: Session, end: End) -> None:
        session.on_end(end)
        del self.local[session.channel]
        del self._remote[channel]
        self._ended.add(channel)

    def on_begin(self, connection: ConnectionBase, channel: int, begin: Begin) -> None:
        """Begin a session for the peer, or take the peer's answer to our begin."""
        if channel > self._channel_max:
            # AMQP 2.7.1 demands that the connection is closed.
            raise FramingError(f"channel {channel}, {self._channel_max} is the highest")
        if channel in self._remote:
            raise NotAllowed(f"channel {channel} has a session already")
        if begin.remote_channel is None:
            session = self.begin(connection, channel)
            session.remote_channel = channel
            session.write(session.begin_frame())
        else:
            awaited = self.local.get(begin.remote_channel)
            if awaited is None or awaited.remote_channel is not None:
                raise NotAllowed(f"no session was begun on channel {begin.remote_channel}")
            session = awaited
        self._remote[channel] = session
        self._ended.discard(channel)
        session.on_begin(begin, channel)

    def begin(self, connection: ConnectionBase, wanted: int = 0) -> Session:
        """Create a session on a free channel of ours: the wanted channel if possible."""
        local = self.local
        channel = wanted
        if channel in local or channel > self.peer_channel_max:
            channel = next(number for number in range(len(local) + 1) if number not in local)
        if channel > self.peer_channel_max:
            raise ProtocolError(
                f"no more than {self.peer_channel_max + 1} sessions fit into the connection",
                "amqp:resource-limit-exceeded",
            )
        session = Session(connection, channel)
        local[channel] = session
        return session

    def clear(self) -> None:
        """End all sessions with the connection. The owner can still look at them."""
        for session in self.local.values():
            if session.state in (SessionState.BEGINNING, SessionState.MAPPED):
                session.gone()
            session.state = SessionState.ENDED
        self._remote.clear()

    def forget(self) -> None:
        """Drop the sessions and their links."""
        for session in self.local.values():
            session.handles.local.clear()
        self.local.clear()

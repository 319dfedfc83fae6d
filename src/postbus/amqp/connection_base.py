"""What a connection shares with its sessions and links: bounds, time, frames and events."""

from abc import abstractmethod
from collections.abc import Callable

from postbus.amqp.faults import ProtocolError
from postbus.amqp.frames.framing import FRAME_SIZE_MIN
from postbus.amqp.frames.outcomes import Error
from postbus.amqp.limits import Limits

Describe = Callable[[ProtocolError], str]
"""Returns the text that a peer is told of its violation. An owner may add a reference to its log.
"""


def plainly(fault: ProtocolError) -> str:
    return fault.text


# Sessions and links know their connection. It calls them through these two classes, so that this
# module need not know them.


class SessionBase:
    """The part of a session that its connection uses."""

    __slots__ = ()

    @abstractmethod
    def flush(self) -> None:
        """Write the saved dispositions and flows."""


class LinkBase:
    """The part of a link that its connection uses."""

    __slots__ = ()

    @abstractmethod
    def fail(self, fault: ProtocolError) -> None:
        """Detach the link because the peer broke a rule on it."""


class Usage:
    """How much of its limits a connection uses at the moment."""

    __slots__ = (
        "assembling_bytes",
        "attach_bytes",
        "handle_count",
        "link_count",
        "pending_links",
        "unfinished",
        "unsent_bytes",
    )

    def __init__(self) -> None:
        # Deliveries that are incomplete, or wait for their link to be accepted.
        self.assembling_bytes = 0
        # Attach frames of the present links.
        self.attach_bytes = 0
        # Link handles of the peer that are in use on the wire.
        self.handle_count = 0
        self.link_count = 0
        self.pending_links = 0
        # Links with an incomplete delivery, and when that began or last made progress. The link
        # that has waited longest comes first.
        self.unfinished: dict[LinkBase, int] = {}
        # Deliveries that wait for the peer's window.
        self.unsent_bytes = 0


class ConnectionBase:
    """The part of a connection that its sessions and links use.

    `now` is the time of the call under way. `events` are of the classes in events.py. `dirty` lists
    the sessions that have saved dispositions or flows for the end of the turn. `turn` changes when
    the owner takes the events, so a link can tell whether it has already reported in this turn.
    """

    __slots__ = (
        "describe",
        "dirty",
        "events",
        "limits",
        "now",
        "out",
        "out_bytes",
        "outgoing_frame_max",
        "turn",
        "usage",
    )

    def __init__(self, limits: Limits, now: int, describe: Describe | None) -> None:
        self.limits = limits
        self.now = now
        self.describe = describe or plainly
        self.usage = Usage()
        self.events: list[object] = []
        self.turn = 0
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.dirty: list[SessionBase] = []
        # AMQP 2.4.1: no larger frame is written before the peer has announced its maximum.
        self.outgoing_frame_max = FRAME_SIZE_MIN

    @property
    def pending_bytes(self) -> int:
        """Output that waits to be taken, or for the peer's window. Past some bound of its own, the
        owner should neither send nor read."""
        return self.out_bytes + self.usage.unsent_bytes

    def write(self, frame: bytes) -> None:
        """Add a frame to the output."""
        self.out.append(frame)
        self.out_bytes += len(frame)

    def error_of(self, fault: ProtocolError) -> Error:
        """Return the error that tells the peer of its violation."""
        return Error(fault.condition, self.describe(fault))

    def report(self, event: object) -> None:
        """Add an event. The owner gets it when its call returns."""
        self.events.append(event)

    def flush(self) -> None:
        """Write the dispositions and flows that sessions have saved."""
        dirty = self.dirty
        self.dirty = []
        for session in dirty:
            session.flush()

    def take_output(self) -> bytes:
        """Return all output in one piece, and forget it."""
        data = b"".join(self.out)
        self.out.clear()
        self.out_bytes = 0
        return data

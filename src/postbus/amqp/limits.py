"""How much one peer may ask of us, and how much of that it uses.

Every buffer and table of a connection is bounded by one of these numbers before it is filled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postbus.amqp.link import Link


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one connection; the first six are told to the peer."""

    max_frame_size: int = 65_536
    """Largest frame we take, and the largest we send whatever the peer allows."""

    stranger_frame_size: int = 65_536
    """Largest frame we take of a peer that the owner has not called trusted."""

    channel_max: int = 255
    """Highest channel number: one less than the sessions a connection may hold."""

    handle_max: int = 1023
    """Highest link handle: one less than the links a session may hold."""

    idle_timeout_ms: int = 240_000
    """Announced idle time-out; a peer silent for twice as long is cut off (AMQP 2.4.5)."""

    incoming_window: int = 5000
    """Transfer frames a session takes before it needs a new window; renewed at half."""

    message_size_max: int = 1_048_576
    """Largest message a link takes unless it is accepted with its own bound."""

    unsettled_incoming_max: int = 5000
    """Deliveries of one session that may wait for our settlement; the session is ended at
    twice as many. In between it is the owner's turn to stop reading."""

    unsettled_outgoing_max: int = 2048
    """Deliveries of one session that may wait for the peer's settlement: the Node SDK keeps a
    ring of that size (wire §10.25)."""

    links_max: int = 4096
    """Links of the whole connection; a further one is refused."""

    pending_links_max: int = 256
    """Links of the whole connection that wait for the owner's accept() or refuse()."""

    attach_bytes_max: int = 4_194_304
    """Bytes of the attach frames whose contents the connection's links keep."""

    early_deliveries_max: int = 64
    """Deliveries kept for a link the owner has not accepted yet."""

    assembling_bytes_max: int = 67_108_864
    """Bytes of unfinished deliveries, and of those kept for links not accepted yet."""

    unfinished_timeout_ms: int = 120_000
    """How long after its first frame a delivery must be whole, or have brought this many bytes:"""

    progress_bytes: int = 1_048_576
    """A large message on a slow line may take as long as it takes, if only it goes on."""

    idle_timeout_min_ms: int = 100
    """Shortest idle time-out a peer may ask of us; each half of it costs a heartbeat."""

    frames_at_once: int = 1 << 30
    """Frames that are read by one call; `Connection.more` says that there may be more."""

    open_timeout_ms: int = 20_000
    """SASL and open must be done by then."""

    close_timeout_ms: int = 5_000
    """How long the answer to our close is waited for."""


class Usage:
    """What one connection holds at the moment of what its limits bound."""

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
        # Deliveries that are not complete, or wait for their link to be accepted.
        self.assembling_bytes = 0
        # Attach frames of the links there are.
        self.attach_bytes = 0
        # Link handles of the peer that are in use on the wire.
        self.handle_count = 0
        self.link_count = 0
        self.pending_links = 0
        # Links with a delivery that is not complete, and when it began or went on: the one that
        # has waited for longest comes first.
        self.unfinished: dict[Link, int] = {}
        # Deliveries that wait for the peer's window.
        self.unsent_bytes = 0

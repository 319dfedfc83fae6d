"""The bounds of a connection.

Every buffer and table of a connection is checked against one of these numbers before it grows.
`Usage` in connection_base.py counts how much of them is used.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one connection. The peer is told the frame size, the highest channel and
    handle, the idle time-out, the incoming window and the message size."""

    max_frame_size: int = 65_536
    """Largest frame that we accept, and the largest that we send even if the peer allows more."""

    stranger_frame_size: int = 65_536
    """Largest frame that we accept from a peer before the owner calls trust()."""

    channel_max: int = 255
    """Highest channel number: a connection may have one session more."""

    handle_max: int = 1023
    """Highest link handle: a session may have one link more."""

    idle_timeout_ms: int = 240_000
    """Announced idle time-out. A peer that is silent for twice as long is cut off (AMQP 2.4.5)."""

    incoming_window: int = 5000
    """Transfer frames that a session accepts before it needs a new window; renewed at half."""

    message_size_max: int = 1_048_576
    """Largest message that a link accepts, unless the owner accepts the link with another bound."""

    unsettled_incoming_max: int = 5000
    """Deliveries of one session that may wait for our settlement. The owner should stop reading
    there; at twice as many the session is ended."""

    unsettled_outgoing_max: int = 2048
    """Deliveries of one session that may wait for the peer's settlement. The Node SDK keeps a ring
    of that size (wire §10.25)."""

    links_max: int = 4096
    """Links of the whole connection. Further links are refused."""

    pending_links_max: int = 256
    """Links of the whole connection that wait for the owner's accept() or refuse()."""

    attach_bytes_max: int = 4_194_304
    """Bytes of the attach frames whose contents the connection's links keep."""

    early_deliveries_max: int = 64
    """Deliveries kept for a link that the owner has not accepted yet."""

    assembling_bytes_max: int = 67_108_864
    """Bytes of incomplete deliveries, and of deliveries kept for links that are not accepted yet.
    """

    unfinished_timeout_ms: int = 120_000
    """A delivery must be complete, or have grown by `progress_bytes`, within this time."""

    progress_bytes: int = 1_048_576
    """Growth that starts the time-out anew, so that a slow peer can send a large message."""

    idle_timeout_min_ms: int = 100
    """Shortest idle time-out that a peer may ask for: it costs a heartbeat in each half of it."""

    frames_at_once: int = 1 << 30
    """Frames that are read by one call; `Connection.more` says that there may be more."""

    open_timeout_ms: int = 20_000
    """The peer must be done with SASL and open within this time."""

    close_timeout_ms: int = 5_000
    """How long we wait for the answer to our close."""

"""What a connection tells its owner.

The end of something larger is not repeated for what was in it: after SessionEnded the owner
looks at `session.links`, after Closed at `connection.sessions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postbus.amqp.deliveries import Disposed, IncomingDelivery, MessageReceived
from postbus.amqp.frames.performatives import Attach, DeliveryState, Error, Open

if TYPE_CHECKING:
    from postbus.amqp.link import Link
    from postbus.amqp.receiving import ReceiverLink
    from postbus.amqp.sending import SenderLink
    from postbus.amqp.session import Session

__all__ = [
    "Closed",
    "CreditChanged",
    "Disposed",
    "Drained",
    "Event",
    "LinkAttached",
    "LinkDetached",
    "MessageReceived",
    "Opened",
    "SaslReceived",
    "SessionBegun",
    "SessionEnded",
    "SettledBySender",
]


@dataclass(slots=True)
class SaslReceived:
    """The peer says who it is; answer with sasl_accept() or sasl_reject().

    `skipped` means that the peer left SASL out altogether: it is ANONYMOUS then.
    """

    mechanism: str
    initial_response: bytes
    hostname: str | None
    skipped: bool


@dataclass(slots=True)
class Opened:
    """The peer's open has come; a server has already answered it."""

    open: Open


@dataclass(slots=True)
class SessionBegun:
    """Both sides have begun the session."""

    session: Session


@dataclass(slots=True)
class LinkAttached:
    """A peer attached a link: answer with accept() or refuse(), now or later.

    For a link we attached ourselves: the peer has accepted it.
    """

    link: Link
    attach: Attach


@dataclass(slots=True)
class CreditChanged:
    """link.sendable or link.drain may have changed: look at the link, it is told once a turn."""

    link: SenderLink


@dataclass(slots=True)
class SettledBySender:
    """The peer has settled deliveries it sent, before we did or as an answer to our verdict
    (AMQP 2.6.12)."""

    link: ReceiverLink
    deliveries: list[IncomingDelivery]
    state: DeliveryState | None


@dataclass(slots=True)
class Drained:
    """The peer has used up or given back all credit of a link we asked to drain."""

    link: ReceiverLink


@dataclass(slots=True)
class LinkDetached:
    """The link is gone: the peer's wish, its answer to ours, or its fault."""

    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class SessionEnded:
    """The session and its links are gone: the peer's wish, its answer to ours, or its fault."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class Closed:
    """The connection and all in it is gone.

    `clean` tells an orderly close from a break: end of stream, a violation, a time-out.
    """

    error: Error | None
    clean: bool


Event = (
    SaslReceived
    | Opened
    | SessionBegun
    | LinkAttached
    | MessageReceived
    | CreditChanged
    | Disposed
    | SettledBySender
    | Drained
    | LinkDetached
    | SessionEnded
    | Closed
)

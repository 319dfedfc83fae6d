"""The events that a connection reports to its owner.

The end of a session or connection is not reported again for its parts. After SessionEnded the
owner looks at `session.links`, after Closed at `connection.sessions`.
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
    """The peer has identified itself. Answer with sasl_accept() or sasl_reject().

    `skipped` means that the peer left out SASL; it counts as ANONYMOUS then.
    """

    mechanism: str
    initial_response: bytes
    hostname: str | None
    skipped: bool


@dataclass(slots=True)
class Opened:
    """The peer's open has come. A server has already answered it."""

    open: Open


@dataclass(slots=True)
class SessionBegun:
    """Both sides have begun the session."""

    session: Session


@dataclass(slots=True)
class LinkAttached:
    """A peer attached a link. Answer with accept() or refuse(), now or later.

    For a link that we attached: the peer has accepted it.
    """

    link: Link
    attach: Attach


@dataclass(slots=True)
class CreditChanged:
    """link.sendable or link.drain may have changed. Reported once a turn; look at the link."""

    link: SenderLink


@dataclass(slots=True)
class SettledBySender:
    """The peer has settled deliveries that it sent, before our verdict or in answer to it
    (AMQP 2.6.12)."""

    link: ReceiverLink
    deliveries: list[IncomingDelivery]
    state: DeliveryState | None


@dataclass(slots=True)
class Drained:
    """The peer has used or returned all credit of a link that we asked to drain."""

    link: ReceiverLink


@dataclass(slots=True)
class LinkDetached:
    """The link is gone: the peer detached it, answered our detach, or broke a rule on it."""

    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class SessionEnded:
    """The session and its links are gone: the peer ended it, answered our end, or broke a rule."""

    session: Session
    error: Error | None


@dataclass(slots=True)
class Closed:
    """The connection and everything in it is gone.

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

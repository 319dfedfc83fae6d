"""Violations of the protocol by a peer, as exceptions.

The class fixes the AMQP error condition and which endpoint has to end (AMQP 2.8.14 to 2.8.18).
The instance carries the text. Code that reads bytes from a peer raises no other exceptions.
"""

from typing import ClassVar, Literal

Scope = Literal["connection", "session", "link"]


class ProtocolError(Exception):
    """A peer broke the protocol. `scope` is the smallest endpoint that must end because of it."""

    condition: str = "amqp:not-allowed"
    scope: ClassVar[Scope] = "connection"

    def __init__(self, text: str, condition: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if condition is not None:
            self.condition = condition


class DecodeError(ProtocolError):
    """Bytes that are not an AMQP value, or a value of the wrong type."""

    condition = "amqp:decode-error"


class FramingError(ProtocolError):
    """A malformed frame, a frame larger than agreed, or a wrong protocol header."""

    condition = "amqp:connection:framing-error"


class NotAllowed(ProtocolError):
    """A well-formed performative that is not allowed at this moment."""

    condition = "amqp:not-allowed"


class IdleTimeout(ProtocolError):
    """The peer was silent for longer than our announced idle time-out allows (AMQP 2.4.5)."""

    condition = "amqp:resource-limit-exceeded"


class SessionError(ProtocolError):
    """A violation that ends one session but not the connection."""

    scope = "session"


class WindowViolation(SessionError):
    condition = "amqp:session:window-violation"


class HandleInUse(SessionError):
    condition = "amqp:session:handle-in-use"


class UnattachedHandle(SessionError):
    condition = "amqp:session:unattached-handle"


class LinkError(ProtocolError):
    """A violation that detaches one link but does not end its session."""

    scope = "link"


class MessageSizeExceeded(LinkError):
    condition = "amqp:link:message-size-exceeded"


class TransferLimitExceeded(LinkError):
    condition = "amqp:link:transfer-limit-exceeded"

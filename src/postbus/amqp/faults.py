"""What a peer can do wrong, as exceptions that know their own wire code.

The class fixes the AMQP error condition and how much has to be torn down (AMQP 2.8.14 to
2.8.18); the instance carries the words. Code that meets bytes from a peer raises nothing else.
"""

from typing import ClassVar, Literal

Scope = Literal["connection", "session", "link"]


class ProtocolError(Exception):
    """A peer broke the protocol; `scope` is the narrowest endpoint that must end for it."""

    condition: str = "amqp:not-allowed"
    scope: ClassVar[Scope] = "connection"

    def __init__(self, text: str, condition: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        if condition is not None:
            self.condition = condition


class DecodeError(ProtocolError):
    """Bytes that are no AMQP value, or a value where another type must stand."""

    condition = "amqp:decode-error"


class FramingError(ProtocolError):
    """A frame that cannot be, or is larger than agreed, or a wrong protocol header."""

    condition = "amqp:connection:framing-error"


class NotAllowed(ProtocolError):
    """A performative that is well formed but must not come now."""

    condition = "amqp:not-allowed"


class IdleTimeout(ProtocolError):
    """The peer was silent for longer than the idle time-out it was told (AMQP 2.4.5)."""

    condition = "amqp:resource-limit-exceeded"


class SessionError(ProtocolError):
    """A violation that ends one session and leaves the connection standing."""

    scope = "session"


class WindowViolation(SessionError):
    condition = "amqp:session:window-violation"


class HandleInUse(SessionError):
    condition = "amqp:session:handle-in-use"


class UnattachedHandle(SessionError):
    condition = "amqp:session:unattached-handle"


class LinkError(ProtocolError):
    """A violation that detaches one link and leaves its session standing."""

    scope = "link"


class MessageSizeExceeded(LinkError):
    condition = "amqp:link:message-size-exceeded"


class TransferLimitExceeded(LinkError):
    condition = "amqp:link:transfer-limit-exceeded"

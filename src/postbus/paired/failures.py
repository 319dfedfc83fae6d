"""Which errors of the SDK mean what to a paired client: one table (R-PAIR-04).

The SDK raises an error after its own retries. An error counts for failover if it says that the
entity or its namespace cannot be reached.
"""

from __future__ import annotations

import re
import ssl
from enum import Enum
from typing import Final

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

_CONDITION: Final = re.compile(r"Error condition: ([\w:.-]*\w)")
_UNREACHABLE: Final = {"amqp:internal-error", "amqp:connection:forced", "amqp:socket-error"}
_NETWORK: Final = (OSError, TimeoutError, ssl.SSLError)
NOT_FOUND: Final = 404


class Failure(Enum):
    """The kinds of failure that a paired client tells apart."""

    UNREACHABLE = "cannot be reached"
    BUSY = "busy"
    DENIED = "not authorized"
    GONE = "does not exist"
    DISABLED = "disabled"
    FULL = "full"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    PROGRAM = "wrong arguments"


_CLASSES: Final[tuple[tuple[type[BaseException], Failure], ...]] = (
    (OperationTimeoutError, Failure.UNREACHABLE),
    (ServiceBusConnectionError, Failure.UNREACHABLE),
    (ServiceBusCommunicationError, Failure.UNREACHABLE),
    (ServiceBusServerBusyError, Failure.BUSY),
    (ServiceBusAuthenticationError, Failure.DENIED),
    (ServiceBusAuthorizationError, Failure.DENIED),
    (MessagingEntityNotFoundError, Failure.GONE),
    (MessagingEntityDisabledError, Failure.DISABLED),
    (ServiceBusQuotaExceededError, Failure.FULL),
    (MessageSizeExceededError, Failure.TOO_LARGE),
    (ServiceBusError, Failure.REFUSED),
)


def failure_of(error: BaseException) -> Failure:
    """The kind of an error that a call of the SDK raised."""
    failure = next((kind for cls, kind in _CLASSES if isinstance(error, cls)), Failure.PROGRAM)
    inner = getattr(error, "inner_exception", None)
    if failure is Failure.DENIED and getattr(inner, "status_code", None) == NOT_FOUND:
        # `$cbs` grants no token for an entity that does not exist, and the SDK gives it that name.
        return Failure.GONE
    if failure is Failure.REFUSED and (
        isinstance(inner, _NETWORK) or condition_of(error) in _UNREACHABLE
    ):
        return Failure.UNREACHABLE
    return failure


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition that the text of an SDK error names."""
    found = _CONDITION.search(str(error))
    return None if found is None else found[1]


def counts(failure: Failure, count_server_busy: bool) -> bool:
    """Does a failed send of this kind lead to failover?"""
    return failure is Failure.UNREACHABLE or (failure is Failure.BUSY and count_server_busy)


FOR_GOOD: Final = frozenset({Failure.DENIED, Failure.GONE})
"""A ping that fails so marks its path broken (R-PAIR-07)."""
OF_THE_MESSAGE: Final = frozenset({Failure.TOO_LARGE, Failure.REFUSED, Failure.PROGRAM})
"""Another backlog queue would say the same."""


class BacklogUnavailableError(ServiceBusError):
    """No backlog queue can be used: none could be made, or all of them are out of the rotation."""


class PathBrokenError(ServiceBusError):
    """The entity is gone or closed to this client, as a ping found; `inner_exception` says how."""


class PairFaultedError(ServiceBusError):
    """The syphon of this client has ended with a fault, and the pair with it (R-PAIR-11)."""


class DivertedMessageSizeExceededError(MessageSizeExceededError):
    """A message does not fit into a backlog queue with the properties that pairing adds."""

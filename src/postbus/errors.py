"""Every refusal a client can see.

The class fixes the wire codes: AMQP condition, HTTP status, whether a retry may help. The instance
has the text. Tracking ids are added once, at the edge (`postbus.observe.logs`).
"""

from typing import ClassVar, Final

SHUTTING_DOWN: Final = "The broker is shutting down."


class ServiceBusError(Exception):
    """Base of all refusals. The class fixes the wire codes, the instance has the text."""

    condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500
    sub_code: ClassVar[int | None] = None
    """Azure's finer number inside an HTTP error's text; admin clients match on it."""
    transient: ClassVar[bool] = False
    """May the same request succeed later?"""

    def told_at(self, host: str) -> str:
        """The text for a client that knows the namespace as `host`."""
        return str(self)


class EntityNotFound(ServiceBusError):
    """No entity has this address, or it was deleted while in use."""

    condition = "amqp:not-found"
    http_status = 404
    sub_code = 40400

    def __init__(self, path: str) -> None:
        """`path` is in the client's spelling, where it came from a client."""
        # JS and Java decide "entity not found" by this very text (wire §7.2).
        super().__init__(f"The messaging entity '{path}' could not be found.")
        self._path = path

    def told_at(self, host: str) -> str:
        return f"The messaging entity 'sb://{host}/{self._path}' could not be found."


class EntityAlreadyExists(ServiceBusError):
    """An entity with this name is there already."""

    condition = "com.microsoft:entity-already-exists"
    http_status = 409
    sub_code = 40900

    def __init__(self, entity: str) -> None:
        super().__init__(f"Conflict. The messaging entity '{entity}' already exists.")


class EntityDisabled(ServiceBusError):
    """The entity's status does not allow this operation."""

    condition = "com.microsoft:entity-disabled"
    http_status = 403

    def __init__(self, entity: str, operations: str = "") -> None:
        suffix = f" for {operations} operations" if operations else ""
        super().__init__(f"Messaging entity '{entity}' is currently disabled{suffix}.")


class Unauthorized(ServiceBusError):
    """No token, a wrong one, an expired one, or one without the right that is needed."""

    condition = "amqp:unauthorized-access"
    http_status = 401
    sub_code = 40100


class QuotaExceeded(ServiceBusError):
    """The entity or the namespace is full."""

    condition = "amqp:resource-limit-exceeded"
    http_status = 403
    sub_code = 40300


class InvalidArgument(ServiceBusError):
    """A value in the request is malformed, out of range or missing."""

    condition = "com.microsoft:argument-error"
    http_status = 400
    sub_code = 40000


class InvalidOperation(ServiceBusError):
    """The request is well formed but not allowed here."""

    condition = "amqp:not-allowed"
    http_status = 403
    sub_code = 40301


class SessionRequired(ServiceBusError):
    """The entity requires sessions, and the receiver names none. HTTP cannot name one."""

    condition = "amqp:not-allowed"
    http_status = 405

    def __init__(self) -> None:
        super().__init__(
            "It is not possible for an entity that requires sessions to create a non-sessionful "
            "message receiver."
        )


class SecondReceiver(InvalidOperation):
    """A receiver of a second top-level entity in an AMQP session for cross-entity transactions;
    this ends the AMQP session."""


class NotSupported(ServiceBusError):
    """Asked for by name, and not something Postbus does (yet)."""

    condition = "amqp:not-implemented"
    http_status = 400
    sub_code = 40000


class MessageLockLost(ServiceBusError):
    """The lock expired, was settled already, or was granted before a broker restart."""

    condition = "com.microsoft:message-lock-lost"
    http_status = 410

    def __init__(self) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already "
            "been removed from the queue, or was received by a different receiver instance."
        )


class SessionLockLost(ServiceBusError):
    """The session's lock expired, or it was given up, or was held before a broker restart."""

    condition = "com.microsoft:session-lock-lost"
    http_status = 410

    def __init__(self) -> None:
        super().__init__(
            "The lock on the session is lost: it expired, or the session was given up. Accept the "
            "session again; what was received from it before cannot be settled any more."
        )


class SessionCannotBeLocked(ServiceBusError):
    """Another receiver holds the session."""

    condition = "com.microsoft:session-cannot-be-locked"
    http_status = 409

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The requested session '{session_id}' cannot be accepted. "
            "It may be locked by another receiver."
        )


class MessageNotFound(ServiceBusError):
    """No message with this sequence number is in the state the operation needs."""

    condition = "com.microsoft:message-not-found"
    http_status = 404


class MessageSizeExceeded(ServiceBusError):
    """The message, or its headers, is larger than the entity takes."""

    condition = "amqp:link:message-size-exceeded"
    http_status = 403


class ServerBusy(ServiceBusError):
    """A bound was reached for now; the same request may succeed shortly."""

    condition = "com.microsoft:server-busy"
    http_status = 503
    sub_code = 50004
    transient = True


class OperationTimeout(ServiceBusError):
    """The awaited event, such as a free session, did not come in time."""

    condition = "com.microsoft:timeout"
    http_status = 408
    transient = True

    def __init__(self, waited_text: str) -> None:
        super().__init__(
            f"The operation did not complete within the allotted timeout of {waited_text}. The "
            "time allotted to this operation may have been a portion of a longer timeout."
        )


class OutcomeUnknown(ServiceBusError):
    """The disk did not confirm the write (failed sync), so it may or may not be stored.

    500 and not 504: Go's client tries a management request again after 500 and not after 504.
    """

    condition = "com.microsoft:timeout"
    http_status = 500
    sub_code = 50000
    transient = True


class StoreUnavailable(ServerBusy):
    """The store did not take the write (disk full, or stopped): nothing of it was stored."""


class StoreFull(StoreUnavailable):
    """The disk is nearly full. Receives, settlements and deletions go on, and new messages are
    refused until there is room."""


class InternalError(ServiceBusError):
    """A fault of Postbus itself; the log has it under the tracking id."""

    condition = "amqp:internal-error"
    http_status = 500
    sub_code = 50000
    transient = True


class ConnectionForced(ServiceBusError):
    """The server ends the connection: shutdown, or no token within the time allowed."""

    condition = "amqp:connection:forced"
    http_status = 503
    transient = True


class DetachForced(ServiceBusError):
    """The server ends the link: the entity changed, or its engine was loaded again."""

    condition = "amqp:link:detach-forced"
    http_status = 503
    transient = True


class TransactionRolledBack(ServiceBusError):
    """The transaction could not be committed: nothing of it has happened."""

    condition = "amqp:transaction:rollback"
    http_status = 409


class TransactionUnknown(ServiceBusError):
    """No transaction with this id is open on this connection."""

    condition = "amqp:transaction:unknown-id"
    http_status = 404

    def __init__(self) -> None:
        super().__init__(
            "The transaction is not known: it was declared on another connection, or is over."
        )


class TransactionTimedOut(ServiceBusError):
    """The transaction took too long and was rolled back."""

    condition = "amqp:transaction:timeout"
    http_status = 408


class OffsetTrimmed(ServiceBusError):
    """The records at this offset of a feed are past its retention: they are gone."""

    condition = "com.microsoft:message-not-found"
    http_status = 410

    def __init__(self, entity: str, offset: int, first: int, following: int) -> None:
        super().__init__(
            f"Offset {offset} of '{entity}' is past its retention; {first} is the first one left."
        )
        self.first = first
        """The oldest offset that can be read."""
        self.next = following
        """Offset after the newest record."""


class OffsetAhead(ServiceBusError):
    """A feed does not reach this offset; it may be that of an earlier entity of the same name."""

    condition = "com.microsoft:argument-out-of-range"
    http_status = 416

    def __init__(self, entity: str, offset: int, first: int, following: int) -> None:
        super().__init__(
            f"Offset {offset} of '{entity}' does not exist yet; the next one is {following}."
        )
        self.first = first
        self.next = following


class StoreFailed(StoreUnavailable):
    """The store can no longer be trusted (failed sync, corruption). It is stopped, and no later
    request has had an effect."""
